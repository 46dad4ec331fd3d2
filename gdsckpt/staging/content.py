"""What a shard is made of, as plan and extents: decided here, moved by an engine."""

from __future__ import annotations

import ctypes
import sys
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, islice
from operator import sub
from typing import Any, NamedTuple

from gdsckpt import native
from gdsckpt.engine.base import NO_STREAMS, Extent, Transfer, pack_columns, pack_extents
from gdsckpt.format import footer, layout, table, zipfmt
from gdsckpt.format.layout import Placement, ShardLayout, StorageRecords


class Buffer(NamedTuple):  # made 100,000 times, as table.TensorEntry
    """Memory of one storage.

    Attributes:
        address: First byte; 0 where empty.
        nbytes: Size in bytes.
        owner: Whatever keeps the memory alive.
        device: CUDA's number of the GPU that it is on, or ``native.HOST``.
    """

    address: int
    nbytes: int
    owner: object
    device: int = native.HOST


@dataclass(frozen=True, slots=True)
class ShardContent:
    """All that a shard has to hold.

    Attributes:
        storages: Storage ``n`` becomes record ``data/<n>``.
        pickle: Content of ``data.pkl``.
        tensors: Named tensors for the chunk table.
        streams: Rows of (device, CUDA stream) that the contents of device memory wait for.
        require_unchanged: Called when the last byte was read, with the descriptor of the file that
            was written and its layout; raises TornSnapshotError when the memory changed meanwhile.
        watch: Called now and then with the transfer that reads the memory and the layout, by the
            thread that waits for it.
    """

    storages: Sequence[Buffer]
    pickle: bytes
    tensors: tuple[table.TensorEntry, ...]
    streams: array[int] = field(default_factory=lambda: NO_STREAMS)
    require_unchanged: Callable[[int, ShardLayout], None] = lambda _fd, _layout: None
    watch: Callable[[Transfer, ShardLayout], None] | None = None

    @property
    def payload_bytes(self) -> int:
        """Bytes of all storages."""
        return sum(storage.nbytes for storage in self.storages)


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """The extents of a shard up to its chunk table.

    Attributes:
        layout: Where each record lies.
        extents: Packed rows for :class:`gdsckpt.engine.base.Engine`: a header before each payload.
        literals: Memory of the headers and small records; has to outlive the transfer.
        storages: Memory of the payloads; likewise.
        tensors: Named tensors for the chunk table.
        streams: What the contents of device memory wait for.
    """

    layout: ShardLayout
    extents: array[int]
    literals: bytearray
    storages: Sequence[Buffer]
    tensors: tuple[table.TensorEntry, ...]
    streams: array[int]


def address_of(buffer: bytearray) -> int:
    """Give the address of a bytearray's bytes, valid while nobody resizes it."""
    if not buffer:
        return 0
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


def plan(content: ShardContent) -> ShardPlan:
    """Lay out a shard and cut it into extents."""
    fixed = (
        (layout.FORMAT_RECORD, b"gdsckpt %d\n" % layout.FORMAT_VERSION),
        (layout.BYTEORDER_RECORD, sys.byteorder.encode()),
        (layout.VERSION_RECORD, layout.TORCH_ARCHIVE_VERSION),
    )
    shard = layout.plan_shard(
        [storage.nbytes for storage in content.storages],
        [(name, len(payload)) for name, payload in fixed],
        len(content.pickle),
    )
    literal_payloads = {**dict(fixed), layout.PICKLE_RECORD: content.pickle}
    return _with_extents(shard, content, literal_payloads)


def _with_extents(
    shard: ShardLayout, content: ShardContent, literal_payloads: dict[str, bytes]
) -> ShardPlan:
    small = (*shard.fixed, shard.pickle)
    literals = bytearray()
    header_at: list[int] = []
    for record in small:
        header_at.append(len(literals))
        literals += zipfmt.local_header(record.name, record.nbytes, 0)
        literals += literal_payloads[record.name]
    storage_headers_at = len(literals)
    literals += native.zip_local_headers(
        layout.DATA_PREFIX, shard.storages.numbers, shard.storages.nbytes
    )
    base = address_of(literals)
    *fixed_rows, pickle_rows = (
        _literal_rows(record, base + at) for record, at in zip(small, header_at, strict=True)
    )
    storage_rows = _storage_rows(shard.storages, content.storages, base + storage_headers_at)
    rows = array("Q")
    for part in (*fixed_rows, storage_rows, pickle_rows):
        rows.extend(part)
    return ShardPlan(shard, rows, literals, content.storages, content.tensors, content.streams)


