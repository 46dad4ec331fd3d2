"""Which bytes KvikIO moves and which the pinned engine does, and how their checksums combine.

Pure. KvikIO gets the large aligned insides of device extents, the pinned engine the rest: headers,
host memory, small extents, odd heads and tails, gaps. No block of the file is touched by both.
"""

from __future__ import annotations

import itertools
import mmap
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from gdsckpt import native
from gdsckpt.engine.base import ROW_WIDTH
from gdsckpt.errors import ConfigError

Row: TypeAlias = tuple[int, int, int, int, int]
"""(address, nbytes, file_offset, crc_offset, device) of an extent."""

LEAST_BYTES = 256 * 1024
"""A smaller inside is not worth requests of its own (estimated, as for cuFile)."""

READ_PIECE_BYTES = 16 * 1024 * 1024
"""Reads are cut at multiples of this file offset, to be seen and dropped piece by piece."""

CRC_BYTES = 4
"""Size of a stored CRC-32."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a device extent that KvikIO moves; within one chunk of the file."""

    extent: int
    address: int
    nbytes: int
    file_offset: int
    device: int


@dataclass(slots=True)
class Run:
    """A range of the file that the pinned engine moves.

    Attributes:
        begin: File offset.
        end: File offset of the end.
        rows: What of it comes from or goes to memory, as an engine wants it.
        extents: Which extent each row is a part of, or -1.
    """

    begin: int
    end: int = -1
    rows: array[int] = field(default_factory=lambda: array("Q"))
    extents: list[int] = field(default_factory=list)

    def add(self, extent: int, row: Row) -> None:
        """Append a part of an extent."""
        self.rows.extend(row)
        self.extents.append(extent)

    def marked(self) -> Run:
        """Give the run with an empty part at each end, so that a write of it fills all of it."""
        run = Run(self.begin, self.end)
        nowhere = native.NO_CRC_SLOT, native.HOST
        run.rows.extend((0, 0, self.begin, *nowhere))
        run.rows.extend(self.rows)
        run.rows.extend((0, 0, self.end, *nowhere))
        run.extents = [-1, *self.extents, -1]
        return run


@dataclass(frozen=True, slots=True)
class Plan:
    """A transfer of extents, cut.

    Attributes:
        num_extents: Extents there are.
        segments: Pieces and runs in file order.
        late_slots: (file offset, extent) of checksums that are not known when the run in which
            they stand is written.
    """

    num_extents: int
    segments: list[Piece | Run]
    late_slots: list[tuple[int, int]]

    @property
    def pieces(self) -> list[Piece]:
        """What KvikIO moves."""
        return [segment for segment in self.segments if isinstance(segment, Piece)]

    @property
    def runs(self) -> list[Run]:
        """What the pinned engine moves."""
        return [segment for segment in self.segments if isinstance(segment, Run)]


def block_bytes(file_alignment: int) -> int:
    """Give the alignment of pieces: a block, a page, and what the file asks for.

    4096 is what cuFile documents; kernels with 64 KiB pages cache the file in those.
    """
    return max(4096, mmap.PAGESIZE, file_alignment)


def rows_of(extents: array[int]) -> Iterator[Row]:
    """Give the rows of packed extents."""
    columns = [extents[i::ROW_WIDTH] for i in range(ROW_WIDTH)]
    return zip(*columns, strict=True)


def is_for_kvikio(extents: array[int], alignment: int) -> bool:
    """Tell whether any byte of packed extents is one for KvikIO."""
    devices = extents[ROW_WIDTH - 1 :: ROW_WIDTH]
    is_on_host = devices.count(native.HOST) == len(devices)
    if is_on_host or len(extents) % ROW_WIDTH:
        return False
    return any(_has_inside(row, alignment) for row in rows_of(extents))


def check(extents: array[int]) -> None:
    """Refuse extents that no engine can move, as the native one does.

    Raises:
        ConfigError: They overlap or do not ascend, have no address, or end beyond 2**63.
    """
    end = 0
    for index, (address, nbytes, offset, _, _) in enumerate(rows_of(extents)):
        if nbytes and not address:
            why = "it has bytes but address 0"
        elif offset + nbytes >= 2**63 or address + nbytes >= 2**64:
            why = "it ends beyond what a file or memory can have"
        elif offset < end:
            why = f"file offset {offset} is below the end of the extent before, {end}"
        else:
            end = offset + nbytes
            continue
        raise ConfigError(f"extent {index} can't be used: {why}.", field="extents")


def plan_write(extents: array[int], alignment: int, chunk_bytes: int) -> Plan:
    """Cut a write.

    Args:
        extents: Packed, checked.
        alignment: Of pieces (``block_bytes``), a divisor of ``chunk_bytes``.
        chunk_bytes: Pieces are cut at multiples of this file offset.

    Raises:
        ConfigError: A CRC slot cannot be.
    """
    plan = _plan(extents, alignment, chunk_bytes)
    if plan.late_slots:
        _check_slots(list(rows_of(extents)), plan.late_slots)
    segments = [
        segment.marked() if isinstance(segment, Run) else segment for segment in plan.segments
    ]
    return Plan(plan.num_extents, segments, plan.late_slots)


def plan_read(extents: array[int], alignment: int) -> Plan:
    """Cut a read; ``crc_offset`` is ignored, and so are gaps."""
    plan = _plan(extents, alignment, READ_PIECE_BYTES)
    segments = [part for part in plan.segments if isinstance(part, Piece) or part.rows]
    return Plan(plan.num_extents, segments, [])


