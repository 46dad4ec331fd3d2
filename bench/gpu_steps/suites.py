"""The contract suite and the GPU tests, on the real driver."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

from bench.gpu_steps.recorder import Recorder, run

ROOT = Path(__file__).resolve().parents[2]
SUITES = {
    "tests of torch and the kernels": ("tests/gpu",),
    "contract": ("tests/contract", "-k", "not gpu-cufile"),
    # The real libcufile may hang: that must not keep the others.
    "contract of cuFile": ("tests/contract", "-k", "gpu-cufile"),
}
"""Each in a process of its own, side by side: every test of the contract starts CUDA anew."""


class _Suite:
    """One run of pytest, whose results are kept as they come: the step may be killed."""

    def __init__(self, recorder: Recorder, lock: threading.Lock, name: str) -> None:
        self._recorder = recorder
        self._lock = lock
        self._name = name
        self._counts: dict[str, int] = {}
        self._bad: list[str] = []
        self._last: list[str] = []
        self.status: int | None = None

    def run(self) -> None:
        """Run to the end."""
        command = [sys.executable, "-m", "pytest", "-m", "gpu", "-v", "-rfE", "--timeout", "30"]
        command += ["-p", "pytest_timeout", "-p", "no:cacheprovider", *SUITES[self._name]]
        # What else is installed on the machine may bring plugins, and warnings, of its own.
        environ = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        with subprocess.Popen(
            command,
            cwd=ROOT,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process:
            for line in process.stdout or ():
                self._take(line.rstrip())
            self.status = process.wait()
        self._keep()

    def _take(self, line: str) -> None:
        self._last = [*self._last, line][-60:]
        verdict = re.match(r"(\S+::.*) (PASSED|FAILED|ERROR|SKIPPED)\b", line)
        if verdict:
            self._counts[verdict[2]] = self._counts.get(verdict[2], 0) + 1
            if verdict[2] in ("FAILED", "ERROR"):
                self._bad.append(verdict[1])
            self._keep()

    def _keep(self) -> None:
        found = {"counts": self._counts, "bad": self._bad, "status": self.status}
        with self._lock:
            self._recorder.add(self._name, {**found, "last_lines": self._last})


def main(recorder: Recorder) -> None:
    """Run what is marked ``gpu``."""
    if importlib.util.find_spec("pytest_timeout") is None:
        raise RuntimeError("pytest-timeout is not installed")
    lock = threading.Lock()
    suites = [_Suite(recorder, lock, name) for name in SUITES]
    threads = [threading.Thread(target=suite.run) for suite in suites]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if any(suite.status != 0 for suite in suites):
        raise RuntimeError(f"pytest ended with {[suite.status for suite in suites]}")


if __name__ == "__main__":
    run(main)
