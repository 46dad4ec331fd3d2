"""torch's own binding of cuFile, on one large storage; it writes no checkpoint."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch

from bench.gpu_steps.recorder import Recorder, run
from bench.measure import sync_file

NBYTES = 1 << 30


def main(recorder: Recorder) -> None:
    """Time it; a step of its own, as cuFile may hang."""
    if not Path("/proc/modules").exists():
        recorder.skip("torch.cuda.gds", "without /proc/modules cuFile waits for it for ever")
        return
    recorder.attempt("torch.cuda.gds", lambda: torch_gds(recorder.directory / "gds"))


def torch_gds(path: Path) -> dict[str, float]:
    """Save and load a storage in HBM."""
    storage = torch.empty(NBYTES, dtype=torch.uint8, device="cuda").random_().untyped_storage()
    file = torch.cuda.gds.GdsFile(str(path), os.O_CREAT | os.O_RDWR)
    torch.cuda.synchronize()
    started = time.perf_counter()
    file.save_storage(storage)
    sync_file(path)
    written = time.perf_counter()
    file.load_storage(storage)
    torch.cuda.synchronize()
    read = time.perf_counter()
    return {
        "save_gb_s": round(NBYTES / (written - started) / 1e9, 2),
        "load_gb_s": round(NBYTES / (read - written) / 1e9, 2),
    }


if __name__ == "__main__":
    run(main, needs_gpu=True)
