"""Cut a file into the parts of an upload, and find their checksums without reading the parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gdsckpt import native
from gdsckpt.errors import ConfigError
from gdsckpt.format import checksum
from gdsckpt.store.base import PART_MIN_BYTES, PARTS_MAX

PART_BYTES_MAX = 5 << 30
"""Source: Amazon S3 User Guide, "Multipart upload limits"."""


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a file that is sent by one request.

    Attributes:
        number: From 1 on, in file order.
        file_offset: Where it begins.
        nbytes: Its length.
    """

    number: int
    file_offset: int
    nbytes: int

    @property
    def end_offset(self) -> int:
        """Where it ends in the file."""
        return self.file_offset + self.nbytes


@dataclass(frozen=True, slots=True)
class FileCrcs:
    """Checksums that cover a file from its beginning, and a way to the bytes after them.

    Attributes:
        chunk_bytes: Size of each chunk but the last.
        covered_bytes: The chunks end here.
        chunk_crc32: CRC-32 of each chunk.
        read: Gives bytes of the file, by offset and length, for the rest; it is small.
    """

    chunk_bytes: int
    covered_bytes: int
    chunk_crc32: Sequence[int]
    read: Callable[[int, int], bytes]


def split_parts(file_bytes: int, part_bytes: int, *, unit_bytes: int) -> list[Part]:
    """Cut a file into multipart-upload parts.

    Parts are equal but the last, and multiples of ``unit_bytes``; they grow when the file would
    need more than 10 000.

    Args:
        file_bytes: File size in bytes; 0 gives one empty part.
        part_bytes: Wanted part size in bytes, at least 5 MiB.
        unit_bytes: Chunk size of the file: no chunk may lie in two parts.

    Returns:
        Parts in file order, without gaps; their ``nbytes`` add up to ``file_bytes``.

    Raises:
        ConfigError: ``part_bytes`` is below 5 MiB, or the file needs parts of more than 5 GiB.
    """
    if part_bytes < PART_MIN_BYTES:
        raise ConfigError(
            f"parts of {part_bytes} bytes are below the {PART_MIN_BYTES} that object stores take. "
            "Raise upload_part_bytes.",
            field="upload_part_bytes",
        )
    wanted = max(part_bytes, -(-file_bytes // PARTS_MAX))
    nbytes = -(-wanted // unit_bytes) * unit_bytes
    if nbytes > PART_BYTES_MAX and file_bytes > PART_BYTES_MAX:
        raise ConfigError(
            f"a file of {file_bytes} bytes in chunks of {unit_bytes} needs parts of {nbytes} "
            f"bytes, and object stores take {PART_BYTES_MAX}. Save it in several files, or lower "
            "upload_part_bytes if that is set.",
            field="upload_part_bytes",
        )
    return [
        Part(number, offset, min(nbytes, file_bytes - offset))
        for number, offset in enumerate(range(0, max(1, file_bytes), nbytes), 1)
    ]


def part_crcs(parts: Sequence[Part], crcs: FileCrcs) -> list[int]:
    """Give the CRC-32 of each part.

    Args:
        parts: As :func:`split_parts` gives them for the chunk size of ``crcs``.
        crcs: Checksums of the whole file.
    """
    found = []
    for part in parts:
        begin = part.file_offset // crcs.chunk_bytes
        covered_end = max(part.file_offset, min(part.end_offset, crcs.covered_bytes))
        end = -(-covered_end // crcs.chunk_bytes)
        lengths = (
            min(crcs.chunk_bytes, crcs.covered_bytes - n * crcs.chunk_bytes)
            for n in range(begin, end)
        )
        value = checksum.combine(zip(crcs.chunk_crc32[begin:end], lengths, strict=True))
        rest = crcs.read(covered_end, part.end_offset - covered_end)
        found.append(native.crc32(rest, value))
    return found


def whole_crc(parts: Sequence[Part], crcs: Sequence[int]) -> int:
    """Give the CRC-32 of the file from those of its parts."""
    return checksum.combine((crc, part.nbytes) for part, crc in zip(parts, crcs, strict=True))
