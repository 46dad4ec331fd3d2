"""Receive extents of an object into memory: which requests they take, and the checks after them."""

from __future__ import annotations

import ctypes
import functools
import logging
import threading
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gdsckpt import native
from gdsckpt.engine.base import Extent
from gdsckpt.format import checksum
from gdsckpt.remote.chunks import PIECE_BYTES, RECEIVES_MAX
from gdsckpt.remote.crew import Job, Work
from gdsckpt.remote.objects import Buffers, RemoteObject

logger = logging.getLogger(__name__)

SMALL_BYTES = 4 << 20
"""Extents below this share a request with their neighbours."""

DIRECT_BYTES = 32 << 20
"""What is received by one request where it needs no buffer: a request costs as much CPU time as
5 MB of its answer."""

GAP_BYTES_MAX = 256 << 10
"""Bytes between two of them that are received for nothing, rather than ask twice."""


class ObjectTransfer(Work):
    """A read or scan of an object.

    Args:
        source: The object.
        total_bytes: Bytes wanted.
        num_crcs: Of how many extents or chunks the CRC-32 is to be known.
    """

    def __init__(self, source: RemoteObject, total_bytes: int, num_crcs: int) -> None:
        super().__init__(total_bytes, source.store.interrupt)
        self.crcs = array("I", bytes(4 * num_crcs))

    def extent_crcs(self) -> bytes:
        """Give the CRC-32 of each extent of a read, native-endian uint32."""
        return self.crcs.tobytes()

    def chunk_crcs(self) -> bytes:
        """Give the CRC-32 of each chunk of a scan, native-endian uint32."""
        return self.crcs.tobytes()


def group_extents(extents: Sequence[Extent]) -> list[list[int]]:
    """Say which extents are received by one request.

    Args:
        extents: In any order; those without bytes need no request.

    Returns:
        Indices, in file order: small neighbours together, within ``PIECE_BYTES`` from the first to
        the last byte; large extents alone.
    """
    groups: list[list[int]] = []
    begin = end = 0
    may_grow = False
    for index in sorted(range(len(extents)), key=lambda n: extents[n].file_offset):
        extent = extents[index]
        if not extent.nbytes:
            continue
        extent_end = extent.file_offset + extent.nbytes
        is_small = extent.nbytes < SMALL_BYTES
        is_near = extent.file_offset - end <= GAP_BYTES_MAX and extent_end - begin <= PIECE_BYTES
        if may_grow and is_small and is_near:
            groups[-1].append(index)
            end = max(end, extent_end)
        else:
            groups.append([index])
            begin, end = extent.file_offset, extent_end
        may_grow = is_small
    return groups


@dataclass(slots=True)
class _Large:
    """An extent that several threads receive in pieces; the last one checks it.

    Attributes:
        index: Number of the extent.
        extent: What it is.
        crcs: CRC-32 of each piece.
        num_left: Pieces that are not there yet.
    """

    index: int
    extent: Extent
    crcs: array[int]
    num_left: int
    lock: threading.Lock = field(default_factory=threading.Lock)

    def has_all(self) -> bool:
        """Note the end of a piece; tells whether it was the last one."""
        with self.lock:
            self.num_left -= 1
            return self.num_left == 0


