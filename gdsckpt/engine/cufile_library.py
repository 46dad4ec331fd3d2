"""Where libcufile is looked for. Nothing is loaded here."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

SONAME = "libcufile.so.0"
_WHEEL_PATTERN = "nvidia/*/lib"
_TOOLKIT_PATTERNS = ("usr/local/cuda*/lib64", "usr/local/cuda*/targets/*/lib")


def candidates(
    override: str = "", *, folders: Sequence[str] | None = None, root: Path = Path("/")
) -> tuple[str, ...]:
    """List what to try, in this order.

    The library that the process has already comes first: two of them would be two drivers. Then
    those of wheels (``nvidia-cufile``), which the loader does not find by itself, what the loader
    finds, and the toolkit's.

    Args:
        override: The setting ``libcufile``: then it is the only one.
        folders: Where packages are imported from; None for ``sys.path``.
        root: Of the file system; another one for tests.
    """
    if override:
        return (override,)
    found = [
        *loaded(root),
        *_in_folders(sys.path if folders is None else folders),
        SONAME,
        *_in_toolkits(root),
    ]
    return tuple(dict.fromkeys(found))


def loaded(root: Path = Path("/")) -> list[str]:
    """Give the path of the libcufile that this process has loaded, if it has one."""
    try:
        text = (root / "proc/self/maps").read_bytes().decode(errors="surrogateescape")
    except OSError:
        return []
    paths = re.findall(r"(/[^\n]*/libcufile\.so[.\d]*)$", text, re.MULTILINE)
    return list(dict.fromkeys(paths))[:1]


def identity(paths: Iterable[str]) -> list[list[str | int]]:
    """Describe what the candidates are now, so that a library installed since is noticed.

    A name without a directory is found by the loader, so what tells the loader where to look is
    part of it.
    """
    facts: list[list[str | int]] = []
    for path in paths:
        try:
            status = Path(path).stat()
            facts.append([path, status.st_size, status.st_mtime_ns])
        except OSError:
            facts.append([path])
    facts.append(["LD_LIBRARY_PATH", os.environ.get("LD_LIBRARY_PATH", "")])
    return facts


def _in_folders(folders: Iterable[str]) -> list[str]:
    """Look where wheels put the library: nvidia/cu13/lib, or nvidia/cufile/lib for CUDA 12."""
    found: list[str] = []
    for folder in folders:
        if os.path.isabs(folder):  # noqa: PTH117 - entries may be no paths at all
            found += _newest_first(Path(folder), _WHEEL_PATTERN)
    return found


def _in_toolkits(root: Path) -> list[str]:
    found: list[str] = []
    for pattern in _TOOLKIT_PATTERNS:
        found += _newest_first(root, pattern)
    return found


def _newest_first(folder: Path, pattern: str) -> list[str]:
    try:
        paths = [str(path / SONAME) for path in folder.glob(pattern) if (path / SONAME).is_file()]
    except OSError:
        return []
    return sorted(paths, key=_version_key, reverse=True)


def _version_key(path: str) -> tuple[list[int], str]:
    return [int(number) for number in re.findall(r"\d+", path)], path
