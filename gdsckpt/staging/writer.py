"""The only write path: temporary file, transfer, sync, rename, sync of the directory."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import stat
import time
import warnings
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from gdsckpt import native, tracing
from gdsckpt.config import Config
from gdsckpt.engine import base
from gdsckpt.engine.fallback import reasons_at_run_time
from gdsckpt.engine.registry import choose_engine
from gdsckpt.errors import FallbackWarning, StorageError, storage_error_from
from gdsckpt.format import checksum
from gdsckpt.format.table import ChunkTable
from gdsckpt.staging import content as shard_content
from gdsckpt.staging import files, stream
from gdsckpt.staging.content import ShardContent, ShardPlan, Tail
from gdsckpt.tensors import collector

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WrittenShard:
    """A shard that is in place and durable.

    Attributes:
        path: Where it stands; empty for a stream without a name.
        nbytes: File size in bytes.
        crc32: CRC-32 of the whole file.
        table_sha256: SHA-256 of the chunk table, in hex digits.
        num_records: Records in the archive.
        engine: Engine that wrote it.
        engine_reasons: Why it was chosen, what was refused.
        direct_io: The payload went by direct I/O.
        write_s: Seconds of the transfer.
        sync_s: Seconds of fdatasync.
        commit_s: Seconds of rename and sync of the directory.
        storage_crcs: CRC-32 of each storage, as 4-byte numbers; empty for a stream.
    """

    path: str
    nbytes: int
    crc32: int
    table_sha256: str
    num_records: int
    engine: str
    engine_reasons: tuple[str, ...]
    direct_io: bool
    write_s: float
    sync_s: float
    commit_s: float
    storage_crcs: array[int] = field(default_factory=lambda: array("I"))


def write_file(
    target: Path,
    content: ShardContent,
    config: Config,
    *,
    progress: base.Progress | None = None,
) -> WrittenShard:
    """Write a shard so that ``target`` is the old file or the whole new one, at any instant.

    Symlinks are followed: the file they lead to is replaced. What exists and is not a regular file
    (``/dev/null``, a pipe) is written through, not replaced.

    Args:
        target: Path of the shard.
        content: What to write; its memory must not change until the function returns.
        config: Settings.
        progress: Told about bytes written.

    Raises:
        StorageError: An operation failed; ``target`` is what it was, nothing is left beside it.
        CudaError: A copy from a device failed; likewise.
        TornSnapshotError: A storage was freed or moved meanwhile; likewise.
    """
    try:
        resolved = Path(os.path.realpath(target))
    except OSError as error:  # a relative path, and the current directory is gone
        raise storage_error_from(error, op="getcwd", path=str(target)) from error
    mode = _mode_of_target(resolved)
    if mode is not None and not stat.S_ISREG(mode):
        return _write_through(resolved, content, config)
    plan = _plan(content)
    devices = {storage.device for storage in content.storages} - {native.HOST}
    choice = choose_engine(config, directory=resolved.parent, devices=devices)
    with files.temporary_file(resolved) as (fd, temporary):
        estimate = plan.layout.covered_bytes + 128 * plan.layout.num_records
        files.check_free_space(fd, str(resolved), estimate)
        files.reserve(fd, str(resolved), plan.layout.covered_bytes)
        with files.transfers_on(
            fd, str(resolved), writable=True, direct_io=config.direct_io
        ) as file:
            started = time.perf_counter()
            moved = _transfer(
                file, plan, choice.engine, config.chunk_bytes, _watched(content, plan, progress)
            )
            written = time.perf_counter()
            content.require_unchanged(fd, plan.layout)
            if mode is not None:  # not before: a read-only file could not be opened again
                files.set_mode(fd, str(resolved), stat.S_IMODE(mode))
            if config.fsync:
                files.sync_data(fd, str(resolved))
            synced = time.perf_counter()
            refused = file.direct_refused or file.native.direct_refused
            fallbacks = reasons_at_run_time(choice.engine, file.native) if devices else ()
        files.rename_durably(temporary, resolved, fsync=config.fsync)
        committed = time.perf_counter()
    if refused and config.direct_io != "off":
        warn_buffered(resolved, refused)
    return WrittenShard(
        path=str(target),
        nbytes=moved.tail.file_offset + len(moved.tail.raw),
        crc32=moved.crc32,
        table_sha256=hashlib.sha256(moved.tail.table).hexdigest(),
        num_records=plan.layout.num_records + 1,
        engine=choice.engine.name,
        engine_reasons=(
            *choice.reasons,
            *fallbacks,
            *([f"buffered: {refused}"] if refused else []),
        ),
        direct_io=not refused,
        write_s=written - started,
        sync_s=synced - written,
        commit_s=committed - synced,
        storage_crcs=_storage_crcs(plan, moved.record_crcs),
    )


def write_stream(sink: BinaryIO, content: ShardContent, config: Config, path: str) -> WrittenShard:
    """Write a shard to a binary file object, in order, without seeking.

    Args:
        sink: Takes bytes; need not be seekable.
        content: What to write; must not change meanwhile.
        config: Settings.
        path: For messages and the report.

    Raises:
        StorageError: The sink failed, or wrote nothing.
        TornSnapshotError: The content changed between checksum and write.
    """
    started = time.perf_counter()
    plan = _plan(content)
    with tracing.stage("write", plan.layout.covered_bytes):
        tail, crc32 = stream.write(sink, plan, config.chunk_bytes, path)
    return WrittenShard(
        path=path,
        nbytes=tail.file_offset + len(tail.raw),
        crc32=crc32,
        table_sha256=hashlib.sha256(tail.table).hexdigest(),
        num_records=plan.layout.num_records + 1,
        engine="stream",
        engine_reasons=("the target takes bytes in order only",),
        direct_io=False,
        write_s=time.perf_counter() - started,
        sync_s=0.0,
        commit_s=0.0,
    )


def _plan(content: ShardContent) -> ShardPlan:
    with tracing.stage("plan"), collector.paused():
        return shard_content.plan(content)


@dataclass(frozen=True, slots=True)
class _Moved:
    """What a transfer has found out: the tail, and CRC-32s of the file and of its records."""

    tail: Tail
    crc32: int
    record_crcs: Sequence[int]


def _watched(
    content: ShardContent, plan: ShardPlan, progress: base.Progress | None
) -> Callable[[base.Transfer], base.Progress]:
    """Give, for a transfer, what tells the content and the caller about it."""

    def watch(transfer: base.Transfer) -> base.Progress:
        def tell(done: int, total: int) -> None:
            if content.watch is not None:
                content.watch(transfer, plan.layout)
            if progress is not None:
                progress(done, total)

        return tell

    return watch


def _storage_crcs(plan: ShardPlan, record_crcs: Sequence[int]) -> array[int]:
    """Pick the checksums of the storages out of those of all records."""
    crcs = array("I", bytes(4 * len(plan.storages)))
    shard = plan.layout
    for n, crc in zip(shard.storages.numbers, shard.of_storages(record_crcs), strict=True):
        crcs[n] = crc
    return crcs


def _transfer(
    file: files.OpenFile,
    plan: ShardPlan,
    engine: base.Engine,
    chunk_bytes: int,
    watch: Callable[[base.Transfer], base.Progress],
) -> _Moved:
    """Move chunks, then the tail; ``watch`` gives whom to tell about a transfer."""
    transfer = engine.write(
        file.native, plan.extents, chunk_bytes=chunk_bytes, streams=plan.streams, owner=plan
    )
    base.wait(transfer, watch(transfer))
    covered_bytes = plan.layout.covered_bytes
    chunk_crcs = checksum.unpack_crcs(transfer.chunk_crcs())
    record_crcs = checksum.unpack_crcs(transfer.extent_crcs())[1::2]
    chunk_table = ChunkTable(chunk_bytes, covered_bytes, tuple(chunk_crcs), plan.tensors)
    with collector.paused():
        tail = shard_content.encode_tail(plan.layout, record_crcs, chunk_table)
    extent = base.Extent(shard_content.address_of(tail.raw), len(tail.raw), tail.file_offset)
    rows = base.pack_extents([extent])
    base.wait(
        engine.write(
            file.native, rows, chunk_bytes=chunk_bytes, streams=base.NO_STREAMS, owner=tail
        )
    )
    spans = checksum.chunk_spans(covered_bytes, chunk_bytes)
    crc32 = checksum.combine(
        (crc, nbytes) for crc, (_, nbytes) in zip(chunk_crcs, spans, strict=True)
    )
    return _Moved(tail, native.crc32(tail.raw, crc32), record_crcs)


def _mode_of_target(target: Path) -> int | None:
    try:
        mode = target.stat().st_mode
    except FileNotFoundError:
        return None
    except OSError as error:
        raise storage_error_from(error, op="stat", path=str(target)) from error
    if stat.S_ISDIR(mode):
        refused = IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(target))
        raise storage_error_from(refused, op="save", path=str(target))
    return mode


def _write_through(target: Path, content: ShardContent, config: Config) -> WrittenShard:
    try:
        with target.open("wb", buffering=0) as sink:
            return write_stream(sink, content, config, str(target))
    except StorageError:
        raise
    except OSError as error:
        raise storage_error_from(error, op="write", path=str(target)) from error


def warn_buffered(target: Path, refused: str) -> None:
    """Warn that a file went through the page cache, and say why."""
    warnings.warn(
        f"{target} was written through the page cache, not by direct I/O: {refused}. It is as "
        "durable, but slower. Save to ext4 or XFS, or set direct_io=off to silence this.",
        FallbackWarning,
        stacklevel=2,
    )
