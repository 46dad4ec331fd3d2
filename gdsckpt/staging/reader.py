"""The only read path: open what a caller names, and index it."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from typing import BinaryIO

from gdsckpt.errors import CheckpointNotFoundError, storage_error_from
from gdsckpt.staging import files
from gdsckpt.staging.indexing import index_file
from gdsckpt.staging.shard import Shard


@contextlib.contextmanager
def open_shard(
    path: str | os.PathLike[str], *, direct_io: str = "auto", dir_fd: int | None = None
) -> Iterator[Shard]:
    """Open and index a file for as long as the block lasts.

    What is no regular file (a pipe, a device) is first copied to an unnamed temporary file.

    Args:
        path: The file; with ``dir_fd``, a plain name in that directory, links not followed.
        direct_io: ``"auto"`` or ``"off"``.
        dir_fd: Descriptor of the checkpoint directory, if the file belongs to one.

    Raises:
        CheckpointNotFoundError: There is no such file, or it is a directory.
        StorageError: It cannot be opened or read.
        FormatError: It has some of our marks but not all, or its structures are damaged.
    """
    shown = os.fspath(path)
    flags = os.O_RDONLY | os.O_CLOEXEC | (0 if dir_fd is None else os.O_NOFOLLOW)
    try:
        fd = os.open(path, flags, dir_fd=dir_fd)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise _not_found(shown, os.strerror(error.errno or errno.ENOENT)) from error
    except OSError as error:
        raise storage_error_from(error, op="open", path=shown) from error
    try:
        mode = os.fstat(fd).st_mode
        if stat.S_ISDIR(mode):
            raise _not_found(shown, "it is a directory without a manifest.json")
        if not stat.S_ISREG(mode):
            with os.fdopen(os.dup(fd), "rb") as source:
                spooled = _spool(source, shown)
            os.close(fd)
            fd = spooled
        with files.transfers_on(fd, shown, writable=False, direct_io=direct_io) as file:
            yield index_file(file)
    finally:
        os.close(fd)


@contextlib.contextmanager
def open_stream(source: BinaryIO, *, direct_io: str = "auto") -> Iterator[Shard]:
    """Index what a binary file object holds from its current position on.

    A real file at its beginning is read through its own descriptor; anything else is first copied
    to an unnamed temporary file, since it may not be seekable and cannot be read in parallel.
    """
    shown = str(getattr(source, "name", "")) or f"<{type(source).__name__}>"
    fd = _own_descriptor(source)
    if fd is None:
        fd = _spool(source, shown)
    try:
        with files.transfers_on(fd, shown, writable=False, direct_io=direct_io) as file:
            yield index_file(file)
    finally:
        os.close(fd)


def _own_descriptor(source: BinaryIO) -> int | None:
    try:
        fd = source.fileno()
        if source.tell() == 0 and stat.S_ISREG(os.fstat(fd).st_mode):
            return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    except (OSError, AttributeError, ValueError):
        return None
    return None


def _spool(source: BinaryIO, path: str) -> int:
    """Copy a stream to an unnamed temporary file; gives a descriptor that the caller closes."""
    try:
        with tempfile.TemporaryFile(prefix=files.TEMPORARY_PREFIX) as copy:
            shutil.copyfileobj(source, copy, 1 << 20)
            copy.flush()
            return os.dup(copy.fileno())
    except OSError as error:
        raise storage_error_from(error, op="read", path=path) from error


def _not_found(path: str, why: str) -> CheckpointNotFoundError:
    return CheckpointNotFoundError(
        f"no checkpoint at {path}: {why}. Check the path; 'gdsckpt ls DIR' lists what is there.",
        path=path,
    )
