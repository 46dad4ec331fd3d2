"""What is to be done when the interpreter of a test has ended all else; imports nothing of ours."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable

checks: list[Callable[[], None]] = []


def run() -> None:
    """Run the checks; the process fails with the first that does."""
    try:
        for check in checks:
            check()
    except BaseException:  # noqa: BLE001 - nobody else would tell
        traceback.print_exc()
        os._exit(1)
