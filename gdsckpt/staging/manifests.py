"""The manifest of a checkpoint directory: reading it, and keeping the checkpoint meanwhile."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from gdsckpt.errors import CheckpointNotFoundError, FormatError, storage_error_from
from gdsckpt.format import manifest as manifest_format
from gdsckpt.format.manifest import MANIFEST_MAX_BYTES, MANIFEST_NAME, Manifest
from gdsckpt.staging import files


def read_manifest(directory: str | os.PathLike[str]) -> Manifest:
    """Read and check the manifest of a directory.

    Raises:
        CheckpointNotFoundError: There is none: the directory is no checkpoint, or not yet.
        FormatError: It is damaged.
    """
    return decode_manifest(directory, read_raw_manifest(directory))


def decode_manifest(directory: str | os.PathLike[str], raw: bytes) -> Manifest:
    """Check the manifest of a directory, as it was read.

    Raises:
        FormatError: It is damaged.
    """
    return manifest_format.decode(raw, str(Path(directory) / MANIFEST_NAME))


def read_raw_manifest(directory: str | os.PathLike[str]) -> bytes:
    """Read the manifest of a directory as it stands.

    Raises:
        CheckpointNotFoundError: There is none.
        FormatError: It is larger than any manifest.
    """
    with _open_manifest(directory) as fd:
        return _read_all(fd, Path(directory) / MANIFEST_NAME)


@contextlib.contextmanager
def being_read(directory: str | os.PathLike[str]) -> Iterator[bytes]:
    """Keep a checkpoint from being pruned while the block lasts; a save may replace it meanwhile.

    The manifest is locked, not the directory, which is what saves lock: readers never wait for
    those. Where the file system has no locks, nothing is kept.

    Yields:
        The manifest as it stands.

    Raises:
        CheckpointNotFoundError: There is none.
        FormatError: It is larger than any manifest.
    """
    path = Path(directory) / MANIFEST_NAME
    while True:
        with _open_manifest(directory) as fd, files.kept_from_children(fd):
            with contextlib.suppress(OSError):
                fcntl.flock(fd, fcntl.LOCK_SH)
            if not is_at(path, fd):
                continue  # it was replaced or pruned while we waited for the lock
            yield _read_all(fd, path)
            return


def is_at(path: Path, fd: int) -> bool:
    """Tell whether a path still names an open file."""
    try:
        named = path.stat()
    except OSError:
        return False
    return os.path.samestat(named, os.fstat(fd))


@contextlib.contextmanager
def _open_manifest(directory: str | os.PathLike[str]) -> Iterator[int]:
    path = Path(directory) / MANIFEST_NAME
    try:
        # Not blocking: what has this name may be a pipe.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise CheckpointNotFoundError(
            f"no checkpoint at {directory}: it has no {MANIFEST_NAME}, so no save into it was "
            "completed. 'gdsckpt ls' lists what is there.",
            path=str(directory),
        ) from error
    except OSError as error:
        raise storage_error_from(error, op="open", path=str(path)) from error
    try:
        yield fd
    finally:
        os.close(fd)


def _read_all(fd: int, path: Path) -> bytes:
    try:
        with os.fdopen(fd, "rb", closefd=False) as file:
            raw = file.read(MANIFEST_MAX_BYTES + 1)
    except OSError as error:
        raise storage_error_from(error, op="read", path=str(path)) from error
    if len(raw) > MANIFEST_MAX_BYTES:
        raise FormatError(
            f"{path} is larger than {MANIFEST_MAX_BYTES} bytes, which no manifest is. Use another "
            "checkpoint.",
            path=str(path),
            offset=0,
        )
    return raw
