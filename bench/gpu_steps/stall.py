"""What a save in a thread costs a loop that trains on the same GPU meanwhile."""

from __future__ import annotations

import statistics
import threading
import time
from pathlib import Path

import torch

import gdsckpt
from bench.gpu_steps.recorder import Recorder, run

STATE_BYTES = 2 << 30
MATRIX = 4096
PRODUCTS = 8
"""Matrix products per iteration: some 10 ms of a large GPU, as a small training step."""


class _Loop:
    """A loop of matrix products whose iterations are timed on the host."""

    def __init__(self) -> None:
        self._a = torch.randn(MATRIX, MATRIX, device="cuda", dtype=torch.bfloat16)
        self._b = torch.randn_like(self._a)

    def iterate(self) -> float:
        """Run one iteration; gives its milliseconds."""
        started = time.perf_counter()
        for _ in range(PRODUCTS):
            torch.mm(self._a, self._b)
        torch.cuda.synchronize()
        return (time.perf_counter() - started) * 1e3

    def run_for(self, seconds: float) -> list[float]:
        """Iterate for some time."""
        deadline = time.perf_counter() + seconds
        times = []
        while time.perf_counter() < deadline:
            times.append(self.iterate())
        return times


def main(recorder: Recorder) -> None:
    """Compare iterations alone with those beside a save."""
    chunk = 64 << 20
    state = {
        f"w{n}": torch.randint(0, 2**31, (chunk // 4,), dtype=torch.int32, device="cuda")
        for n in range(STATE_BYTES // chunk)
    }
    loop = _Loop()
    loop.run_for(0.5)
    alone = loop.run_for(2.0)
    beside, save_s = _beside(loop, state, recorder.directory / "stall.pt")
    after = loop.run_for(1.0)
    recorder.add("iteration_ms_alone", _summary(alone + after))
    recorder.add("iteration_ms_beside_a_save", _summary(beside))
    recorder.add("save_s", round(save_s, 2))
    slowdown = statistics.mean(beside) / statistics.mean(alone + after)
    recorder.add("slowdown", round(slowdown, 3))
    recorder.add("lost_ms", round((slowdown - 1) * save_s * 1e3, 1))


def _beside(loop: _Loop, state: dict[str, torch.Tensor], path: Path) -> tuple[list[float], float]:
    seconds: list[float] = []
    failures: list[Exception] = []

    def save() -> None:
        started = time.perf_counter()
        try:
            gdsckpt.save(state, path)
        except Exception as error:  # noqa: BLE001 - told in the thread that waits
            failures.append(error)
        seconds.append(time.perf_counter() - started)

    gdsckpt.save(state, path)  # the ring is page-locked once
    torch.cuda.synchronize()
    thread = threading.Thread(target=save)
    thread.start()
    times = [loop.iterate()]
    while thread.is_alive():
        times.append(loop.iterate())
    thread.join()
    if failures:
        raise failures[0]
    return times, seconds[0]


def _summary(times: list[float]) -> dict[str, float]:
    ordered = sorted(times)
    return {
        "n": len(ordered),
        "median": round(statistics.median(ordered), 3),
        "mean": round(statistics.mean(ordered), 3),
        "p99": round(ordered[int(len(ordered) * 0.99)], 3),
        "max": round(ordered[-1], 3),
    }


if __name__ == "__main__":
    run(main, needs_gpu=True)
