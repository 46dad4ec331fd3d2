"""Files of the local store: written beside their name, made durable, renamed into place."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import logging
import os
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gdsckpt.errors import storage_error_from

logger = logging.getLogger(__name__)

PREFIX = ".gdsckpt-store-"
"""Names of what is being written; never an object."""

_ATTRIBUTE = "user.gdsckpt.object"
# File systems without extended attributes, or with too little room for these.
_NO_ATTRIBUTES = (errno.ENOTSUP, errno.ENODATA, errno.EPERM, errno.ENOSPC, errno.E2BIG)
# copy_file_range refuses some pairs of files that read and write serve. Source: its man page.
_NO_COPY_FILE_RANGE = (
    errno.EXDEV,
    errno.EINVAL,
    errno.EOPNOTSUPP,
    errno.ENOSYS,
    errno.EBADF,
)
_COPY_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Attributes:
    """What is known of an object beside its bytes.

    Attributes:
        crc32: CRC-32 of the bytes, or None.
        metadata: As ``ObjectInfo``.
    """

    crc32: int | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)


def etag_of(status: os.stat_result) -> str:
    """Give what tells this file from others that had its name."""
    return f'"{status.st_ino:x}-{status.st_size:x}-{status.st_mtime_ns:x}"'


def write_attributes(fd: int, attributes: Attributes) -> None:
    """Keep the attributes with the file, where the file system can.

    Size and time of the file are kept with them, so that they end with a change of it.
    """
    status = os.fstat(fd)
    document = {
        "nbytes": status.st_size,
        "mtime_ns": status.st_mtime_ns,
        "crc32": attributes.crc32,
        "metadata": dict(attributes.metadata),
    }
    try:
        os.setxattr(fd, _ATTRIBUTE, json.dumps(document).encode())
    except OSError as error:
        if error.errno not in _NO_ATTRIBUTES:
            raise
        logger.debug("no attributes kept fd=%d errno=%s", fd, error.errno)


def read_attributes(fd: int, status: os.stat_result) -> Attributes:
    """Give the attributes of an open file; none where they are missing or of other bytes."""
    try:
        document: Any = json.loads(os.getxattr(fd, _ATTRIBUTE))
        if (document["nbytes"], document["mtime_ns"]) != (status.st_size, status.st_mtime_ns):
            return Attributes()
        metadata = {str(name): str(value) for name, value in document["metadata"].items()}
        crc32 = document["crc32"]
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return Attributes()
    return Attributes(crc32 if isinstance(crc32, int) else None, metadata)


@contextlib.contextmanager
def locked_directory(directory: Path) -> Iterator[int]:
    """Hold the lock under which names in a directory change hands, for as long as the block lasts.

    Yields:
        Descriptor of the directory.
    """
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
        except OSError as error:
            # Without locks two conditional puts at the same time may both succeed.
            logger.debug("no lock on %s errno=%s", directory, error.errno)
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def temporary_file(target: Path) -> Iterator[tuple[int, Path]]:
    """Make a locked temporary file beside ``target``; it is gone after the block unless renamed.

    Files that killed processes left for the same target go first.

    Yields:
        (descriptor open for reading and writing, path).
    """
    stem = f"{PREFIX}put-{hashlib.blake2b(os.fsencode(target.name), digest_size=8).hexdigest()}-"
    _remove_leftovers(target.parent, stem)
    while True:
        path = target.parent / f"{stem}{secrets.token_hex(8)}"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            with contextlib.suppress(OSError):
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.fstat(fd).st_nlink:
                continue  # another put took it for a leftover before it was locked
            yield fd, path
            return
        finally:
            os.close(fd)
            with contextlib.suppress(FileNotFoundError):
                path.unlink()


def _remove_leftovers(directory: Path, stem: str) -> None:
    for path in directory.glob(f"{stem}*"):
        with contextlib.suppress(OSError):
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
                logger.warning("removed %s, left by a process that was killed", path)
            finally:
                os.close(fd)


def write_all(fd: int, body: memoryview) -> None:
    """Write all bytes at the descriptor's position; short writes are continued."""
    rest = body.cast("B")
    while rest.nbytes:
        rest = rest[os.write(fd, rest) :]


def read_all(fd: int, begin: int, into: memoryview) -> int:
    """Read until ``into`` is full or the file ends.

    Returns:
        Bytes read.
    """
    rest = into.cast("B")
    done = 0
    while done < rest.nbytes:
        got = os.preadv(fd, [rest[done:]], begin + done)
        if got == 0:
            break
        done += got
    return done


def append_file(fd: int, source: Path) -> None:
    """Append a file's bytes at the descriptor's position, shared where the file system can."""
    source_fd = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while True:
            try:
                if os.copy_file_range(source_fd, fd, _COPY_BYTES) == 0:
                    break
            except OSError as error:
                if error.errno not in _NO_COPY_FILE_RANGE:
                    raise
                _append_by_reading(fd, source_fd)
                break
    finally:
        os.close(source_fd)


def _append_by_reading(fd: int, source_fd: int) -> None:
    while raw := os.read(source_fd, 1 << 20):
        write_all(fd, memoryview(raw))


def sync_directory(fd: int) -> None:
    """Make the names in an open directory durable."""
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network file systems cannot sync a directory
            raise


def make_directories(directory: Path, *, fsync: bool) -> None:
    """Make a directory and those above it, durably."""
    missing = []
    while not directory.is_dir():
        missing.append(directory)
        if directory.parent == directory:
            break
        directory = directory.parent
    for each in reversed(missing):
        try:
            each.mkdir(exist_ok=True)
        except OSError as error:
            raise storage_error_from(error, op="mkdir", path=str(each)) from error
        if fsync:
            with locked_directory(each.parent) as fd:
                sync_directory(fd)
