"""Save and load a state in HBM by every engine that works, beside torch and the bare drive."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import gdsckpt
from bench.gpu_steps import drive
from bench.gpu_steps.recorder import Recorder, run
from bench.measure import evict, sync_file
from gdsckpt.errors import EngineUnavailableError

State = dict[str, torch.Tensor]

LARGE_BYTES = 64 << 20
NUM_SMALL = 500
ENGINES = ("pinned", "cufile", "kvikio")
STATE_MAX_BYTES = 8 << 30
STATE_MIN_BYTES = 1 << 30
RUN_S = 3.0
"""About how long one save may take: the state is made to fit the drive."""


def make_state(nbytes: int) -> State:
    """Make large tensors that add up to ``nbytes``, and some hundred small ones, of random bits."""
    state = {}
    for n in range(nbytes // LARGE_BYTES):
        bits = torch.randint(0, 2**31, (LARGE_BYTES // 4,), dtype=torch.int32, device="cuda")
        state[f"layers.{n}.weight"] = bits.view(torch.float32)
    for n in range(NUM_SMALL):
        state[f"layers.{n}.bias"] = torch.randn(100 + 37 * n, device="cuda")
    torch.cuda.synchronize()
    return state


def state_bytes(recorder: Recorder) -> int:
    """Choose a size that the drive writes in a few seconds, and that fits four times."""
    rate = recorder.earlier.get("rates", {}).get("found", {}).get("drive_write_gb_s")
    wanted = int(rate * 1e9 * RUN_S) if isinstance(rate, float) else STATE_MIN_BYTES
    room = min(shutil.disk_usage(recorder.directory).free // 6, torch.cuda.mem_get_info()[0] // 4)
    fitting = min(max(wanted, STATE_MIN_BYTES), STATE_MAX_BYTES, room)
    return fitting // LARGE_BYTES * LARGE_BYTES


def main(recorder: Recorder) -> None:
    """Two rounds; in each, the bare drive, ours and the peers follow each other."""
    nbytes = state_bytes(recorder)
    state = make_state(nbytes)
    payload = sum(tensor.nbytes for tensor in state.values())
    recorder.add("state", {"payload_bytes": payload, "tensors": len(state)})
    bench = _Bench(recorder, state, payload)
    usable = [engine for engine in ENGINES if bench.is_usable(engine)]
    for number in (1, 2):
        bench.drive(number)
        for engine in usable:
            bench.ours(engine, number)
        bench.torch_save(number)
        recorder.attempt("ratios", bench.ratios)


class _Bench:
    """The timed runs; GB/s by name, one number per round."""

    def __init__(self, recorder: Recorder, state: State, payload: int) -> None:
        self._recorder = recorder
        self._state = state
        self._payload = payload
        self._rates: dict[str, list[float]] = {}

    def is_usable(self, engine: str) -> bool:
        """Try an engine on a small state, which also warms it up."""
        path = self._recorder.directory / "small.pt"
        small = {"w": torch.arange(1 << 20, device="cuda"), "b": torch.ones(3, device="cuda")}

        def attempt() -> list[str] | str:
            try:
                report = gdsckpt.save(small, path, config={"engine": engine})
                _require_equal(gdsckpt.load(path, config={"engine": engine}), small)
            except EngineUnavailableError as error:
                return f"not tried: {error}"[:500]
            return list(report.engine_reasons)

        return isinstance(self._recorder.attempt(f"engine {engine}", attempt), list)

    def drive(self, number: int) -> None:
        """Time the bare drive: the limit."""
        path = self._recorder.directory / "drive"
        nbytes = self._payload // drive.BLOCK_BYTES * drive.BLOCK_BYTES
        self._try(f"{number} drive", lambda: self._drive(path, nbytes))
        path.unlink(missing_ok=True)

    def _drive(self, path: Path, nbytes: int) -> None:
        self._note("drive write", drive.write_rate(path, nbytes))
        self._note("drive read", drive.read_rate(path))

    def ours(self, engine: str, number: int) -> None:
        """Time our save and three kinds of load."""
        path = self._recorder.directory / f"{engine}.pt"
        self._try(f"{number} {engine}", lambda: self._ours(engine, path))
        path.unlink(missing_ok=True)

    def _ours(self, engine: str, path: Path) -> None:
        config = {"engine": engine}
        self._time(f"{engine} save", lambda: gdsckpt.save(self._state, path, config=config))
        evict(path)
        loaded = self._time(f"{engine} load", lambda: gdsckpt.load(path, config=config))
        _require_equal(loaded, self._state)
        for tensor in loaded.values():
            tensor.zero_()
        evict(path)
        self._time(f"{engine} into", lambda: gdsckpt.load(path, into=loaded, config=config))
        _require_equal(loaded, self._state)

    def torch_save(self, number: int) -> None:
        """Time torch.save with a sync, and torch.load."""
        path = self._recorder.directory / "torch.pt"
        self._try(f"{number} torch", lambda: self._torch_save(path))
        path.unlink(missing_ok=True)

    def _torch_save(self, path: Path) -> None:
        self._time("torch save + fsync", lambda: (torch.save(self._state, path), sync_file(path)))
        evict(path)
        self._time("torch load", lambda: torch.load(path, map_location="cuda", weights_only=True))

    def ratios(self) -> dict[str, float]:
        """Give ours over the smaller of the drive's and the copies' rate, medians of the rounds."""
        copies = self._recorder.earlier.get("rates", {}).get("found", {}).get("copies")
        copies = copies if isinstance(copies, dict) else {}
        found = {}
        for name, rates in self._rates.items():
            kind = "write" if name.endswith("save") else "read"
            limits = [_median(self._rates[f"drive {kind}"])]
            copy = copies.get("d2h_gb_s" if kind == "write" else "h2d_gb_s")
            limits += [copy] if copy else []
            if not name.startswith(("drive", "torch")):
                found[f"{name} over the limit"] = round(_median(rates) / min(limits), 3)
        for engine in ENGINES:
            for ours, theirs in (("save", "torch save + fsync"), ("load", "torch load")):
                if f"{engine} {ours}" in self._rates and theirs in self._rates:
                    times = _median(self._rates[f"{engine} {ours}"]) / _median(self._rates[theirs])
                    found[f"{engine} {ours} over {theirs}"] = round(times, 2)
        return found

    def _time(self, name: str, work: Callable[[], Any]) -> Any:
        torch.cuda.synchronize()
        started = time.perf_counter()
        result = work()
        torch.cuda.synchronize()
        self._note(name, round(self._payload / (time.perf_counter() - started) / 1e9, 2))
        return result

    def _note(self, name: str, rate: float) -> None:
        self._rates.setdefault(name, []).append(rate)
        self._recorder.add("gb_s", self._rates)

    def _try(self, name: str, work: Callable[[], None]) -> None:
        self._recorder.attempt(name, lambda: work() or "done")


def _require_equal(loaded: State, state: State) -> None:
    for name, tensor in state.items():
        if loaded[name].device != tensor.device:
            raise AssertionError(f"{name} is on {loaded[name].device}, not on {tensor.device}")
        # By bits: random ones hold NaN, which equals nothing.
        if not torch.equal(loaded[name].view(torch.uint8), tensor.view(torch.uint8)):
            raise AssertionError(f"{name} came back with other bytes")


def _median(rates: list[float]) -> float:
    ordered = sorted(rates)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


if __name__ == "__main__":
    run(main, needs_gpu=True)
