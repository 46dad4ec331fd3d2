"""One trainer per root: a record lock on a file in it.

A record lock belongs to the process: unlike a flock it does not pass to forked workers, so it is
gone when the trainer is, however that ended. It is also gone when the process closes *any*
descriptor of the file (fcntl(2), "Record locking"), and it does not exclude a second holder in the
same process; so all of this process's locks are registered, and the file of a root that is held is
not opened again.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import fcntl
import json
import os
import socket
import struct
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from gdsckpt.engine.fallback import warn_once
from gdsckpt.errors import RootLockedError, StorageError, storage_error_from
from gdsckpt.staging import directory, files
from gdsckpt.staging import root as roots

LOCK_NAME = "lock"

_HOLDER_MAX_BYTES = 4096
_COMMAND_MAX = 200
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)
_FLOCK = struct.Struct("hhqqi4x")
"""``struct flock`` of Linux on 64 bits: type, whence, start, len, pid."""

_registry_lock = threading.RLock()
_held: dict[tuple[int, int], RootLock] = {}


class RootLock:
    """The right to save into a root; made by :meth:`acquire`. Any thread may release it.

    Attributes:
        root: The root.
        is_exclusive: False where the file system has no locks, so that another process may save
            into the root too.
    """

    def __init__(self, root: Path, fd: int, *, is_exclusive: bool) -> None:
        self.root = root
        self.is_exclusive = is_exclusive
        self._fd = fd
        self._key = _key_of(os.fstat(fd))
        self._owner = os.getpid()

    @classmethod
    def acquire(cls, root: str | os.PathLike[str], *, fsync: bool = True) -> Self:
        """Take the lock of a root at once; the root is made if absent, and what is above it.

        Raises:
            RootLockedError: Another trainer has it, or this process has it already.
            StorageError: The root cannot be made or written to.
        """
        where = Path(root)
        for above in reversed(where.parents):
            if not os.path.exists(above):  # noqa: PTH110 - Path.exists raises where one may not look
                directory.make(above, fsync=fsync)
        directory.make(where, fsync=fsync)
        path = roots.make_private(where, fsync=fsync) / LOCK_NAME
        with _registry_lock:
            if _held_at(path) is not None:
                raise _locked_error(where, _this_process())
            fd = _open(path, os.O_RDWR | os.O_CREAT)
            try:
                is_exclusive = _take(fd, where, path)
                held = cls(where, fd, is_exclusive=is_exclusive)
            except BaseException:
                os.close(fd)  # no lock of ours is on this file
                raise
            _held[held._key] = held
        if is_exclusive:
            _write_holder(fd)
        return held

    def renew(self) -> None:
        """Take the lock again where it is lost: the root was removed and made anew, or given back.

        Raises:
            RootLockedError: Another trainer has taken it meanwhile.
            StorageError: The root cannot be written to.
        """
        with _registry_lock:
            if _held_at(roots.private_directory(self.root) / LOCK_NAME) is self:
                return
            taken = type(self).acquire(self.root)
            _held.pop(self._key, None)
            if self._fd >= 0:
                os.close(self._fd)
            self._fd, self._key, self.is_exclusive = taken._fd, taken._key, taken.is_exclusive
            _held[self._key] = self

    def release(self) -> None:
        """Give the lock back; no more than once, and not in a forked child, which has none."""
        with _registry_lock:
            if self._fd < 0 or os.getpid() != self._owner:
                return
            try:
                with contextlib.suppress(OSError):
                    if self.is_exclusive:
                        os.ftruncate(self._fd, 0)
            finally:
                fd, self._fd = self._fd, -1
                _held.pop(self._key, None)
                os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    def _forget(self) -> None:
        """In a forked child: the lock is the parent's; only the descriptor came along."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):
                os.close(fd)


def holder_of(root: str | os.PathLike[str]) -> str | None:
    """Say who saves into a root, or None when nobody does or it cannot be told.

    Raises:
        StorageError: The lock cannot be looked at.
    """
    path = roots.private_directory(root) / LOCK_NAME
    with _registry_lock:
        held = _held_at(path)
        if held is not None:
            return _this_process()
        try:
            fd = _open(path, os.O_RDONLY)
        except StorageError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                return None
            raise
        try:
            return _describe(fd) if _pid_of_holder(fd) is not None else None
        finally:
            os.close(fd)


def _open(path: Path, flags: int) -> int:
    try:
        return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        raise storage_error_from(error, op="open", path=path) from error


def _held_at(path: Path) -> RootLock | None:
    """Give the lock of this process on a file, without opening it: closing it again would free."""
    try:
        return _held.get(_key_of(path.stat()))
    except OSError:
        return None


def _take(fd: int, root: Path, path: Path) -> bool:
    """Lock an open file; gives False where the file system has no locks.

    Raises:
        RootLockedError: Somebody has it.
    """
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            raise _locked_error(root, _describe(fd)) from error
        if error.errno not in _NO_LOCKS:
            raise storage_error_from(error, op="fcntl", path=path) from error
        warn_once(
            f"no record locks {os.fstat(fd).st_dev}",
            f"{root} cannot be locked: {os.strerror(error.errno or 0)}. Nothing keeps a second "
            "trainer from saving into it; see to it that there is none.",
            stacklevel=4,
        )
        return False
    return True


def _locked_error(root: Path, holder: str) -> RootLockedError:
    return RootLockedError(
        f"{root} is in use by {holder}. One trainer at a time may save into a root: end that one, "
        "or choose another root.",
        path=root,
        holder=holder,
    )


def _write_holder(fd: int) -> None:
    """Write who holds the lock; a full disk does not make it less held."""
    holder = {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "since": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": " ".join(sys.orig_argv)[:_COMMAND_MAX],
    }
    with contextlib.suppress(OSError):
        os.ftruncate(fd, 0)
        files.write_all(fd, json.dumps(holder).encode() + b"\n")


def _describe(fd: int) -> str:
    """Say who holds the lock of an open file, by the kernel and by what the holder wrote."""
    pid = _pid_of_holder(fd)
    written = _read_holder(fd)
    if written is None:
        return f"process {pid}" if pid else "another process"
    text = (
        f"process {written['pid']} on {written['host']}, since {written['since']} "
        f"({written['command']})"
    )
    # The kernel tells 0 or less of processes elsewhere, and another number across containers.
    return text if not pid or pid == written["pid"] else f"process {pid}, by its own account {text}"


def _pid_of_holder(fd: int) -> int | None:
    """Ask the kernel who keeps us from the lock; None for nobody, 0 where it does not tell."""
    wanted = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    try:
        kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, wanted))
    except OSError:
        return None
    return None if kind == fcntl.F_UNLCK else max(0, pid)


def _read_holder(fd: int) -> dict[str, Any] | None:
    try:
        holder = json.loads(os.pread(fd, _HOLDER_MAX_BYTES, 0))
        return {name: holder[name] for name in ("pid", "host", "since", "command")}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _this_process() -> str:
    return f"this process ({os.getpid()})"


def _key_of(info: os.stat_result) -> tuple[int, int]:
    return info.st_dev, info.st_ino


def _forget_all() -> None:
    """A forked child holds no record lock; the parent's registry lock may be held for ever."""
    global _registry_lock  # noqa: PLW0603
    _registry_lock = threading.RLock()
    while _held:
        _held.popitem()[1]._forget()


os.register_at_fork(after_in_child=_forget_all)
