"""Build the extension in place, with the compiler and headers of this machine."""

from __future__ import annotations

import os
import subprocess
import sys

from bench.gpu_steps.recorder import Recorder, run


def main(recorder: Recorder) -> None:
    """Build, and say what the extension was built with."""
    environ = {**os.environ, "GDSCKPT_BUILD_JOBS": str(os.cpu_count() or 1)}
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    recorder.add("status", done.returncode)
    if done.returncode:
        print(done.stdout, done.stderr)
        raise RuntimeError("the extension was not built")
    from gdsckpt import native

    recorder.add("nvtx_compiled", native.nvtx_compiled())
    recorder.add("crc32_kernels", native.crc32_kernels())


if __name__ == "__main__":
    run(main)
