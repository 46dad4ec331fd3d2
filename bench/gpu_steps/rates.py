"""The limits: copies between GPU and page-locked memory, and the drive by direct I/O."""

from __future__ import annotations

import torch

from bench.gpu_steps import drive
from bench.gpu_steps.recorder import Recorder, best_rate, run

COPY_BYTES = 1 << 30
PROBE_BYTES = 1 << 30


def main(recorder: Recorder) -> None:
    """Measure both; the drive also where there is no GPU."""
    path = recorder.directory / "rate"
    recorder.attempt("drive_write_gb_s", lambda: drive.write_rate(path, PROBE_BYTES))
    recorder.attempt("drive_read_gb_s", lambda: drive.read_rate(path))
    path.unlink(missing_ok=True)
    recorder.attempt("copies", copy_rates)


def copy_rates() -> dict[str, float]:
    """Give GB/s of one large copy in either direction, and within the GPU."""
    on_gpu = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda").random_(0, 255)
    other = torch.empty_like(on_gpu)
    pinned = torch.empty(COPY_BYTES, dtype=torch.uint8, pin_memory=True)
    pageable = torch.empty(COPY_BYTES, dtype=torch.uint8)

    def copy(dest: torch.Tensor, source: torch.Tensor) -> None:
        dest.copy_(source, non_blocking=True)
        torch.cuda.synchronize()

    return {
        "d2h_gb_s": best_rate(lambda: copy(pinned, on_gpu), COPY_BYTES),
        "h2d_gb_s": best_rate(lambda: copy(on_gpu, pinned), COPY_BYTES),
        "d2h_pageable_gb_s": best_rate(lambda: copy(pageable, on_gpu), COPY_BYTES, repeats=2),
        "d2d_gb_s": best_rate(lambda: copy(other, on_gpu), COPY_BYTES),
    }


if __name__ == "__main__":
    run(main)
