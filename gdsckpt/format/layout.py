"""Where each record of a shard goes: pure arithmetic, decided before a byte is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

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
class ShardLayout:
    """The whole shard up to the chunk table.

    Attributes:
        records: All records in file order; ``data.pkl`` is the last.
        covered_bytes: Where the last payload ends: all that the chunk table covers.
    """

    records: tuple[Placement, ...]
    covered_bytes: int


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
    skipped = len(DATA_PREFIX)
    return {
        int(record.name[skipped:]): record.payload_offset
        for record in shard.records
        if record.name.startswith(DATA_PREFIX)
    }


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
    records: list[Placement] = []
    end_offset = 0
    for name, nbytes in fixed_records:
        records.append(place(name, nbytes, end_offset, 1))
        end_offset = records[-1].end_offset
    for n in payload_order(storage_nbytes):
        nbytes = storage_nbytes[n]
        records.append(place(f"{DATA_PREFIX}{n}", nbytes, end_offset, alignment_of(nbytes)))
        end_offset = records[-1].end_offset
    records.append(place(PICKLE_RECORD, pickle_nbytes, end_offset, SMALL_ALIGNMENT))
    return ShardLayout(tuple(records), records[-1].end_offset)