@dataclass(frozen=True, slots=True)
class ExtentReceiver:
    """Receives the extents of one read.

    Attributes:
        source: The object.
        buffers: For what cannot be received where it has to go; of ``PIECE_BYTES``.
        expected: CRC-32 by (file offset, nbytes), as far as known.
        transfer: Gets checksums and progress.
        fence: What device memory has to wait for; None for nothing.
        owner: Keeps the memory alive.
    """

    source: RemoteObject
    buffers: Buffers
    expected: Mapping[tuple[int, int], int]
    transfer: ObjectTransfer
    fence: native.StreamFence | None
    owner: object

    def jobs(self, extents: Sequence[Extent]) -> Iterator[Job]:
        """Give the jobs that receive extents, in file order."""
        for group in group_extents(extents):
            first = extents[group[0]]
            if first.nbytes < SMALL_BYTES:
                yield functools.partial(self._receive_group, [(n, extents[n]) for n in group])
                continue
            num_pieces = len(_pieces_of(first))
            large = _Large(group[0], first, array("I", bytes(4 * num_pieces)), num_pieces)
            for number in range(num_pieces):
                yield functools.partial(self._receive_piece, large, number)

    def _receive_group(self, members: Sequence[tuple[int, Extent]]) -> None:
        begin = members[0][1].file_offset
        end = max(extent.file_offset + extent.nbytes for _, extent in members)
        buffer = self.buffers.take()
        try:
            self.source.read(begin, buffer[: end - begin])
            for index, extent in members:
                at = extent.file_offset - begin
                self.transfer.crcs[index] = self._put(extent, 0, buffer[at : at + extent.nbytes])
        finally:
            self.buffers.give(buffer)
        for index, extent in members:
            self.transfer.crcs[index] = self._mended(extent, self.transfer.crcs[index])
            self.transfer.advance(extent.nbytes)

    def _receive_piece(self, large: _Large, number: int) -> None:
        at, nbytes = _pieces_of(large.extent)[number]
        large.crcs[number] = self._receive_at(large.extent, at, nbytes)
        self.transfer.advance(nbytes)
        if large.has_all():
            lengths = (length for _, length in _pieces_of(large.extent))
            crc32 = checksum.combine(zip(large.crcs, lengths, strict=True))
            self.transfer.crcs[large.index] = self._mended(large.extent, crc32)

    def _mended(self, extent: Extent, crc32: int) -> int:
        """Receive an extent again while its checksum is wrong; gives the last one's."""
        wanted = self.expected.get((extent.file_offset, extent.nbytes), crc32)
        for attempt in range(1, RECEIVES_MAX):
            if crc32 == wanted or self.transfer.is_stopped:
                break
            logger.warning(
                "received bytes of %s that do not match their checksum offset=%d nbytes=%d "
                "attempt=%d",
                self.source.url,
                extent.file_offset,
                extent.nbytes,
                attempt,
            )
            crc32 = checksum.combine(
                (self._receive_at(extent, at, nbytes), nbytes) for at, nbytes in _pieces_of(extent)
            )
        return crc32

    def _receive_at(self, extent: Extent, at: int, nbytes: int) -> int:
        """Receive a piece of an extent to where it has to go; gives its CRC-32."""
        offset = extent.file_offset + at
        if extent.device == native.HOST:
            self.source.read(offset, memory_at(extent.address + at, nbytes))
            return native.crc32_at(extent.address + at, nbytes)
        buffer = self.buffers.take()
        try:
            self.source.read(offset, buffer[:nbytes])
            return self._put(extent, at, buffer[:nbytes])
        finally:
            self.buffers.give(buffer)

    def _put(self, extent: Extent, at: int, view: memoryview) -> int:
        """Copy received bytes to where they have to go; gives their CRC-32."""
        address = extent.address + at
        if extent.device == native.HOST:
            memory_at(address, view.nbytes)[:] = view
        else:
            if self.fence is not None:
                self.fence.wait()
            source = ctypes.addressof(ctypes.c_char.from_buffer(view))
            native.cuda_copy_to_device(extent.device, address, source, view.nbytes)
        return native.crc32(view)


def memory_at(address: int, nbytes: int) -> memoryview:
    """Give a writable view of memory by address, which the caller keeps alive."""
    return memoryview((ctypes.c_char * nbytes).from_address(address)).cast("B")


def _pieces_of(extent: Extent) -> list[tuple[int, int]]:
    """Give (offset in the extent, nbytes) of each piece of an extent."""
    is_direct = extent.device == native.HOST
    return checksum.chunk_spans(extent.nbytes, DIRECT_BYTES if is_direct else PIECE_BYTES)