def _literal_rows(record: Placement, address: int) -> array[int]:
    """Give the extents of a record whose header is at ``address``, and its payload after it."""
    header_nbytes = record.payload_offset - record.header_offset
    header = Extent(address, header_nbytes, record.header_offset)
    payload = Extent(
        address + header_nbytes if record.nbytes else 0,
        record.nbytes,
        record.payload_offset,
        record.header_offset + zipfmt.LOCAL_CRC_OFFSET,
    )
    return pack_extents([header, payload])


def _storage_rows(records: StorageRecords, storages: Sequence[Buffer], address: int) -> array[int]:
    """Give the extents of all storages, whose headers are one after the other at ``address``."""
    num_records = len(records.numbers)
    buffers = [storages[n] for n in records.numbers]
    header_nbytes = array("Q", map(sub, records.payload_offsets, records.header_offsets))
    columns = (
        # Of the headers.
        list(islice(accumulate(header_nbytes, initial=address), num_records)),
        header_nbytes,
        records.header_offsets,
        array("Q", [native.NO_CRC_SLOT]) * num_records,
        array("Q", [native.HOST]) * num_records,
        # Of the payloads.
        [buffer.address if buffer.nbytes else 0 for buffer in buffers],
        records.nbytes,
        records.payload_offsets,
        [offset + zipfmt.LOCAL_CRC_OFFSET for offset in records.header_offsets],
        [buffer.device for buffer in buffers],
    )
    return pack_columns(columns)


@dataclass(frozen=True, slots=True)
class Tail:
    """The bytes after the chunks: chunk table, central directory, end records, comment.

    Attributes:
        raw: All of them.
        file_offset: Where they begin; the chunk table covers all before.
        table: Payload of the table record.
    """

    raw: bytearray
    file_offset: int
    table: bytes


def encode_tail(
    shard: ShardLayout,
    record_crcs: Sequence[int],
    chunk_table: table.ChunkTable,
    crc32: Any = native.crc32,
) -> Tail:
    """Encode what stands after the chunks.

    Args:
        shard: The layout that was written.
        record_crcs: CRC-32 of each record, in the order of ``shard.records``.
        chunk_table: Chunk checksums and tensor names.
        crc32: Function like ``zlib.crc32``.
    """
    table_payload = table.encode(chunk_table)
    place = layout.place(layout.TABLE_RECORD, len(table_payload), shard.covered_bytes, 1)
    table_crc = crc32(table_payload)
    raw = bytearray(zipfmt.local_header(place.name, place.nbytes, table_crc))
    raw += table_payload
    directory = _central_directory(shard, record_crcs) + _central_entry(place, table_crc)
    raw += directory
    raw += zipfmt.end_records(
        shard.num_records + 1, place.end_offset, len(directory), footer.FOOTER_NBYTES
    )
    tail_crc = crc32(footer.encode_prefix(shard.covered_bytes), crc32(raw))
    raw += footer.encode(shard.covered_bytes, tail_crc)
    return Tail(raw, shard.covered_bytes, table_payload)


def _central_directory(shard: ShardLayout, record_crcs: Sequence[int]) -> bytes:
    """Encode the entries of all records but the chunk table."""
    records = shard.storages
    of_storages = native.zip_central_entries(
        layout.DATA_PREFIX,
        records.numbers,
        records.nbytes,
        array("I", shard.of_storages(record_crcs)),
        records.header_offsets,
    )
    before = [
        _central_entry(record, crc) for record, crc in zip(shard.fixed, record_crcs, strict=False)
    ]
    return b"".join([*before, of_storages, _central_entry(shard.pickle, record_crcs[-1])])


def _central_entry(record: Placement, crc32: int) -> bytes:
    return zipfmt.central_entry(record.name, record.nbytes, crc32, record.header_offset)
