"""What a step finds, kept from the moment it is found."""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Recorder:
    """Collects the results of one step, and writes them after each.

    Attributes:
        directory: Scratch directory on the drive.
        earlier: Results of the steps before.
    """

    def __init__(self, arguments: list[str]) -> None:
        directory, found, earlier = arguments
        self.directory = Path(directory)
        self._path = Path(found)
        self.earlier: dict[str, Any] = json.loads(Path(earlier).read_text())
        self._found: dict[str, Any] = {}
        self._has_failed = False

    def add(self, name: str, value: Any) -> None:
        """Keep a result."""
        self._found[name] = value
        fresh = self._path.with_suffix(".new")
        fresh.write_text(json.dumps(self._found, default=str))
        fresh.replace(self._path)

    def attempt(self, name: str, work: Callable[[], Any]) -> Any:
        """Keep what ``work`` gives, or how it failed; the step goes on, but ends badly."""
        try:
            value = work()
        except Exception as error:  # noqa: BLE001 - whatever a GPU machine comes up with
            traceback.print_exc()
            self._has_failed = True
            self.add(name, f"failed: {type(error).__name__}: {error}"[:600])
            return None
        self.add(name, value)
        return value

    def skip(self, name: str, why: str) -> None:
        """Say why something was not tried; that is no failure."""
        self.add(name, f"not tried: {why}")

    def status(self) -> int:
        """Give the exit status of the step."""
        return 1 if self._has_failed else 0


def require_gpu() -> None:
    """End the step with a plain word where torch sees no GPU."""
    import torch

    if not torch.cuda.is_available():
        raise SystemExit("torch sees no GPU")


def run(main: Callable[[Recorder], None], *, needs_gpu: bool = False) -> None:
    """Run a step's ``main`` as its process, without the tear-down that a broken driver may hang in.

    The libraries' own end is tried by the contract suite; here it must not cost the results.

    Args:
        main: The step.
        needs_gpu: Nothing of it can be done without one.
    """
    recorder = Recorder(sys.argv[1:])
    try:
        if needs_gpu:
            require_gpu()
        main(recorder)
        status = recorder.status()
    except SystemExit as end:
        print(end)
        status = 3
    except BaseException:  # noqa: BLE001 - told by the status, and by the output
        traceback.print_exc()
        status = 2
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def best_rate(work: Callable[[], None], nbytes: int, repeats: int = 4) -> float:
    """Give GB/s of the fastest run after one to warm up; ``work`` ends when all is done."""
    work()
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return round(nbytes / min(seconds) / 1e9, 2)
