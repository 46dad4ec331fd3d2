"""Probe steps about a directory: its file system, and what it lets a save do."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from gdsckpt.engine import mounts
from gdsckpt.engine.probe_step import ProbeStep
from gdsckpt.units import format_bytes

_IN_MEMORY = ("tmpfs", "ramfs")
_BLOCK_BYTES = 64 << 10
"""A multiple of every alignment that direct I/O asks for."""

_FREE_MIN_BYTES = 1 << 20
"""Less than this holds no checkpoint of any model."""


def file_system_steps(where: Path) -> Iterator[ProbeStep]:
    """Tell what the directory lies on, and how much room it has."""
    yield _file_system_step(where)
    yield _free_space_step(where)


def _file_system_step(where: Path) -> ProbeStep:
    try:
        _, name = mounts.file_system_name(where)
    except OSError as error:
        return ProbeStep("file_system", ok=False, reason=f"statfs failed: {error.strerror}")
    mount = mounts.mount_of(where)
    facts = [name]
    if mount is not None:
        facts.append(f"{mount.kind} on {mount.mount_point} from {mount.source} ({mount.options})")
        device = mounts.block_device_facts(mount.device)
        facts += [device] if device else []
    in_memory = name in _IN_MEMORY
    return ProbeStep(
        "file_system",
        ok=not in_memory,
        reason="; ".join(facts) + ("; it is gone after a reboot" if in_memory else ""),
        mend="Save to a directory on a drive." if in_memory else "",
    )


def _free_space_step(where: Path) -> ProbeStep:
    try:
        info = os.statvfs(where)
    except OSError as error:
        return ProbeStep("free_space", ok=False, reason=f"statvfs failed: {error.strerror}")
    free_bytes, total_bytes = info.f_bavail * info.f_frsize, info.f_blocks * info.f_frsize
    no_inodes = info.f_files > 0 and info.f_favail == 0
    ok = not no_inodes and (free_bytes >= _FREE_MIN_BYTES or total_bytes == 0)
    inodes = ", no inode is free" if no_inodes else ""
    return ProbeStep(
        "free_space",
        ok=ok,
        needed=True,
        reason=f"{format_bytes(free_bytes)} free of {format_bytes(total_bytes)}{inodes}",
        mend="" if ok else "Delete files there, or save elsewhere.",
    )


def open_file_steps(fd: int, path: Path) -> Iterator[ProbeStep]:
    """Try what a save does with a file.

    Args:
        fd: An empty file, open for reading and writing; stays the caller's.
        path: Its name; it is renamed to ``<name>-renamed``.
    """
    tries: tuple[tuple[str, bool, str, Callable[[int, Path], str]], ...] = (
        ("write", True, "Give a directory that files can be written to.", _write),
        ("direct_io", False, "Saves go through the page cache here, slower.", _direct_io),
        ("io_alignment", False, "Direct I/O with 4096 bytes is assumed.", _io_alignment),
        ("fallocate", False, "A full disk is noticed later, in mid-save.", _fallocate),
        ("flock", False, "Leftovers of killed saves cannot be told from live files.", _flock),
        ("fsync", True, "Saves cannot be made durable here: save elsewhere.", _fsync),
        ("rename", True, "Saves cannot be committed here: save elsewhere.", _rename),
        ("fsync_directory", False, "A power loss may undo a finished save.", _fsync_directory),
    )
    for name, needed, mend, attempt in tries:
        try:
            reason = attempt(fd, path)
        except (OSError, ImportError) as error:
            why = error.strerror if isinstance(error, OSError) and error.errno else str(error)
            yield ProbeStep(name, ok=False, needed=needed, reason=why or "failed", mend=mend)
        else:
            yield ProbeStep(name, ok=True, needed=needed, reason=reason)


def _write(fd: int, path: Path) -> str:
    del path
    sample = b"\xa5" * _BLOCK_BYTES
    if os.pwrite(fd, sample, 0) != len(sample) or os.pread(fd, len(sample), 0) != sample:
        raise OSError(errno.EIO, "other bytes were read than had been written")
    return f"{len(sample)} bytes written and read back"


def _direct_io(fd: int, path: Path) -> str:
    del path
    direct_fd = os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_DIRECT | os.O_CLOEXEC)
    try:
        with mmap.mmap(-1, _BLOCK_BYTES) as block:  # direct I/O wants aligned memory: whole pages
            block.write(b"\x5a" * _BLOCK_BYTES)
            if os.pwritev(direct_fd, [block], 0) != _BLOCK_BYTES:
                raise OSError(errno.EIO, "a direct write was short")
            block.seek(0)
            block.write(bytes(_BLOCK_BYTES))
            if os.preadv(direct_fd, [block], 0) != _BLOCK_BYTES:
                raise OSError(errno.EIO, "a direct read was short")
            if block[:] != b"\x5a" * _BLOCK_BYTES:
                raise OSError(errno.EIO, "other bytes were read than had been written")
    finally:
        os.close(direct_fd)
    return f"O_DIRECT works: {_BLOCK_BYTES} bytes written and read back"


def _io_alignment(fd: int, path: Path) -> str:
    del path
    from gdsckpt import native

    alignment = native.direct_alignment(fd)
    if not alignment:
        raise OSError(errno.EOPNOTSUPP, "statx says that there is no direct I/O")
    return f"{alignment} bytes (statx, or 4096 where the kernel does not tell)"


def _fallocate(fd: int, path: Path) -> str:
    del path
    from gdsckpt import native

    if not native.fallocate(fd, 2 * _BLOCK_BYTES):
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
    return "space can be reserved before a save"


def _flock(fd: int, path: Path) -> str:
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with path.open("rb") as other:
        try:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return "a second lock on the same file is refused"
    raise OSError(errno.ENOLCK, "two locks on the same file were granted")


def _fsync(fd: int, path: Path) -> str:
    del path
    os.fdatasync(fd)
    return "fdatasync succeeds"


def _rename(fd: int, path: Path) -> str:
    target = path.with_name(f"{path.name}-renamed")
    target.touch()
    path.replace(target)
    if target.stat().st_ino != os.fstat(fd).st_ino:
        raise OSError(errno.EIO, "another file has the name after a rename")
    return "a file is renamed over another"


def _fsync_directory(fd: int, path: Path) -> str:
    del fd
    directory_fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory_fd)
    finally:
        os.close(directory_fd)
    return "fsync of the directory succeeds"
