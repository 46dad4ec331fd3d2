"""Receive one object into a file: in parallel, checked, whole under its name or not at all."""

from __future__ import annotations

import contextlib
import errno
import functools
import stat
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gdsckpt import native
from gdsckpt.config import Config
from gdsckpt.engine import base
from gdsckpt.engine.base import Progress
from gdsckpt.errors import ChecksumError, StorageError, storage_error_from
from gdsckpt.format import checksum
from gdsckpt.format.manifest import ShardEntry
from gdsckpt.format.table import ChunkTable
from gdsckpt.remote.chunks import PIECE_BYTES, RECEIVES_MAX, ChunkReceiver, Span, split_spans
from gdsckpt.remote.crew import Crew, Work
from gdsckpt.remote.disk import PieceWriter
from gdsckpt.remote.objects import Buffers, RemoteObject
from gdsckpt.remote.ondemand import OnDemandFile
from gdsckpt.staging import files, indexing, listed_shards
from gdsckpt.staging.shard import provided, read_at
from gdsckpt.staging.writer import warn_buffered


@dataclass(frozen=True, slots=True)
class Received:
    """A file that is in place.

    Attributes:
        nbytes: Its size.
        crc32: Its CRC-32.
        is_verified: Every byte was compared with a checksum.
        refused: Why some of it went through the page cache; empty if it did not.
    """

    nbytes: int
    crc32: int
    is_verified: bool
    refused: str


@dataclass(frozen=True, slots=True)
class ReceivePlan:
    """What is received, and what it is compared with.

    Attributes:
        source: The object.
        table: Checksums of its chunks; None for a file that is not ours.
        tail: What stands after the chunks, checked already; empty for a file that is not ours.
        crc32: What the CRC-32 of the whole has to be; None where it is not known.
    """

    source: RemoteObject
    table: ChunkTable | None
    tail: bytes
    crc32: int | None

    @property
    def spans(self) -> list[Span]:
        """What the jobs receive: all but the tail."""
        chunk_bytes = self.table.chunk_bytes if self.table else PIECE_BYTES
        return split_spans(0, self.source.nbytes - len(self.tail), chunk_bytes)

    @property
    def expected(self) -> tuple[int, ...]:
        """CRC-32 of each chunk, as far as known."""
        return self.table.chunk_crc32 if self.table else ()


def plan_receive(source: RemoteObject, crew: Crew, entry: ShardEntry | None = None) -> ReceivePlan:
    """Find out what checksums an object has; little of it is received for that.

    Args:
        source: The object.
        crew: Receives it.
        entry: What a manifest says of it.

    Raises:
        FormatError: It is a damaged file of ours, or not the one of the manifest.
        StoreError: It cannot be read.
    """
    copy = OnDemandFile(source, crew)
    with (
        contextlib.closing(copy),
        provided(copy.fd, copy.provide),
        files.transfers_on(copy.fd, source.url, writable=False, direct_io="off") as file,
    ):
        shard = copy.read_checked(
            lambda: indexing.index_file(file) if indexing.has_our_marks(file) else None
        )
        if shard is None:
            if entry is not None:
                raise listed_shards.not_as_listed(source.url)
            return ReceivePlan(source, None, b"", source.crc32)
        if entry is not None:
            listed_shards.require_as_listed(shard, entry, source.url)
        table = shard.read_table()
        tail = read_at(
            copy.fd, source.url, table.covered_bytes, source.nbytes - table.covered_bytes
        )
        return ReceivePlan(source, table, tail, entry.crc32 if entry else None)


