"""The engine of objects: ranges are received straight into memory, as an engine reads a file."""

from __future__ import annotations

import functools
from array import array

from gdsckpt import native
from gdsckpt.engine import base
from gdsckpt.engine.base import Extent
from gdsckpt.errors import EngineUnavailableError
from gdsckpt.format.table import ChunkTable
from gdsckpt.remote.chunks import PIECE_BYTES, ChunkReceiver, Span, split_spans
from gdsckpt.remote.crew import Crew
from gdsckpt.remote.objects import Buffers, RemoteObject
from gdsckpt.remote.reading import ExtentReceiver, ObjectTransfer
from gdsckpt.staging.shard import Origin, Shard


class ObjectEngine:
    """Reads of one object; an :class:`gdsckpt.engine.base.Engine`, for any thread.

    Bytes that do not match the checksum of their record or chunk are received again before the
    caller gets to see them; what stays wrong is left to the caller, who compares.

    Attributes:
        name: ``"object"``.
    """

    name = "object"

    def __init__(self, source: RemoteObject, crew: Crew) -> None:
        self._source = source
        self._crew = crew
        self._buffers = Buffers(PIECE_BYTES)
        self._shard: Shard | None = None

    def expect(self, shard: Shard) -> None:
        """Take the checksums of an indexed file for those of the object, before the first read."""
        self._shard = shard

    @functools.cached_property
    def _record_crcs(self) -> dict[tuple[int, int], int]:
        """CRC-32 by (file offset, nbytes) of each record that has one."""
        if self._shard is None:
            return {}
        offsets = self._shard.payload_offsets
        return {
            (offset, entry.nbytes): entry.crc32
            for entry, offset in zip(self._shard.entries, offsets, strict=True)
            if entry.is_stored and self._shard.has_checksum(entry)
        }

    @functools.cached_property
    def _table(self) -> ChunkTable | None:
        if self._shard is None or self._shard.origin is not Origin.GDSCKPT:
            return None
        return self._shard.read_table()

    def _expected_chunks(self, begin: int, chunk_bytes: int) -> tuple[int, ...]:
        """Give the CRC-32 of the chunks of a scan; none where they are not those of the table."""
        if begin or self._table is None or chunk_bytes != self._table.chunk_bytes:
            return ()
        return self._table.chunk_crc32

    def write(
        self,
        file: native.File,
        extents: array[int],
        *,
        chunk_bytes: int,
        streams: array[int],
        owner: object,
    ) -> base.Transfer:
        """Refuse: objects are written whole, by uploads."""
        del extents, chunk_bytes, streams, owner
        raise EngineUnavailableError(
            f"{file.path} is an object: it is not written in parts. Upload a file.",
            engine=self.name,
        )

    def read(
        self, file: native.File, extents: array[int], *, streams: array[int], owner: object
    ) -> ObjectTransfer:
        """Start to read; see :class:`gdsckpt.engine.base.Engine`."""
        del file
        rows = [
            Extent(*extents[n : n + base.ROW_WIDTH]) for n in range(0, len(extents), base.ROW_WIDTH)
        ]
        transfer = ObjectTransfer(self._source, sum(row.nbytes for row in rows), len(rows))
        fence = native.StreamFence(extents, streams) if streams else None
        receiver = ExtentReceiver(
            self._source, self._buffers, self._record_crcs, transfer, fence, owner
        )
        self._crew.start(receiver.jobs(rows), transfer)
        return transfer

    def scan(self, file: native.File, begin: int, end: int, *, chunk_bytes: int) -> ObjectTransfer:
        """Start to scan; see :class:`gdsckpt.engine.base.Engine`."""
        del file
        spans = split_spans(begin, end, chunk_bytes)
        num_chunks = sum(len(span.lengths) for span in spans)
        transfer = ObjectTransfer(self._source, end - begin, num_chunks)
        receiver = ChunkReceiver(
            source=self._source,
            buffers=self._buffers,
            expected=self._expected_chunks(begin, chunk_bytes),
            sink=lambda _offset, _view: None,
            stopped=lambda: transfer.is_stopped,
        )

        def scan_span(span: Span) -> None:
            for n, crc32 in enumerate(receiver.receive(span), span.first_chunk):
                transfer.crcs[n] = crc32
            transfer.advance(span.nbytes)

        self._crew.start([functools.partial(scan_span, span) for span in spans], transfer)
        return transfer
