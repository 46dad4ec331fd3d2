"""Remembers, from process to process, how trials of cuFile came out.

A cache only: what is missing, damaged or somebody else's is as if it were not there, and nothing
here raises.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

_FORMAT = 1
_ENTRY_MAX_BYTES = 64 << 10
_UNUSED_S = 30 * 86400.0


def cache_directory(environ: Mapping[str, str]) -> Path | None:
    """Give the user's directory for caches of gdsckpt, or None where there is none.

    Source: XDG Base Directory Specification (paths that are not absolute are to be ignored).
    """
    for variable, below in (("XDG_CACHE_HOME", ""), ("HOME", ".cache")):
        base = environ.get(variable, "")
        if os.path.isabs(base):  # noqa: PTH117 - a string from outside
            return Path(base, below, "gdsckpt", "trials")
    return None


class TrialCache:
    """One file for each key, readable and writable by its owner only. Any thread may call.

    Args:
        directory: Where; made when something is stored. None keeps nothing.
        clock: Gives the time in seconds since 1970.
    """

    def __init__(self, directory: Path | None, clock: Callable[[], float] = time.time) -> None:
        self._directory = directory
        self._clock = clock

    def load(self, key: Mapping[str, Any], *, max_age_s: float | None = None) -> Any:
        """Give what was stored under a key, as JSON has it; None where there is nothing.

        Args:
            key: Values that JSON has; all of them must be what they were.
            max_age_s: What is older, or from the future, counts as absent; None takes any age.
        """
        if self._directory is None:
            return None
        try:
            document = json.loads(_read_private(self._path(key)))
            is_same = document["format"] == _FORMAT and document["key"] == _plain(key)
            age_s = self._clock() - float(document["stored_at"])
            value = document["value"]
        except (OSError, ValueError, ArithmeticError, LookupError, TypeError, RecursionError):
            return None
        is_young = max_age_s is None or 0 <= age_s <= max_age_s
        return value if is_same and is_young else None

    def store(self, key: Mapping[str, Any], value: Any) -> None:
        """Keep a value, if that is possible; what was there under the key is replaced."""
        if self._directory is None:
            return
        document = {
            "format": _FORMAT,
            "key": _plain(key),
            "stored_at": self._clock(),
            "value": value,
        }
        with contextlib.suppress(OSError):
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            _replace(self._path(key), json.dumps(document).encode())
            self._forget_unused()

    def _path(self, key: Mapping[str, Any]) -> Path:
        name = hashlib.sha256(json.dumps(_plain(key), sort_keys=True).encode()).hexdigest()
        return (self._directory or Path()) / f"{name[:32]}.json"

    def _forget_unused(self) -> None:
        """Remove what was stored long ago: each start of the machine has keys of its own."""
        for path in (self._directory or Path()).glob("*.json*"):
            with contextlib.suppress(OSError):
                if self._clock() - path.stat().st_mtime > _UNUSED_S:
                    path.unlink()


def _plain(key: Mapping[str, Any]) -> Any:
    """Give a key as JSON reads it back."""
    return json.loads(json.dumps(key))


def _read_private(path: Path) -> bytes:
    """Read a file that nobody but this user can have written.

    Raises:
        OSError: It is not there, or not so.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb") as file:  # noqa: PTH123 - of a descriptor
        status = os.fstat(fd)
        is_private = stat.S_ISREG(status.st_mode) and status.st_mode & 0o077 == 0
        if not is_private or status.st_uid != os.geteuid():
            raise PermissionError(f"{path} is not private")
        return file.read(_ENTRY_MAX_BYTES)


def _replace(path: Path, content: bytes) -> None:
    """Put a private file into its place at once: readers see the old one or the new one."""
    fd, name = tempfile.mkstemp(prefix=f"{path.name}-", dir=path.parent)  # of mode 0600
    try:
        with open(fd, "wb") as file:  # noqa: PTH123 - of a descriptor
            file.write(content)
        Path(name).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise
