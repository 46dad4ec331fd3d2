"""A local file as the source of an upload: its bytes, their checksums, and whether they stay."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import mmap
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gdsckpt import native
from gdsckpt.engine import base
from gdsckpt.errors import CheckpointNotFoundError, StorageError, storage_error_from
from gdsckpt.remote.crew import Crew, Work
from gdsckpt.remote.objects import Buffers
from gdsckpt.remote.parts import FileCrcs, Part
from gdsckpt.staging import files, indexing
from gdsckpt.staging.shard import Shard, read_at

FOREIGN_CHUNK_BYTES = 16 << 20
"""Files without a chunk table are cut and checksummed in chunks of this size."""

_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class SourceFile:
    """An open file that is uploaded.

    Attributes:
        path: For messages.
        fd: Its descriptor.
        nbytes: Its size.
        modified_ns: When it was changed last.
        crcs: Checksums of all of it.
        is_named: Whether ``path`` leads to it, and has to until the end.
        mapping: Its bytes; None where it has none.
    """

    path: str
    fd: int
    nbytes: int
    modified_ns: int
    crcs: FileCrcs
    is_named: bool
    mapping: mmap.mmap | None

    def view(self, part: Part) -> memoryview:
        """Give the bytes of a part, which are read from the file when they are looked at.

        A file that is cut short meanwhile (not replaced, which is safe) ends the process with
        SIGBUS where they are looked at by anything but the kernel.
        """
        if self.mapping is None:
            return memoryview(b"")
        return memoryview(self.mapping)[part.file_offset : part.end_offset]

    def read_ahead(self, part: Part) -> None:
        """Have the drive read a part in large requests; page faults would ask for small ones."""
        with contextlib.suppress(OSError):  # only advice
            os.posix_fadvise(self.fd, part.file_offset, part.nbytes, os.POSIX_FADV_WILLNEED)

    def release(self, part: Part) -> None:
        """Let go the memory that shows the bytes of a part; the page cache keeps them or not."""
        if self.mapping is not None:
            self.mapping.madvise(mmap.MADV_DONTNEED, part.file_offset, part.nbytes)

    def require_unchanged(self) -> None:
        """Refuse to go on with a file that is not what it was when it was opened.

        Raises:
            StorageError: It was written to, cut short, replaced or removed.
        """
        now = os.fstat(self.fd)
        why = ""
        if (now.st_size, now.st_mtime_ns) != (self.nbytes, self.modified_ns):
            why = "was changed"
        elif self.is_named and not self._is_still_named(now):
            why = "was replaced or removed"
        if why:
            raise StorageError(
                f"{self.path} {why} while it was uploaded, so what was sent is of no use. Upload "
                "it again when nobody writes to it.",
                op="upload",
                path=self.path,
            )

    def _is_still_named(self, own: os.stat_result) -> bool:
        try:
            named = Path(self.path).stat()
        except OSError:
            return False
        return os.path.samestat(named, own)


@contextlib.contextmanager
def open_source(
    path: str | os.PathLike[str], crew: Crew, *, progress: base.Progress | None = None
) -> Iterator[SourceFile]:
    """Open a file to upload it.

    Args:
        path: Any file; what is no regular file cannot be sent in parts.
        crew: Reads files without a chunk table, for their checksums.
        progress: Told about that.

    Raises:
        CheckpointNotFoundError: There is no such file.
        StorageError: It cannot be read, or is no regular file.
        FormatError: It is a damaged file of ours.
    """
    shown = files.local_path(path)
    try:
        fd = os.open(shown, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise CheckpointNotFoundError(
            f"nothing at {shown}: {os.strerror(error.errno or errno.ENOENT)}. Check the path.",
            path=shown,
        ) from error
    except OSError as error:
        raise storage_error_from(error, op="open", path=shown) from error
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise StorageError(
                f"{shown} is no regular file, and only those can be uploaded. Copy it to one.",
                op="upload",
                path=shown,
                errno=errno.EINVAL,
            )
        with files.transfers_on(fd, shown, writable=False, direct_io="off") as file:
            modified_ns = os.fstat(fd).st_mtime_ns
            crcs = _crcs_of_table(file) or _crcs_by_reading(file, crew, progress)
            found = source_of(file, crcs, is_named=True)
            yield dataclasses.replace(found, modified_ns=modified_ns)
    finally:
        os.close(fd)


def source_of(file: files.OpenFile, crcs: FileCrcs, *, is_named: bool) -> SourceFile:
    """Make an open regular file a source.

    Args:
        file: The file.
        crcs: Its checksums.
        is_named: Whether its path has to lead to it until the end.

    Raises:
        StorageError: It cannot be mapped.
    """
    status = os.fstat(file.fd)
    return SourceFile(
        path=file.path,
        fd=file.fd,
        nbytes=status.st_size,
        modified_ns=status.st_mtime_ns,
        crcs=crcs,
        is_named=is_named,
        mapping=_map(file.fd, file.path, status.st_size),
    )


def _map(fd: int, path: str, nbytes: int) -> mmap.mmap | None:
    if not nbytes:
        return None
    try:
        return mmap.mmap(fd, nbytes, access=mmap.ACCESS_READ)
    except OSError as error:
        raise storage_error_from(error, op="mmap", path=path, nbytes=nbytes) from error


def _crcs_of_table(file: files.OpenFile) -> FileCrcs | None:
    """Take the checksums of a file of ours from its chunk table; None for any other file."""
    if not indexing.has_our_marks(file):
        return None
    return crcs_of(indexing.index_file(file))


def crcs_of(shard: Shard) -> FileCrcs:
    """Take the checksums of an indexed file of ours from its chunk table.

    Raises:
        FormatError: It has none.
    """
    table = shard.read_table()
    return FileCrcs(
        table.chunk_bytes,
        table.covered_bytes,
        table.chunk_crc32,
        functools.partial(read_at, shard.fd, shard.path),
    )


def _crcs_by_reading(file: files.OpenFile, crew: Crew, progress: base.Progress | None) -> FileCrcs:
    nbytes = os.fstat(file.fd).st_size
    spans = [
        (n, offset, min(FOREIGN_CHUNK_BYTES, nbytes - offset))
        for n, offset in enumerate(range(0, nbytes, FOREIGN_CHUNK_BYTES))
    ]
    crcs = [0] * len(spans)
    buffers = Buffers(_READ_BYTES)
    work = Work(nbytes)

    def take(n: int, offset: int, length: int) -> None:
        crcs[n] = _crc_of_range(file, offset, length, buffers)
        work.advance(length)

    crew.start([functools.partial(take, *span) for span in spans], work)
    base.wait(work, progress)
    return FileCrcs(
        FOREIGN_CHUNK_BYTES, nbytes, crcs, functools.partial(read_at, file.fd, file.path)
    )


def _crc_of_range(file: files.OpenFile, offset: int, nbytes: int, buffers: Buffers) -> int:
    crc32 = 0
    buffer = buffers.take()
    try:
        end = offset + nbytes
        while offset < end:
            try:
                num_read = os.preadv(file.fd, [buffer[: end - offset]], offset)
            except OSError as error:
                raise storage_error_from(
                    error, op="pread", path=file.path, offset=offset, nbytes=end - offset
                ) from error
            if not num_read:
                raise StorageError(
                    f"{file.path} was cut short while it was uploaded. Upload it again.",
                    op="upload",
                    path=file.path,
                    offset=offset,
                )
            crc32 = native.crc32(buffer[:num_read], crc32)
            offset += num_read
        return crc32
    finally:
        buffers.give(buffer)