def _plan(extents: array[int], alignment: int, piece_bytes: int) -> Plan:
    rows = list(rows_of(extents))
    segments: list[Piece | Run] = []
    late_slots: list[tuple[int, int]] = []
    run = Run(rows[0][2])
    for index, row in enumerate(rows):
        address, nbytes, offset, slot, device = row
        begin, end = _inside(row, alignment)
        is_late = slot != native.NO_CRC_SLOT and (begin < end or slot < run.begin)
        if is_late:
            late_slots.append((slot, index))
            slot = native.NO_CRC_SLOT
        if begin == end:
            run.add(index, (address, nbytes, offset, slot, device))
            continue
        if offset < begin:
            run.add(index, (address, begin - offset, offset, slot, device))
        _close(run, begin, segments)
        segments.extend(_cut(index, row, (begin, end), piece_bytes))
        run = Run(end)
        if end < offset + nbytes:
            run.add(index, (address + end - offset, offset + nbytes - end, end, slot, device))
    _close(run, rows[-1][2] + rows[-1][1], segments)
    return Plan(len(rows), segments, late_slots)


def _close(run: Run, end: int, segments: list[Piece | Run]) -> None:
    run.end = end
    if run.begin < end:
        segments.append(run)


def _inside(row: Row, alignment: int) -> tuple[int, int]:
    """Give the file range that KvikIO moves of an extent; empty where none is worth it."""
    address, nbytes, offset, _, device = row
    # Memory and file must be aligned alike, or they never are both.
    if device == native.HOST or nbytes < LEAST_BYTES or (address - offset) % alignment:
        return offset, offset
    begin = -(-offset // alignment) * alignment
    end = (offset + nbytes) // alignment * alignment
    return (begin, end) if end - begin >= LEAST_BYTES else (offset, offset)


def _has_inside(row: Row, alignment: int) -> bool:
    begin, end = _inside(row, alignment)
    return begin < end


def _cut(index: int, row: Row, inside: tuple[int, int], piece_bytes: int) -> Iterator[Piece]:
    address, _, offset, _, device = row
    begin, end = inside
    while begin < end:
        cut = min(end, (begin // piece_bytes + 1) * piece_bytes)
        yield Piece(index, address + begin - offset, cut - begin, begin, device)
        begin = cut


def _check_slots(rows: Sequence[Row], late_slots: list[tuple[int, int]]) -> None:
    """Refuse what the native engine refuses, of the slots that it does not see."""
    begins = [row[2] for row in rows]
    for slot, index in late_slots:
        found = max(0, bisect_right(begins, slot) - 1)
        covering = rows[found : bisect_left(begins, slot + CRC_BYTES)]
        if slot < begins[0]:
            why = "it lies before the first extent"
        elif slot + CRC_BYTES > rows[index][2]:
            why = "it must end before its extent begins"
        elif any(
            row[3] != native.NO_CRC_SLOT and row[2] + row[1] > slot and row[1] for row in covering
        ):
            why = "an extent in which it lies has a stored CRC itself"
        else:
            continue
        raise ConfigError(
            f"the CRC slot of extent {index} at offset {slot} can't be used: {why}.",
            field="extents",
        )
    slots = sorted(row[3] for row in rows if row[3] != native.NO_CRC_SLOT)
    for one, other in itertools.pairwise(slots):
        if other < one + CRC_BYTES:
            raise ConfigError(f"two CRC slots overlap at offset {other}.", field="extents")


def combine_extents(num_extents: int, parts: Iterable[tuple[int, int, int]]) -> array[int]:
    """Combine the CRCs of parts, (extent, nbytes, crc) in file order, to one of each extent."""
    crcs = array("I", bytes(4 * num_extents))
    for extent, nbytes, crc in parts:
        if extent >= 0:
            crcs[extent] = native.crc32_combine(crcs[extent], crc, nbytes)
    return crcs


def combine_chunks(parts: Iterable[tuple[int, int, int]], chunk_bytes: int) -> array[int]:
    """Combine the CRCs of ranges, (file_offset, nbytes, crc) in file order, to those of chunks.

    The ranges have no gaps between them, and none crosses the end of a chunk.
    """
    crcs = array("I")
    last = -1
    for offset, nbytes, crc in parts:
        if offset // chunk_bytes == last:
            crcs[-1] = native.crc32_combine(crcs[-1], crc, nbytes)
        else:
            crcs.append(crc)
            last = offset // chunk_bytes
    return crcs


def spans(begin: int, end: int, chunk_bytes: int) -> Iterator[tuple[int, int]]:
    """Give (file_offset, nbytes) of the chunks of a file range."""
    while begin < end:
        cut = min(end, (begin // chunk_bytes + 1) * chunk_bytes)
        yield begin, cut - begin
        begin = cut


def patch_chunks(
    crcs: array[int], span: tuple[int, int], chunk_bytes: int, slot: tuple[int, bytes]
) -> None:
    """Change the CRCs of chunks as if bytes had stood in the place of zeros from the start.

    A CRC is linear: a difference of bytes changes it by the shifted difference of their CRCs.

    Args:
        crcs: Those of the chunks of ``span``; changed in place.
        span: File range, begin and end.
        chunk_bytes: See ``plan_write``.
        slot: File offset and bytes.
    """
    begin, end = span
    offset, data = slot
    for place, nbytes in spans(offset, offset + len(data), chunk_bytes):
        part = data[place - offset : place - offset + nbytes]
        chunk = place // chunk_bytes
        chunk_end = min(end, (chunk + 1) * chunk_bytes)
        change = native.crc32(part) ^ native.crc32_zeros(nbytes)
        index = chunk - begin // chunk_bytes
        crcs[index] ^= native.crc32_combine(change, 0, chunk_end - place - nbytes)
