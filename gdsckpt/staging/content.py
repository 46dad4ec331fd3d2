"""What a shard is made of, as plan and extents: decided here, moved by an engine."""

from __future__ import annotations

import ctypes
import sys
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gdsckpt import native
from gdsckpt.engine.base import NO_STREAMS, Transfer
from gdsckpt.format import footer, layout, table, zipfmt
from gdsckpt.format.layout import Placement, ShardLayout


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
    literals = bytearray()
    spans: list[tuple[int, int, int]] = []  # of each record: header, literal payload, nbytes
    for record in shard.records:
        header_at = len(literals)
        literals += zipfmt.local_header(record.name, record.nbytes, 0)
        payload_at = len(literals)
        literals += literal_payloads.get(record.name, b"")
        spans.append((header_at, payload_at, payload_at - header_at))
    base = address_of(literals)
    prefix_length = len(layout.DATA_PREFIX)
    rows: list[int] = []
    for record, (header_at, payload_at, header_nbytes) in zip(shard.records, spans, strict=True):
        if record.name.startswith(layout.DATA_PREFIX):
            storage = content.storages[int(record.name[prefix_length:])]
            address, device = storage.address, storage.device
        else:
            address, device = base + payload_at, native.HOST
        crc_offset = record.header_offset + zipfmt.LOCAL_CRC_OFFSET
        offset = record.header_offset
        rows += (base + header_at, header_nbytes, offset, native.NO_CRC_SLOT, native.HOST)
        address = address if record.nbytes else 0
        rows += (address, record.nbytes, record.payload_offset, crc_offset, device)
    return ShardPlan(
        shard, array("Q", rows), literals, content.storages, content.tensors, content.streams
    )


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
    records: list[Placement] = [*shard.records, place]
    directory_offset = place.end_offset
    directory_at = len(raw)
    for record, crc in zip(records, [*record_crcs, table_crc], strict=True):
        raw += zipfmt.central_entry(record.name, record.nbytes, crc, record.header_offset)
    raw += zipfmt.end_records(
        len(records), directory_offset, len(raw) - directory_at, footer.FOOTER_NBYTES
    )
    tail_crc = crc32(bytes(raw) + footer.encode_prefix(shard.covered_bytes))
    raw += footer.encode(shard.covered_bytes, tail_crc)
    return Tail(raw, shard.covered_bytes, table_payload)
