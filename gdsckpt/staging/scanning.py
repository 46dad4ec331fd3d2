"""Check all bytes of a file against its checksums, and name what is damaged."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from gdsckpt import native
from gdsckpt.engine import base
from gdsckpt.engine.base import Engine
from gdsckpt.format import checksum
from gdsckpt.format.table import ChunkTable
from gdsckpt.report import Damage
from gdsckpt.staging import shard as shards
from gdsckpt.staging.shard import Origin, Shard

_SUB_BYTES = 16 << 20
"""Records of foreign files are scanned in chunks of this size."""


def slab_bytes_for(shard: Shard) -> int:
    """Give the slab size in bytes that the engine of a scan needs.

    Raises:
        FormatError: The chunk table is damaged.
    """
    if shard.origin is Origin.GDSCKPT:
        return max(_SUB_BYTES, shard.read_table().chunk_bytes)
    return _SUB_BYTES


@dataclass(frozen=True, slots=True)
class Scan:
    """What a scan found.

    Attributes:
        damaged: Damaged places in file order.
        checked_bytes: Bytes that were compared with a checksum.
        num_chunks: Checksums that were compared.
        num_unchecked: Records without a checksum, or compressed.
        crc32: CRC-32 of the whole file; None for foreign files.
    """

    damaged: tuple[Damage, ...]
    checked_bytes: int
    num_chunks: int
    num_unchecked: int
    crc32: int | None


def scan(shard: Shard, engine: Engine, progress: base.Progress | None = None) -> Scan:
    """Read a zip archive whole and compare every checksum it has.

    Args:
        shard: An open archive; opening it has already checked the tail of our own files.
        engine: Moves the bytes; its slabs hold a chunk of the file.
        progress: Told about bytes read.

    Raises:
        StorageError: A read failed.
        FormatError: The chunk table is damaged in a way its checksum did not show.
    """
    if shard.origin is Origin.GDSCKPT:
        return _scan_chunks(shard, shard.read_table(), engine, progress)
    return _scan_records(shard, engine, progress)


def require_intact(shard: Shard, engine: Engine) -> None:
    """Scan, and raise for the first damage.

    Raises:
        ChecksumError: Names file, tensor and offset.
    """
    found = scan(shard, engine).damaged
    if not found:
        return
    bad = _bad_records(found[0], shard, engine)
    if bad:
        raise shards.checksum_error(shard, bad[0], _record_crc(shard, bad[0], engine))
    raise shards.chunk_error(shard, found[0])


def _scan_chunks(
    shard: Shard, table: ChunkTable, engine: Engine, progress: base.Progress | None
) -> Scan:
    transfer = engine.scan(shard.file.native, 0, table.covered_bytes, chunk_bytes=table.chunk_bytes)
    base.wait(transfer, progress)
    actual = checksum.unpack_crcs(transfer.chunk_crcs())
    spans = checksum.chunk_spans(table.covered_bytes, table.chunk_bytes)
    damaged: list[Damage] = []
    for n, (offset, nbytes) in enumerate(spans):
        if actual[n] != table.chunk_crc32[n]:
            chunk = Damage(
                path=shard.path, offset=offset, nbytes=nbytes, tensors=(), what=f"chunk {n}"
            )
            damaged.append(_name_tensors(chunk, shard, table, engine))
    whole = checksum.combine((crc, nbytes) for crc, (_, nbytes) in zip(actual, spans, strict=True))
    tail = shards.read_at(
        shard.fd, shard.path, table.covered_bytes, shard.nbytes - table.covered_bytes
    )
    return Scan(tuple(damaged), shard.nbytes, len(spans), 0, native.crc32(tail, whole))


def _name_tensors(chunk: Damage, shard: Shard, table: ChunkTable, engine: Engine) -> Damage:
    """Say what a damaged chunk holds: tensors whose own record is damaged too, as a rule one."""
    bad = _bad_records(chunk, shard, engine)
    keys = {shard.entries[n].name.removeprefix(f"{shard.archive}/data/") for n in bad}
    names = tuple(tensor.name for tensor in table.tensors if str(tensor.record) in keys)
    if not bad:
        what = f"{chunk.what}, between records"
    elif names:
        what = chunk.what
    else:
        what = f"{chunk.what}, record {shard.entries[bad[0]].name}"
    return dataclasses.replace(chunk, tensors=names, what=what)


def _bad_records(place: Damage, shard: Shard, engine: Engine) -> list[int]:
    """Find the records with bytes in a damaged place whose own checksum fails too."""
    return [
        index
        for index, entry in enumerate(shard.entries)
        if shard.payload_offsets[index] < place.offset + place.nbytes
        and place.offset < shard.payload_offsets[index] + entry.nbytes
        and _record_crc(shard, index, engine) != entry.crc32
    ]


def _scan_records(shard: Shard, engine: Engine, progress: base.Progress | None) -> Scan:
    damaged: list[Damage] = []
    checked_bytes = num_checked = num_unchecked = 0
    for index, entry in enumerate(shard.entries):
        if entry.nbytes and not (entry.is_stored and shard.has_checksum(entry)):
            num_unchecked += 1
            continue
        num_checked += 1
        checked_bytes += entry.nbytes
        if _record_crc(shard, index, engine) != entry.crc32:
            damaged.append(
                Damage(
                    path=shard.path,
                    offset=shard.payload_offsets[index],
                    nbytes=entry.nbytes,
                    tensors=(),
                    what=f"record {entry.name}",
                )
            )
        if progress is not None:
            progress(checked_bytes, shard.nbytes)
    return Scan(tuple(damaged), checked_bytes, num_checked, num_unchecked, None)


def _record_crc(shard: Shard, index: int, engine: Engine) -> int:
    nbytes = shard.entries[index].nbytes
    begin = shard.payload_offsets[index]
    if nbytes <= _SUB_BYTES:
        return native.crc32(shards.read_at(shard.fd, shard.path, begin, nbytes))
    transfer = engine.scan(shard.file.native, begin, begin + nbytes, chunk_bytes=_SUB_BYTES)
    base.wait(transfer)
    crcs = checksum.unpack_crcs(transfer.chunk_crcs())
    return checksum.combine(zip(crcs, _chunk_lengths(begin, nbytes), strict=True))


def _chunk_lengths(begin: int, nbytes: int) -> Iterator[int]:
    """Give the lengths of a range cut at multiples of the chunk size of the file."""
    end = begin + nbytes
    while begin < end:
        edge = min(end, (begin // _SUB_BYTES + 1) * _SUB_BYTES)
        yield edge - begin
        begin = edge
