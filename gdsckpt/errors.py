"""Every exception and warning that a public function of gdsckpt raises.

Each class keeps the builtin parent that a caller would expect (a missing checkpoint is a
``FileNotFoundError``, a full disk an ``OSError`` with its ``errno``), carries its facts as named
fields, and survives ``pickle`` and ``copy``: torch.distributed.checkpoint sends the exception of
each rank to the coordinator that way.
"""

import errno as _errno
import inspect
import os
import pickle
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

StrPath = str | os.PathLike[str]


def _path_text(path: StrPath | None) -> str | None:
    return None if path is None else os.fspath(path)


def _rebuild(cls: "type[GdsckptError]", message: str, fields: dict[str, Any]) -> "GdsckptError":
    return cls(message, **fields)


class GdsckptError(Exception):
    """Base of all errors of gdsckpt.

    The keyword-only parameters of a class's constructor are its fields: each is an attribute of
    that name, and all are rebuilt by ``pickle`` and ``copy`` together with the notes added by
    ``add_note``.

    Attributes:
        retryable: True when the same call may succeed later without a change by the caller.
        field_names: Names of the fields of this class, in the order of its constructor.
    """

    retryable: bool = False
    field_names: ClassVar[tuple[str, ...]] = ()

    def __init__(self, message: str) -> None:
        """Make the error; ``message`` says what failed, why, and what to do."""
        super().__init__(message)

    def __init_subclass__(cls, **kwargs: object) -> None:
        """Read the field names off the constructor, so that they are declared once."""
        super().__init_subclass__(**kwargs)
        parameters = inspect.signature(cls.__init__).parameters.values()
        cls.field_names = tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)

    def __str__(self) -> str:
        """Give the message; ``OSError`` would print errno and file name in its place."""
        return str(self.args[0]) if self.args else ""

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of this error by name."""
        return {name: getattr(self, name) for name in self.field_names}

    def __reduce__(self) -> tuple[Any, ...]:
        """Rebuild from message and fields; ``Exception.__reduce__`` drops keyword arguments."""
        state = dict(self.__dict__)
        if "__notes__" in state:
            # A shared list would let a note on a copy appear on the original.
            state["__notes__"] = list(state["__notes__"])
        return _rebuild, (type(self), str(self), self.fields), state


class ConfigError(GdsckptError, ValueError):
    """A setting or an argument has a value that cannot be used.

    Attributes:
        field: Name of the setting or argument, or None.
    """

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


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
        self.path = _path_text(path)
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
        self.path = _path_text(path)
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


class FormatError(GdsckptError, ValueError):
    """A file is not a checkpoint, or is a damaged one.

    Attributes:
        path: The file, or None.
        offset: Byte offset of what is wrong, or None.
    """

    def __init__(
        self, message: str, *, path: StrPath | None = None, offset: int | None = None
    ) -> None:
        super().__init__(message)
        self.path = _path_text(path)
        self.offset = offset


class UnsupportedVersionError(FormatError):
    """A file was written by a version of the format that this release cannot read.

    Attributes:
        found: Version in the file, or None.
        supported: Newest version that this release reads, or None.
    """

    def __init__(
        self,
        message: str,
        *,
        path: StrPath | None = None,
        offset: int | None = None,
        found: int | None = None,
        supported: int | None = None,
    ) -> None:
        super().__init__(message, path=path, offset=offset)
        self.found = found
        self.supported = supported


class ChecksumError(FormatError):
    """Bytes differ from the checksum that was stored when they were written.

    Attributes:
        shard: Name of the shard in its checkpoint, or None for a single file.
        fqn: Fully qualified name of the damaged tensor, or None if there is none or it is unknown.
        record: Name of the record in the file, or None.
        expected: CRC32 that is stored, or None.
        actual: CRC32 of the bytes read, or None.
    """

    def __init__(
        self,
        message: str,
        *,
        path: StrPath | None = None,
        offset: int | None = None,
        shard: str | None = None,
        fqn: str | None = None,
        record: str | None = None,
        expected: int | None = None,
        actual: int | None = None,
    ) -> None:
        super().__init__(message, path=path, offset=offset)
        self.shard = shard
        self.fqn = fqn
        self.record = record
        self.expected = expected
        self.actual = actual


class UnsafePickleError(FormatError, pickle.UnpicklingError):
    """A checkpoint's pickle asks for something that ``weights_only=True`` does not allow."""


