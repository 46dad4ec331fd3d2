"""The contract suite and the GPU tests, on the real driver."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from bench.gpu_steps.recorder import Recorder, run

ROOT = Path(__file__).resolve().parents[2]


def main(recorder: Recorder) -> None:
    """Run what is marked ``gpu``, and keep the last line and the failures."""
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-q", "-rfEs", "--timeout", "30"]
    folders = [str(path) for path in (ROOT / "tests/contract", ROOT / "tests/gpu") if path.is_dir()]
    command += ["-p", "no:cacheprovider", *folders]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        lines: list[str] = []
        for line in process.stdout or ():  # kept as they come: the step may be killed
            lines.append(line.rstrip())
            if re.match(r"(FAILED|ERROR|SKIPPED)|.* (passed|failed)", line):
                recorder.add("lines", lines[-40:])
        status = process.wait()
    recorder.add("lines", lines[-40:])
    recorder.add("status", status)
    if status:
        raise RuntimeError(f"pytest ended with status {status}")


if __name__ == "__main__":
    run(main)