def receive(
    plan: ReceivePlan,
    target: Path,
    crew: Crew,
    config: Config,
    *,
    progress: Progress | None = None,
) -> Received:
    """Receive an object so that ``target`` is the old file or the whole new one, at any instant.

    Leftovers of killed processes beside it are the caller's to remove, before.

    Args:
        plan: From :func:`plan_receive`.
        target: Path of the file; a link of that name is replaced, not followed.
        crew: Receives.
        config: Settings.
        progress: Told about bytes received.

    Raises:
        StorageError: The file system refused; ``target`` is what it was, nothing is left beside it.
        StoreError: The store failed, or the object was replaced; likewise.
        ChecksumError: The object is damaged; likewise.
    """
    mode = _mode_of(target)
    path, nbytes = str(target), plan.source.nbytes
    with files.temporary_file(target, sweep=False) as (fd, temporary):
        files.check_free_space(fd, path, nbytes)
        files.reserve(fd, path, nbytes)
        with contextlib.closing(PieceWriter(fd, path, direct_io=config.direct_io)) as writer:
            crc32 = _receive_spans(plan, crew, writer, progress)
            writer.write(nbytes - len(plan.tail), memoryview(plan.tail))
        if mode is not None:
            files.set_mode(fd, path, stat.S_IMODE(mode))
        if config.fsync:
            files.sync_data(fd, path)
        files.rename_durably(temporary, target, fsync=config.fsync)
    if writer.refused and config.direct_io != "off":
        warn_buffered(target, writer.refused)
    is_verified = plan.table is not None or plan.crc32 is not None
    return Received(nbytes, crc32, is_verified, writer.refused)


def _receive_spans(
    plan: ReceivePlan, crew: Crew, writer: PieceWriter, progress: Progress | None
) -> int:
    """Receive all of an object; gives its CRC-32, which is the wanted one."""
    source = plan.source
    spans = plan.spans
    crcs = array("I", bytes(4 * sum(len(span.lengths) for span in spans)))
    work = Work(source.nbytes, source.store.interrupt, is_alone=True)
    receiver = ChunkReceiver(
        source, Buffers(PIECE_BYTES), plan.expected, writer.write, lambda: work.is_stopped
    )

    def receive_span(span: Span) -> None:
        found = receiver.receive(span)
        if not work.is_stopped:
            _require_equal(plan, span, found)
        crcs[span.first_chunk : span.first_chunk + len(found)] = array("I", found)
        work.advance(span.nbytes)

    work.advance(len(plan.tail))
    crew.start([functools.partial(receive_span, span) for span in spans], work)
    base.wait(work, progress)
    lengths = (length for span in spans for length in span.lengths)
    crc32 = native.crc32(plan.tail, checksum.combine(zip(crcs, lengths, strict=True)))
    if plan.crc32 is not None and crc32 != plan.crc32:
        raise ChecksumError(
            f"{source.url} does not have the checksum that is known of it: its CRC-32 is "
            f"{crc32:08x}, not {plan.crc32:08x}. Fetch it again, or use another copy.",
            path=source.url,
            offset=0,
            expected=plan.crc32,
            actual=crc32,
        )
    return crc32


def _require_equal(plan: ReceivePlan, span: Span, crcs: Sequence[int]) -> None:
    offset = span.file_offset
    for number, (actual, nbytes) in enumerate(zip(crcs, span.lengths, strict=True)):
        expected = plan.expected[span.first_chunk + number] if plan.expected else actual
        if actual != expected:
            raise ChecksumError(
                f"{plan.source.url} is damaged: chunk {span.first_chunk + number}, {nbytes} bytes "
                f"at offset {offset}, does not match its checksum, although it was received "
                f"{RECEIVES_MAX} times. 'gdsckpt verify' names the tensors; use another copy.",
                path=plan.source.url,
                offset=offset,
                expected=expected,
                actual=actual,
            )
        offset += nbytes


def _mode_of(target: Path) -> int | None:
    """Give the mode of the file that is to be replaced; None where there is none, or a link.

    Raises:
        StorageError: It cannot be replaced: it is no regular file.
    """
    try:
        mode = target.lstat().st_mode
    except FileNotFoundError:
        return None
    except OSError as error:
        raise storage_error_from(error, op="stat", path=str(target)) from error
    if stat.S_ISLNK(mode):
        return None
    if not stat.S_ISREG(mode):
        number = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
        raise StorageError(
            f"{target} is no regular file, so no object can take its place. Give another path.",
            op="fetch",
            path=str(target),
            errno=number,
        )
    return mode
