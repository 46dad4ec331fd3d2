"""Probe steps about processor, kernel and memory."""

from __future__ import annotations

import os
import platform
import resource
import sys
from pathlib import Path

from gdsckpt.engine.probe_step import ProbeStep
from gdsckpt.units import format_binary_bytes, format_bytes

_MACHINES = ("x86_64", "aarch64")
_CGROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
_UNLIMITED_BYTES = 1 << 60
"""Version 1 of control groups writes "no limit" as a huge number."""


def platform_step() -> ProbeStep:
    """Tell whether the platform is one that gdsckpt is written for."""
    machine = platform.machine()
    ok = sys.platform == "linux" and machine in _MACHINES and sys.byteorder == "little"
    found = (
        f"{platform.system()} {platform.release()} on {machine}, {os.cpu_count()} processors, "
        f"{len(os.sched_getaffinity(0))} of them usable, pages of "
        f"{format_binary_bytes(os.sysconf('SC_PAGE_SIZE'))}, Python {platform.python_version()}"
    )
    mend = "" if ok else f"gdsckpt runs on Linux on {' and '.join(_MACHINES)}."
    return ProbeStep("platform", ok=ok, needed=True, reason=found, mend=mend)


def memory_step(pool_bytes: int) -> ProbeStep:
    """Tell whether the ring of slabs fits into the memory that is free.

    Args:
        pool_bytes: The setting ``pinned_pool_bytes``.
    """
    total_bytes, available_bytes = _meminfo()
    limit_bytes = _cgroup_limit_bytes()
    if limit_bytes is not None:
        available_bytes = min(available_bytes, limit_bytes)
    soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    lockable = "unlimited" if soft == resource.RLIM_INFINITY else format_binary_bytes(soft)
    limit = "" if limit_bytes is None else f", limit of the control group {_bytes(limit_bytes)}"
    ok = available_bytes >= pool_bytes
    return ProbeStep(
        "memory",
        ok=ok,
        reason=f"{_bytes(available_bytes)} available of {_bytes(total_bytes)}{limit}; "
        f"lockable {lockable}; ring of slabs {format_binary_bytes(pool_bytes)}",
        mend="" if ok else "Free memory, or lower pinned_pool_bytes and chunk_bytes.",
    )


def _bytes(nbytes: int) -> str:
    return format_bytes(nbytes)


def _meminfo() -> tuple[int, int]:
    """Give total and available memory in bytes; 0 where /proc does not tell."""
    fields = {}
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            name, _, rest = line.partition(":")
            fields[name] = int(rest.split()[0]) * 1024
    except (OSError, ValueError, IndexError):
        return 0, 0
    return fields.get("MemTotal", 0), fields.get("MemAvailable", 0)


def _cgroup_limit_bytes() -> int | None:
    for path in _CGROUP_LIMITS:
        try:
            limit_bytes = int(path.read_text())
        except (OSError, ValueError):  # absent, or "max"
            continue
        if limit_bytes < _UNLIMITED_BYTES:
            return limit_bytes
    return None
