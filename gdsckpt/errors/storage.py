"""Errors of files, engines and devices."""

import errno as _errno
import os
from collections.abc import Iterable

from gdsckpt.errors.base import GdsckptError, StrPath, path_text


class EngineUnavailableError(GdsckptError):
    """The engine that was asked for cannot be used here.

    Attributes:
        engine: Name of the engine, or None.
        reasons: Why not, one sentence each.
    """

    def __init__(
        self, message: str, *, engine: str | None = None, reasons: Iterable[str] = ()
    ) -> None:
        super().__init__(message)
        self.engine = engine
        self.reasons = tuple(reasons)


class StorageError(GdsckptError, OSError):
    """The operating system refused an operation on a file.

    ``errno``, ``strerror`` and ``filename`` are those of ``OSError``.

    Attributes:
        op: The operation, such as ``pwrite`` or ``fsync``.
        path: The file, or None.
        offset: Byte offset in the file, or None.
        nbytes: Bytes asked for, or None.
        errno: Error number of the operating system, or None.
    """

    def __init__(
        self,
        message: str,
        *,
        op: str | None = None,
        path: StrPath | None = None,
        offset: int | None = None,
        nbytes: int | None = None,
        errno: int | None = None,
    ) -> None:
        super().__init__(message)
        self.op = op
        self.path = path_text(path)
        self.offset = offset
        self.nbytes = nbytes
        self.errno = errno
        self.strerror = message if errno is None else os.strerror(errno)
        self.filename = self.path


class ShortTransferError(StorageError):
    """Fewer bytes were moved than asked for, and no further progress was made.

    Attributes:
        expected_bytes: Bytes that had to be moved, or None.
        actual_bytes: Bytes that were moved, or None.
    """

    def __init__(
        self,
        message: str,
        *,
        op: str | None = None,
        path: StrPath | None = None,
        offset: int | None = None,
        nbytes: int | None = None,
        errno: int | None = None,
        expected_bytes: int | None = None,
        actual_bytes: int | None = None,
    ) -> None:
        super().__init__(message, op=op, path=path, offset=offset, nbytes=nbytes, errno=errno)
        self.expected_bytes = expected_bytes
        self.actual_bytes = actual_bytes


class CuFileError(GdsckptError):
    """cuFile refused an operation, and the pinned path could not take it over.

    Attributes:
        op: The function, such as ``cuFileWrite``, or None.
        path: The file, or None.
        offset: Byte offset in the file, or None.
        nbytes: Bytes asked for, or None.
        code: ``CUfileOpError`` of cufile.h, 5001 and above, or None.
    """

    def __init__(
        self,
        message: str,
        *,
        op: str | None = None,
        path: StrPath | None = None,
        offset: int | None = None,
        nbytes: int | None = None,
        code: int | None = None,
    ) -> None:
        super().__init__(message)
        self.op = op
        self.path = path_text(path)
        self.offset = offset
        self.nbytes = nbytes
        self.code = code


class CudaError(GdsckptError):
    """CUDA refused an operation: a device was lost, memory was freed, an address is no device's.

    Attributes:
        op: The function of the driver API, such as ``cuMemcpyDtoHAsync``, or None.
        code: Its ``CUresult``, or None.
    """

    def __init__(self, message: str, *, op: str | None = None, code: int | None = None) -> None:
        super().__init__(message)
        self.op = op
        self.code = code


# The native engine gives the same advice for the errors that both meet (csrc/core/error.cpp).
_ADVICE = {
    _errno.ENOSPC: "Free space on the file system or save elsewhere.",
    _errno.EDQUOT: "Free space of this user, raise the quota or save elsewhere.",
    _errno.EROFS: "Mount the file system writable or save elsewhere.",
    _errno.EACCES: "Check the owner and mode of the file and of each directory above it.",
    _errno.EPERM: "Check the owner, mode and attributes of the file and of its directory.",
    _errno.EIO: (
        "The device or the connection to it failed: look at the kernel log and use another."
    ),
    _errno.ENOENT: "Check the path: the file or a directory above it does not exist.",
    _errno.ENOTDIR: "A part of the path is a file: check the path.",
    _errno.EISDIR: "The path is a directory: give the path of a file.",
    _errno.ELOOP: "Symbolic links lead in a circle: check the path.",
    _errno.ENAMETOOLONG: "Use a shorter path.",
    _errno.EMFILE: "Close files or raise the limit of open files (ulimit -n).",
    _errno.ENFILE: "Close files on this machine or raise fs.file-max.",
    _errno.EFBIG: "Raise the file size limit (ulimit -f) or use a file system with larger files.",
    _errno.ESTALE: "The network file system lost the file: mount it again and retry.",
    _errno.EBUSY: "Wait until the file is no longer in use, or save elsewhere.",
}


def storage_error_from(
    exc: OSError,
    *,
    op: str,
    path: StrPath,
    offset: int | None = None,
    nbytes: int | None = None,
) -> StorageError:
    """Give the StorageError that says what an ``OSError`` of a system call means.

    The text has the form of the native engine's: what failed, why, and what to do where the error
    number tells.

    Args:
        exc: The error as Python raised it; the caller raises the result ``from`` it.
        op: The operation, such as ``open`` or ``fsync``.
        path: The file, or the directory of a directory operation.
        offset: Byte offset in the file, if the operation has one.
        nbytes: Bytes asked for, if the operation has them.

    Returns:
        The error, not raised; whether ENOENT means CheckpointNotFoundError is for the caller.
    """
    what = op if nbytes is None else f"{op} of {nbytes} bytes"
    if offset is not None:
        what += f" at offset {offset}"
    preposition = "of" if what == op else "in"
    if exc.errno is None:
        why, advice = f"{str(exc) or type(exc).__name__}.", ""
    else:
        why, advice = f"{os.strerror(exc.errno)} (errno {exc.errno}).", _ADVICE.get(exc.errno, "")
    message = f"{what} {preposition} {os.fspath(path)} failed: {why} {advice}".rstrip()
    return StorageError(message, op=op, path=path, offset=offset, nbytes=nbytes, errno=exc.errno)
