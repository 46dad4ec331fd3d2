"""CRC-32 on the GPU: is it zlib's, and how fast."""

from __future__ import annotations

from bench.gpu_steps.recorder import Recorder, run


def main(recorder: Recorder) -> None:
    """Measure; ``bench.device_crc`` also compares with zlib."""
    from bench import device_crc

    recorder.attempt("device_crc", lambda: device_crc.measure(0))


if __name__ == "__main__":
    run(main, needs_gpu=True)
