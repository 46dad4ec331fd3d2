"""Where each record of a shard goes: pure arithmetic, decided before a byte is written."""

from __future__ import annotations

from array import array
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from gdsckpt.format import zipfmt

ARCHIVE = "archive"
"""Folder inside the zip; torch takes it from the first entry of the central directory."""

FORMAT_RECORD = f"{ARCHIVE}/gdsckpt/format"
TABLE_RECORD = f"{ARCHIVE}/gdsckpt/table"
PICKLE_RECORD = f"{ARCHIVE}/data.pkl"
BYTEORDER_RECORD = f"{ARCHIVE}/byteorder"
VERSION_RECORD = f"{ARCHIVE}/version"
DATA_PREFIX = f"{ARCHIVE}/data/"

FORMAT_VERSION = 1
TORCH_ARCHIVE_VERSION = b"3\n"
"""The ``version`` record that torch 1.6 and later write for tensors only."""

LARGE_BYTES = 8 << 20
LARGE_ALIGNMENT = 64 << 10
"""64 KiB pages of Grace kernels and cuFile's fast path (facts of cuFile 1.20); at most 0.8 %."""

MEDIUM_BYTES = 512 << 10
MEDIUM_ALIGNMENT = 4 << 10
"""Direct-I/O block. From 512 KiB on, so that padding stays under 0.8 % of the payload."""

SMALL_ALIGNMENT = 64
"""torch's own alignment: what ``mmap=True`` readers expect of a tensor."""

Value = TypeVar("Value")


class Placement(NamedTuple):
    """One record's place in the file.

    Attributes:
        name: Entry name in the zip, archive folder included.
        nbytes: Payload size in bytes.
        header_offset: File offset of the local header.
        payload_offset: File offset of the first payload byte; right after the header.
    """

    name: str
    nbytes: int
    header_offset: int
    payload_offset: int

    @property
    def end_offset(self) -> int:
        """File offset of the first byte after the payload."""
        return self.payload_offset + self.nbytes


@dataclass(frozen=True, slots=True)
class StorageRecords:
    """The records of the storages in file order, in columns: there may be 100,000 of them.

    Attributes:
        numbers: Numbers of the storages; that of ``n`` is called ``data/<n>``.
        nbytes: As ``Placement.nbytes``.
        header_offsets: As ``Placement.header_offset``.
        payload_offsets: As ``Placement.payload_offset``.
    """

    numbers: array[int]
    nbytes: array[int]
    header_offsets: array[int]
    payload_offsets: array[int]


@dataclass(frozen=True, slots=True)
class ShardLayout:
    """The whole shard up to the chunk table.

    Attributes:
        fixed: The small records at the beginning, in file order.
        storages: The records that follow.
        pickle: ``data.pkl``, the last one.
    """

    fixed: tuple[Placement, ...]
    storages: StorageRecords
    pickle: Placement

    @property
    def covered_bytes(self) -> int:
        """Where the last payload ends: all that the chunk table covers."""
        return self.pickle.end_offset

    @property
    def num_records(self) -> int:
        """How many records there are."""
        return len(self.fixed) + len(self.storages.numbers) + 1

    @property
    def records(self) -> tuple[Placement, ...]:
        """All records in file order, made anew; for a shard of many this takes its time."""
        columns = self.storages
        named = (f"{DATA_PREFIX}{number}" for number in columns.numbers)
        rows = zip(
            named, columns.nbytes, columns.header_offsets, columns.payload_offsets, strict=True
        )
        return (*self.fixed, *map(Placement._make, rows), self.pickle)

    def of_storages(self, values: Sequence[Value]) -> Sequence[Value]:
        """Pick, of one value for each record in file order, those for the storages."""
        return values[len(self.fixed) : -1]


def alignment_of(nbytes: int) -> int:
    """Give the file alignment in bytes of a storage payload of ``nbytes``."""
    if nbytes >= LARGE_BYTES:
        return LARGE_ALIGNMENT
    if nbytes >= MEDIUM_BYTES:
        return MEDIUM_ALIGNMENT
    return SMALL_ALIGNMENT


