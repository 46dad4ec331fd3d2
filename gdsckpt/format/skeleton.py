"""The skeleton: a small archive that torch unpickles in place of the real one.

It holds the pickle and the other small records of a shard, but of each storage only a local header,
without name or size: torch looks for nothing else in it. All storages share one hole, so mapping it
costs no memory, whatever the shard's size; where a storage begins in the mapping tells which record
the pickle asked for. torch thus reads exactly the pickle bytes that were checked, and never the
payloads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gdsckpt.format import zipfmt


@dataclass(frozen=True, slots=True)
class Skeleton:
    """Bytes of a skeleton archive.

    Attributes:
        head: Bytes from offset 0.
        tail: Bytes at ``tail_offset``: the central directory and end records.
        tail_offset: Where the hole ends.
        payload_offsets: Where in the skeleton each storage seems to begin, as ``storages`` came.
    """

    head: bytes
    tail: bytes
    tail_offset: int
    payload_offsets: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Size of the whole archive, the hole included."""
        return self.tail_offset + len(self.tail)


def build(storages: Sequence[tuple[str, int]], small: Sequence[tuple[str, bytes, int]]) -> Skeleton:
    """Build the skeleton of a shard.

    Args:
        storages: (entry name, nbytes) of each storage record.
        small: (entry name, payload, CRC-32) of every other record.

    Returns:
        A skeleton whose central directory names every record.
    """
    head = bytearray(zipfmt.NAMELESS_HEADER * len(storages))
    directory = [
        zipfmt.nameless_entry(name, n * len(zipfmt.NAMELESS_HEADER))
        for n, (name, _) in enumerate(storages)
    ]
    payload_offsets = [(n + 1) * len(zipfmt.NAMELESS_HEADER) for n in range(len(storages))]
    for name, payload, crc32 in small:
        directory.append(zipfmt.central_entry(name, len(payload), crc32, len(head)))
        head += zipfmt.local_header(name, len(payload), crc32)
        head += payload
    ends_of_storages = (
        at + nbytes for at, (_, nbytes) in zip(payload_offsets, storages, strict=True)
    )
    tail_offset = max(len(head), *ends_of_storages, 0)
    raw_directory = b"".join(directory)
    ends = zipfmt.end_records(len(directory), tail_offset, len(raw_directory), 0)
    return Skeleton(bytes(head), raw_directory + ends, tail_offset, tuple(payload_offsets))
