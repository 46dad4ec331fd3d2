"""Errors of checkpoints: what is in them, and whether they are there."""

import errno as _errno
import os
import pickle
from collections.abc import Iterable, Mapping

from gdsckpt.errors.base import GdsckptError, StrPath, path_text


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
        self.path = path_text(path)
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


class UnpickleError(FormatError, pickle.UnpicklingError):
    """A checkpoint's pickle, whole as it is, cannot be rebuilt here: a class is missing, or fails.

    No sign of damage: another copy has the same pickle.
    """


class CheckpointNotFoundError(GdsckptError, FileNotFoundError):
    """There is no complete checkpoint where one was asked for.

    Attributes:
        path: Where it was looked for, or None.
    """

    def __init__(self, message: str, *, path: StrPath | None = None) -> None:
        super().__init__(message)
        self.path = path_text(path)
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
        self.path = path_text(path)
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


class SnapshotBusyError(GdsckptError, RuntimeError):
    """No slot was free for a snapshot, and the setting ``snapshot_policy`` says not to wait.

    Attributes:
        step: The step that was not saved, or None.
    """

    retryable = True

    def __init__(self, message: str, *, step: int | None = None) -> None:
        super().__init__(message)
        self.step = step


class RootLockedError(GdsckptError, BlockingIOError):
    """Another trainer saves into this root.

    Attributes:
        path: The root, or None.
        holder: Who has it, such as ``process 4711 on node-3, since 2026-01-31T12:00:00+00:00``.
    """

    def __init__(
        self, message: str, *, path: StrPath | None = None, holder: str | None = None
    ) -> None:
        super().__init__(message)
        self.path = path_text(path)
        self.holder = holder
        self.errno = _errno.EAGAIN
        self.strerror = os.strerror(_errno.EAGAIN)
        self.filename = self.path
