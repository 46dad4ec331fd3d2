"""Fallbacks at run time: told once, recorded always."""

from __future__ import annotations

import os
import threading
import warnings

from gdsckpt import native
from gdsckpt.engine.base import Engine
from gdsckpt.errors import FallbackWarning

_lock = threading.Lock()
_told: set[str] = set()


def warn_once(key: str, text: str, *, stacklevel: int = 2) -> None:
    """Warn, unless this process was warned of the same before.

    Args:
        key: What makes it the same.
        text: What the user gets less of, why, and what to do.
        stacklevel: As for ``warnings.warn``, from the caller of this function.
    """
    with _lock:
        if key in _told:
            return
        _told.add(key)
    warnings.warn(text, FallbackWarning, stacklevel=stacklevel + 1)


def reasons_at_run_time(engine: Engine, file: native.File) -> tuple[str, ...]:
    """Say what did not go as chosen in transfers of device memory, after them; warns once of each.

    Args:
        engine: Moved the bytes.
        file: What they were moved to or from.
    """
    found: list[str] = []
    pin_refused = str(getattr(engine, "pin_refused", ""))
    for what, why in (
        ("from some point on GPU memory went through the host, not by cuFile", file.cufile_refused),
        ("some GPU memory went through the host, not by cuFile", file.cufile_skipped),
        ("slabs could not be page-locked, so copies are slower", pin_refused),
    ):
        if why:
            found.append(f"{what}: {why}")
            warn_once(
                # The same reason with another file or offset is the same.
                what + (why.partition(" failed: ")[2] or why),
                f"{file.path}: {what}: {why.rstrip('.')}. What was written or read is complete. "
                "'gdsckpt probe' on its directory says more.",
                stacklevel=3,
            )
    return tuple(found)


def _forget_lock() -> None:
    """The parent's lock may be held by a thread that a forked child does not have."""
    global _lock  # noqa: PLW0603
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_lock)