class CheckpointNotFoundError(GdsckptError, FileNotFoundError):
    """There is no complete checkpoint where one was asked for.

    Attributes:
        path: Where it was looked for, or None.
    """

    def __init__(self, message: str, *, path: StrPath | None = None) -> None:
        super().__init__(message)
        self.path = _path_text(path)
        self.errno = _errno.ENOENT
        self.strerror = os.strerror(_errno.ENOENT)
        self.filename = self.path


class CheckpointExistsError(GdsckptError, FileExistsError):
    """There is a checkpoint already, and it was not to be replaced.

    Attributes:
        path: The checkpoint that is there, or None.
    """

    def __init__(self, message: str, *, path: StrPath | None = None) -> None:
        super().__init__(message)
        self.path = _path_text(path)
        self.errno = _errno.EEXIST
        self.strerror = os.strerror(_errno.EEXIST)
        self.filename = self.path


class StateMismatchError(GdsckptError, RuntimeError):
    """A checkpoint and the state to load it into do not have the same tensors.

    Attributes:
        missing: Names that the state has and the checkpoint lacks.
        unexpected: Names that the checkpoint has and the state lacks.
        shapes: Name to (shape in the checkpoint, shape in the state), where they differ.
    """

    def __init__(
        self,
        message: str,
        *,
        missing: Iterable[str] = (),
        unexpected: Iterable[str] = (),
        shapes: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]] | None = None,
    ) -> None:
        super().__init__(message)
        self.missing = tuple(missing)
        self.unexpected = tuple(unexpected)
        self.shapes = dict(shapes or {})


class TimeoutExpiredError(GdsckptError, TimeoutError):
    """Something did not come within its time.

    Attributes:
        what: What was waited for, or None.
        timeout_s: Seconds waited, or None.
    """

    def __init__(
        self, message: str, *, what: str | None = None, timeout_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.what = what
        self.timeout_s = timeout_s
        self.errno = _errno.ETIMEDOUT
        self.strerror = os.strerror(_errno.ETIMEDOUT)


class TornSnapshotError(GdsckptError, RuntimeError):
    """Tensors changed while they were being saved; nothing was committed.

    Attributes:
        names: Names of the tensors that changed.
    """

    def __init__(self, message: str, *, names: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.names = tuple(names)


class StoreError(GdsckptError):
    """An object store refused an operation, or could not be reached.

    Attributes:
        op: The operation, a method of ``gdsckpt.store.base.Store``, or None.
        key: Key of the object, or None.
        attempts: How often it was tried.
        status: HTTP status of the answer, or None where there was none.
        code: Error code of S3, such as ``SlowDown``, or None.
        retryable: Whether the same call may succeed later.
    """

    def __init__(
        self,
        message: str,
        *,
        op: str | None = None,
        key: str | None = None,
        attempts: int = 1,
        status: int | None = None,
        code: str | None = None,
        retryable: bool = False,
    ) -> None:
        super().__init__(message)
        self.op = op
        self.key = key
        self.attempts = attempts
        self.status = status
        self.code = code
        self.retryable = retryable


class ObjectNotFoundError(StoreError, FileNotFoundError):
    """There is no such object, or no such bucket."""

    def __init__(
        self,
        message: str,
        *,
        op: str | None = None,
        key: str | None = None,
        attempts: int = 1,
        status: int | None = None,
        code: str | None = None,
        retryable: bool = False,
    ) -> None:
        super().__init__(
            message,
            op=op,
            key=key,
            attempts=attempts,
            status=status,
            code=code,
            retryable=retryable,
        )
        self.errno = _errno.ENOENT
        self.strerror = os.strerror(_errno.ENOENT)
        self.filename = key


class AccessDeniedError(StoreError, PermissionError):
    """The credentials for an object store are missing, wrong or expired, or allow too little."""

    def __init__(
        self,
        message: str,
        *,
        op: str | None = None,
        key: str | None = None,
        attempts: int = 1,
        status: int | None = None,
        code: str | None = None,
        retryable: bool = False,
    ) -> None:
        super().__init__(
            message,
            op=op,
            key=key,
            attempts=attempts,
            status=status,
            code=code,
            retryable=retryable,
        )
        self.errno = _errno.EACCES
        self.strerror = os.strerror(_errno.EACCES)
        self.filename = key


class GdsckptWarning(UserWarning):
    """Base of all warnings of gdsckpt."""


class FallbackWarning(GdsckptWarning):
    """The user gets less than was asked for; the text says what and why."""


class UnverifiedWarning(GdsckptWarning):
    """A file carries no checksums, so its bytes cannot be checked."""


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