def place(name: str, nbytes: int, start_offset: int, alignment: int) -> Placement:
    """Place one record at the first aligned payload offset that leaves room for its header.

    Args:
        name: Entry name.
        nbytes: Payload size in bytes.
        start_offset: First free file offset.
        alignment: Power of two that divides the payload's offset.

    Returns:
        The placement; bytes between ``start_offset`` and its header are zeros.
    """
    header_nbytes = zipfmt.local_header_nbytes(name, nbytes)
    payload_offset = (start_offset + header_nbytes + alignment - 1) & -alignment
    return Placement(name, nbytes, payload_offset - header_nbytes, payload_offset)


def payload_order(storage_nbytes: Sequence[int]) -> list[int]:
    """Give the numbers of the storages in the order in which a shard holds them.

    Large ones first, then small ones, each in the order of the state.
    """
    keys = range(len(storage_nbytes))
    large = [n for n in keys if storage_nbytes[n] >= MEDIUM_BYTES]
    return large + [n for n in keys if storage_nbytes[n] < MEDIUM_BYTES]


def payload_offsets(shard: ShardLayout) -> dict[int, int]:
    """Give the file offset of the payload of each storage, by its number."""
    return dict(zip(shard.storages.numbers, shard.storages.payload_offsets, strict=True))


def payloads_end(shard: ShardLayout, numbers: Set[int]) -> int:
    """Give the file offset where the last payload of some storages ends; 0 where there are none."""
    records = shard.storages
    for at in reversed(range(len(records.numbers))):
        if records.numbers[at] in numbers:
            return records.payload_offsets[at] + records.nbytes[at]
    return 0


def plan_shard(
    storage_nbytes: Sequence[int], fixed_records: Sequence[tuple[str, int]], pickle_nbytes: int
) -> ShardLayout:
    """Lay out a shard.

    The small fixed records come first, without gaps, so that the first local header stands at
    offset 0 (a gap there makes torch think of a legacy file). Large payloads follow in pickle
    order, then small ones, then the pickle: equal shapes give equal offsets from step to step.

    Args:
        storage_nbytes: Size of each storage; number ``n`` becomes record ``data/<n>``.
        fixed_records: (name, nbytes) of the records before the payloads.
        pickle_nbytes: Size of ``data.pkl``.

    Returns:
        Records in file order, not overlapping.
    """
    fixed: list[Placement] = []
    end_offset = 0
    for name, nbytes in fixed_records:
        fixed.append(place(name, nbytes, end_offset, 1))
        end_offset = fixed[-1].end_offset
    storages, end_offset = _place_storages(storage_nbytes, end_offset)
    pickle = place(PICKLE_RECORD, pickle_nbytes, end_offset, SMALL_ALIGNMENT)
    return ShardLayout(tuple(fixed), storages, pickle)


def _place_storages(storage_nbytes: Sequence[int], start_offset: int) -> tuple[StorageRecords, int]:
    """Do for all storages what ``place`` does for one; also give where the last one ends."""
    order = payload_order(storage_nbytes)
    sizes = [storage_nbytes[n] for n in order]
    of_size = {  # many storages share few sizes
        nbytes: (zipfmt.local_header_nbytes(DATA_PREFIX, nbytes), alignment_of(nbytes))
        for nbytes in set(sizes)
    }
    header_offsets = array("Q")
    payload_offsets = array("Q")
    end_offset = start_offset
    for n, nbytes in zip(order, sizes, strict=True):
        numberless_nbytes, alignment = of_size[nbytes]
        header_nbytes = numberless_nbytes + len(str(n))
        payload_offset = (end_offset + header_nbytes + alignment - 1) & -alignment
        header_offsets.append(payload_offset - header_nbytes)
        payload_offsets.append(payload_offset)
        end_offset = payload_offset + nbytes
    records = StorageRecords(array("Q", order), array("Q", sizes), header_offsets, payload_offsets)
    return records, end_offset
