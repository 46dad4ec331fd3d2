"""Receive a file chunk by chunk, each checked against its checksum."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gdsckpt import native
from gdsckpt.remote.objects import Buffers, RemoteObject

logger = logging.getLogger(__name__)

PIECE_BYTES = 16 << 20
"""What is received by one request, where nothing asks for less."""

RECEIVES_MAX = 3
"""How often bytes are received that do not match their checksum: a flip on the way goes away."""


@dataclass(frozen=True, slots=True)
class Span:
    """Whole chunks in a row that one job receives.

    Attributes:
        first_chunk: Number of the first one.
        file_offset: Where it begins.
        lengths: Length in bytes of each chunk.
    """

    first_chunk: int
    file_offset: int
    lengths: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all its chunks."""
        return sum(self.lengths)


Sink = Callable[[int, memoryview], None]
"""Takes (file offset, bytes) of a piece; called again for bytes that had to be received again."""


def split_spans(begin: int, end: int, chunk_bytes: int) -> list[Span]:
    """Cut a range of a file into spans.

    Args:
        begin: First byte.
        end: End of the range.
        chunk_bytes: Chunks end at multiples of this size in the file, and at ``end``.

    Returns:
        Spans in file order; of about ``PIECE_BYTES``, or of one chunk where that is larger.
    """
    edges = [begin, *range((begin // chunk_bytes + 1) * chunk_bytes, end, chunk_bytes), end]
    lengths = [b - a for a, b in zip(edges, edges[1:], strict=False) if b > a]
    per_span = max(1, PIECE_BYTES // chunk_bytes)
    spans = []
    for first in range(0, len(lengths), per_span):
        spans.append(Span(first, edges[first], tuple(lengths[first : first + per_span])))
    return spans


@dataclass(frozen=True, slots=True)
class ChunkReceiver:
    """Receives spans of an object.

    Attributes:
        source: The object.
        buffers: Of at most ``PIECE_BYTES``.
        expected: CRC-32 of each chunk; empty where it is not known.
        sink: Takes the bytes.
        stopped: Tells whether the result is still wanted.
    """

    source: RemoteObject
    buffers: Buffers
    expected: Sequence[int]
    sink: Sink
    stopped: Callable[[], bool] = lambda: False

    def receive(self, span: Span) -> list[int]:
        """Receive a span; gives the CRC-32 of each chunk, as expected or not.

        Raises:
            StoreError: The store failed.
        """
        buffer = self.buffers.take()
        try:
            crcs = self._receive_once(span, buffer)
            wanted = list(self.expected[span.first_chunk : span.first_chunk + len(crcs)])
            for attempt in range(1, RECEIVES_MAX):
                if self.stopped() or not wanted or wanted == crcs:
                    break
                logger.warning(
                    "received bytes of %s that do not match their checksum offset=%d attempt=%d",
                    self.source.url,
                    span.file_offset,
                    attempt,
                )
                crcs = self._receive_once(span, buffer)
            return crcs
        finally:
            self.buffers.give(buffer)

    def _receive_once(self, span: Span, buffer: memoryview) -> list[int]:
        if span.nbytes <= buffer.nbytes:
            return self._receive_together(span, buffer)
        crcs = []
        offset = span.file_offset
        for length in span.lengths:
            crc32 = 0
            for end in _piece_ends(offset, length, buffer.nbytes):
                if self.stopped():
                    break
                view = buffer[: end - offset]
                self.source.read(offset, view)
                crc32 = native.crc32(view, crc32)
                self.sink(offset, view)
                offset = end
            crcs.append(crc32)
        return crcs

    def _receive_together(self, span: Span, buffer: memoryview) -> list[int]:
        view = buffer[: span.nbytes]
        self.source.read(span.file_offset, view)
        crcs = []
        at = 0
        for length in span.lengths:
            crcs.append(native.crc32(view[at : at + length]))
            at += length
        self.sink(span.file_offset, view)
        return crcs


def _piece_ends(offset: int, nbytes: int, piece_bytes: int) -> list[int]:
    """Give the end of each piece of a chunk that is larger than a buffer."""
    end = offset + nbytes
    return [*range(offset + piece_bytes, end, piece_bytes), end]
