"""The only read path: open what a caller names, and index it."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import stat
import tempfile
from collections.abc import Iterator
from typing import BinaryIO

from gdsckpt import tracing
from gdsckpt.errors import (
    CheckpointNotFoundError,
    ConfigError,
    FormatError,
    StorageError,
    storage_error_from,
)
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
        FormatError: It has some of our marks but not all, or its structures are damaged; it is a
            device; or, with ``dir_fd``, no plain file.
    """
    shown = os.fspath(path)
    flags = os.O_RDONLY | os.O_CLOEXEC
    if dir_fd is not None:  # a pipe in the place of a shard would wait for a writer
        flags |= os.O_NOFOLLOW | os.O_NONBLOCK
        shown = os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), shown)  # noqa: PTH115, PTH118
    try:
        fd = os.open(path, flags, dir_fd=dir_fd)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise _not_found(shown, os.strerror(error.errno or errno.ENOENT)) from error
    except OSError as error:
        if dir_fd is not None and error.errno in (errno.ELOOP, errno.ENXIO):
            raise _no_plain_file(shown) from error
        raise storage_error_from(error, op="open", path=shown) from error
    try:
        mode = os.fstat(fd).st_mode
        if stat.S_ISDIR(mode):
            raise _not_found(shown, "it is a directory without a manifest.json")
        if not stat.S_ISREG(mode):
            if dir_fd is not None or not stat.S_ISFIFO(mode):  # /dev/zero would never end
                raise _no_plain_file(shown)
            with os.fdopen(os.dup(fd), "rb") as source:
                spooled = _spool(source, shown)
            os.close(fd)
            fd = spooled
        with files.transfers_on(fd, shown, writable=False, direct_io=direct_io) as file:
            yield _index(file)
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
            yield _index(file)
    finally:
        os.close(fd)


def _own_descriptor(source: BinaryIO) -> int | None:
    """Open a real file again.

    None for all else, such as a GzipFile: what its descriptor reads is not its content.
    """
    raw = getattr(source, "raw", source)
    if type(raw) is not io.FileIO or type(source) not in _PLAIN_FILES:
        return None
    try:
        fd = source.fileno()
        if source.tell() == 0 and stat.S_ISREG(os.fstat(fd).st_mode):
            return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None
    return None


_PLAIN_FILES = (io.FileIO, io.BufferedReader, io.BufferedRandom)


def _spool(source: BinaryIO, path: str) -> int:
    """Copy a stream to an unnamed temporary file; gives a descriptor that the caller closes."""
    where = files.temporary_directory()
    try:
        copy = tempfile.TemporaryFile(prefix=files.TEMPORARY_PREFIX, buffering=0, dir=where)  # noqa: SIM115
    except OSError as error:
        raise storage_error_from(error, op="open", path=where) from error
    with copy:
        while piece := _next_piece(source, path):
            try:
                files.append_all(copy.fileno(), piece)
            except OSError as error:
                raise storage_error_from(
                    error, op="write", path=where, nbytes=len(piece)
                ) from error
        return os.dup(copy.fileno())


def _next_piece(source: BinaryIO, path: str) -> bytes:
    """Read the next bytes of a stream; none at its end.

    Raises:
        StorageError: It failed, or had nothing to give yet.
        ConfigError: It gives something else than bytes.
    """
    try:
        piece: object = source.read(_SPOOL_BYTES)
    except OSError as error:
        raise storage_error_from(error, op="read", path=path) from error
    if piece is None:
        raise StorageError(
            f"read of {path} gave nothing yet. Use a blocking file object.", op="read", path=path
        )
    if not isinstance(piece, (bytes, bytearray, memoryview)):
        raise ConfigError(
            f"{path} gave {type(piece).__name__} where bytes were read. Open it in binary mode.",
            field="f",
        )
    return bytes(piece)


_SPOOL_BYTES = 1 << 20


def _no_plain_file(path: str) -> FormatError:
    return FormatError(
        f"{path} is no checkpoint: it is a link or a device, not a file. Pass a file that "
        "torch.save or gdsckpt.save wrote.",
        path=path,
        offset=0,
    )


def _index(file: files.OpenFile) -> Shard:
    with tracing.stage("plan"):
        return index_file(file)


def _not_found(path: str, why: str) -> CheckpointNotFoundError:
    return CheckpointNotFoundError(
        f"no checkpoint at {path}: {why}. Check the path; 'gdsckpt ls DIR' lists what is there.",
        path=path,
    )
