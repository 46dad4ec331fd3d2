"""How much host memory snapshots may use where the user does not say."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

_SHARE = 4
"""A quarter: the data loaders and the page cache need the rest."""

_CGROUPS = ("memory.max", "memory/memory.limit_in_bytes")


def staging_limit(
    staging_max_bytes: int, environ: Mapping[str, str], *, files: Path = Path("/")
) -> int:
    """Give the bytes that the slots of this process may use.

    Args:
        staging_max_bytes: The setting; 0 for the default.
        environ: The environment: ``LOCAL_WORLD_SIZE``, as torchrun sets it, is the number of
            processes that share the machine.
        files: Where ``proc`` and ``sys`` are.
    """
    if staging_max_bytes:
        return staging_max_bytes
    text = environ.get("LOCAL_WORLD_SIZE", "1")
    num_processes = int(text) if text.isascii() and text.isdigit() and int(text) else 1
    return _memory_bytes(files) // _SHARE // num_processes


def _memory_bytes(files: Path) -> int:
    """Give the memory of the machine, or less where a control group has a limit."""
    limits = [_machine_bytes(files)]
    for name in _CGROUPS:
        try:
            text = (files / "sys/fs/cgroup" / name).read_text().strip()
        except OSError:
            continue
        if text.isdigit():
            limits.append(int(text))
    return min(limits)


def _machine_bytes(files: Path) -> int:
    for line in (files / "proc/meminfo").read_text().splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/meminfo has no MemTotal")
