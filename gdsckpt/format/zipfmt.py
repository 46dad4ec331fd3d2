"""Encode and decode the zip structures that torch archives use: stored records, zip64.

Source: PKWARE APPNOTE.TXT 6.3.10, sections 4.3.7 (local header), 4.3.12 (central directory),
4.3.14 to 4.3.16 (end records), 4.5.3 (zip64 extra field).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from gdsckpt.errors import FormatError

MAX_U16 = 0xFFFF
MAX_U32 = 0xFFFFFFFF

LOCAL_HEADER = struct.Struct("<4s5H3I2H")
LOCAL_SIGNATURE = b"PK\x03\x04"
LOCAL_CRC_OFFSET = 14
"""Offset of the CRC32 field within a local header."""

CENTRAL_ENTRY = struct.Struct("<4s6H3I5H2I")
CENTRAL_SIGNATURE = b"PK\x01\x02"

END = struct.Struct("<4s4H2IH")
END_SIGNATURE = b"PK\x05\x06"
END64 = struct.Struct("<4sQ2H2I4Q")
END64_SIGNATURE = b"PK\x06\x06"
END64_LOCATOR = struct.Struct("<4sIQI")
END64_LOCATOR_SIGNATURE = b"PK\x06\x07"

_ZIP64_ID = 1
_UTF8_FLAG = 0x0800
_VERSION_PLAIN = 20
_VERSION_ZIP64 = 45
_DOS_DATE_1980 = 0x21


class Entry(NamedTuple):  # made 100,000 times: in a third of a dataclass's time
    """One record as the central directory describes it.

    Attributes:
        name: Entry name, archive folder included.
        nbytes: Payload size in bytes.
        crc32: CRC-32 of the payload as recorded; 0 where the writer left it out.
        header_offset: File offset of the local header.
        is_stored: The payload is neither compressed nor encrypted.
    """

    name: str
    nbytes: int
    crc32: int
    header_offset: int
    is_stored: bool


@dataclass(frozen=True, slots=True)
class EndRecord:
    """Where the central directory lies, from the end records.

    Attributes:
        num_entries: Number of entries.
        directory_offset: File offset of the central directory.
        directory_nbytes: Its size in bytes.
        end_offset: File offset where the end records begin (zip64 ones included).
        comment: Archive comment.
    """

    num_entries: int
    directory_offset: int
    directory_nbytes: int
    end_offset: int
    comment: bytes


def local_header_nbytes(name: str, nbytes: int) -> int:
    """Give the size in bytes of the local header that this module writes for a record."""
    return LOCAL_HEADER.size + len(name.encode()) + (20 if nbytes >= MAX_U32 else 0)


def local_header(name: str, nbytes: int, crc32: int) -> bytes:
    """Encode a local header; ``crc32`` 0 leaves the field to be filled in later."""
    raw_name = name.encode()
    if nbytes >= MAX_U32:
        extra = struct.pack("<2H2Q", _ZIP64_ID, 16, nbytes, nbytes)
        version, size_field = _VERSION_ZIP64, MAX_U32
    else:
        extra, version, size_field = b"", _VERSION_PLAIN, nbytes
    fixed = LOCAL_HEADER.pack(
        LOCAL_SIGNATURE,
        version,
        _UTF8_FLAG,
        0,
        0,
        _DOS_DATE_1980,
        crc32,
        size_field,
        size_field,
        len(raw_name),
        len(extra),
    )
    return fixed + raw_name + extra


def central_entry(name: str, nbytes: int, crc32: int, header_offset: int) -> bytes:
    """Encode one entry of the central directory."""
    raw_name = name.encode()
    zip64 = b""
    size_field, offset_field = nbytes, header_offset
    if nbytes >= MAX_U32:
        zip64 += struct.pack("<2Q", nbytes, nbytes)
        size_field = MAX_U32
    if header_offset >= MAX_U32:
        zip64 += struct.pack("<Q", header_offset)
        offset_field = MAX_U32
    extra = struct.pack("<2H", _ZIP64_ID, len(zip64)) + zip64 if zip64 else b""
    version = _VERSION_ZIP64 if zip64 else _VERSION_PLAIN
    fixed = CENTRAL_ENTRY.pack(
        CENTRAL_SIGNATURE,
        version,
        version,
        _UTF8_FLAG,
        0,
        0,
        _DOS_DATE_1980,
        crc32,
        size_field,
        size_field,
        len(raw_name),
        len(extra),
        0,
        0,
        0,
        0,
        offset_field,
    )
    return fixed + raw_name + extra


NAMELESS_HEADER = LOCAL_HEADER.pack(
    LOCAL_SIGNATURE, _VERSION_PLAIN, _UTF8_FLAG, 0, 0, _DOS_DATE_1980, 0, 0, 0, 0, 0
)
"""Local header of a record of no bytes that does not repeat the name of its entry."""

_NAMELESS_ENTRY = struct.Struct("<28sH12xI")
_NAMELESS_ENTRY_HEAD = central_entry("", 0, 0, 0)[:28]


def nameless_entry(name: str, header_offset: int) -> bytes:
    """Encode the directory entry of a ``NAMELESS_HEADER``; ``header_offset`` is below 4 GiB.

    The same as :func:`central_entry` of 0 bytes, in a third of the time.
    """
    raw_name = name.encode()
    return _NAMELESS_ENTRY.pack(_NAMELESS_ENTRY_HEAD, len(raw_name), header_offset) + raw_name


def end_records(
    num_entries: int, directory_offset: int, directory_nbytes: int, comment_nbytes: int
) -> bytes:
    """Encode the end of the archive, without the comment's bytes that have to follow."""
    needs_zip64 = (
        num_entries >= MAX_U16 or directory_offset >= MAX_U32 or directory_nbytes >= MAX_U32
    )
    encoded = b""
    if needs_zip64:
        encoded += END64.pack(
            END64_SIGNATURE,
            END64.size - 12,
            _VERSION_ZIP64,
            _VERSION_ZIP64,
            0,
            0,
            num_entries,
            num_entries,
            directory_nbytes,
            directory_offset,
        )
        encoded += END64_LOCATOR.pack(
            END64_LOCATOR_SIGNATURE, 0, directory_offset + directory_nbytes, 1
        )
    return encoded + END.pack(
        END_SIGNATURE,
        0,
        0,
        min(num_entries, MAX_U16),
        min(num_entries, MAX_U16),
        min(directory_nbytes, MAX_U32),
        min(directory_offset, MAX_U32),
        comment_nbytes,
    )


END_SEARCH_BYTES = END64.size + END64_LOCATOR.size + END.size + MAX_U16
"""The end records stand within this many bytes of the file's end."""


def find_end(tail: bytes, file_nbytes: int, path: str) -> EndRecord | None:
    """Find the end records in the last bytes of a file.

    Args:
        tail: The last ``min(file_nbytes, END_SEARCH_BYTES)`` bytes.
        file_nbytes: Size of the file in bytes.
        path: For messages.

    Returns:
        The end record, or None where there is no end signature (not a zip file).

    Raises:
        FormatError: The end records contradict each other or the file's size.
    """
    position = _end_position(tail)
    if position is None:
        return None
    base = file_nbytes - len(tail)
    _, disk, _, _, entries, directory_nbytes, directory_offset, comment_nbytes = END.unpack_from(
        tail, position
    )
    comment = tail[position + END.size : position + END.size + comment_nbytes]
    end_offset = base + position
    needs_zip64 = entries == MAX_U16 or directory_nbytes == MAX_U32 or directory_offset == MAX_U32
    locator_at = position - END64_LOCATOR.size
    has_locator = locator_at >= 0 and tail[locator_at:].startswith(END64_LOCATOR_SIGNATURE)
    if needs_zip64 and has_locator:
        _, _, end64_offset, _ = END64_LOCATOR.unpack_from(tail, locator_at)
        at = end64_offset - base
        if not (0 <= at <= locator_at - END64.size) or tail[at : at + 4] != END64_SIGNATURE:
            raise FormatError(
                f"{path} is damaged: its zip64 locator points to {end64_offset}, where no zip64 "
                "end record stands. Use another copy.",
                path=path,
                offset=base + locator_at,
            )
        fields = END64.unpack_from(tail, at)
        entries, directory_nbytes, directory_offset = fields[7], fields[8], fields[9]
        end_offset = end64_offset
    if disk != 0 or directory_offset + directory_nbytes > end_offset:
        raise FormatError(
            f"{path} is damaged: its central directory ({directory_nbytes} bytes at "
            f"{directory_offset}) does not fit before the end record at {end_offset}. "
            "Use another copy.",
            path=path,
            offset=base + position,
        )
    if entries * CENTRAL_ENTRY.size > directory_nbytes:
        raise FormatError(
            f"{path} is damaged: {entries} entries cannot fit into a central directory of "
            f"{directory_nbytes} bytes. Use another copy.",
            path=path,
            offset=directory_offset,
        )
    return EndRecord(entries, directory_offset, directory_nbytes, end_offset, comment)


def _end_position(tail: bytes) -> int | None:
    """Find the last end signature whose comment ends exactly at the file's end."""
    position = len(tail) - END.size
    while position >= 0:
        position = tail.rfind(END_SIGNATURE, 0, position + len(END_SIGNATURE))
        if position < 0:
            return None
        (comment_nbytes,) = struct.unpack_from("<H", tail, position + END.size - 2)
        if position + END.size + comment_nbytes == len(tail):
            return position
        position -= 1
    return None


def parse_directory(directory: bytes, end: EndRecord, path: str) -> list[Entry]:
    """Decode the central directory.

    Args:
        directory: Its ``end.directory_nbytes`` bytes.
        end: The end record that led here.
        path: For messages.

    Returns:
        Entries in directory order.

    Raises:
        FormatError: An entry is cut short, lies outside the file, or a name comes twice.
    """
    entries: list[Entry] = []
    position = 0
    for _ in range(end.num_entries):
        entry, position = _parse_entry(directory, position, end, path)
        entries.append(entry)
    if len({entry.name for entry in entries}) != len(entries):
        raise FormatError(
            f"{path} is damaged: its central directory names a record twice. Use another copy.",
            path=path,
            offset=end.directory_offset,
        )
    return entries


def _parse_entry(directory: bytes, position: int, end: EndRecord, path: str) -> tuple[Entry, int]:
    name_at = position + CENTRAL_ENTRY.size
    if name_at > len(directory):
        raise _bad_entry(path, end, position, "it is cut short")
    fields = CENTRAL_ENTRY.unpack_from(directory, position)
    signature, flags, method, crc32 = fields[0], fields[3], fields[4], fields[7]
    packed_nbytes, nbytes = fields[8], fields[9]
    name_nbytes, extra_nbytes, comment_nbytes = fields[10], fields[11], fields[12]
    header_offset = fields[16]
    next_position = name_at + name_nbytes + extra_nbytes + comment_nbytes
    if signature != CENTRAL_SIGNATURE or next_position > len(directory):
        raise _bad_entry(path, end, position, "its signature or lengths are wrong")
    extra_at = name_at + name_nbytes
    if MAX_U32 in (nbytes, packed_nbytes, header_offset):
        extra = directory[extra_at : extra_at + extra_nbytes]
        nbytes, packed_nbytes, header_offset = _zip64_fields(
            extra, nbytes, packed_nbytes, header_offset
        )
    try:
        name = directory[name_at:extra_at].decode()
    except UnicodeDecodeError:
        raise _bad_entry(path, end, position, "its name is not UTF-8") from None
    is_stored = method == 0 and not flags & 1 and packed_nbytes == nbytes
    if header_offset + LOCAL_HEADER.size + packed_nbytes > end.directory_offset:
        raise _bad_entry(
            path, end, position, f"{name!r} ({nbytes} bytes) does not fit into the file"
        )
    return Entry(name, nbytes, crc32, header_offset, is_stored), next_position


def _zip64_fields(
    extra: bytes, nbytes: int, packed_nbytes: int, header_offset: int
) -> tuple[int, int, int]:
    """Replace the fields that hold 0xFFFFFFFF by those of the zip64 extra field, in its order."""
    at = 0
    while at + 4 <= len(extra):
        field_id, field_nbytes = struct.unpack_from("<2H", extra, at)
        if field_id == _ZIP64_ID:
            raw = extra[at + 4 : at + 4 + field_nbytes]
            wide = list(struct.unpack(f"<{len(raw) // 8}Q", raw[: len(raw) // 8 * 8]))
            fields = [nbytes, packed_nbytes, header_offset]
            for n, value in enumerate(fields):
                if value == MAX_U32 and wide:
                    fields[n] = wide.pop(0)
            return fields[0], fields[1], fields[2]
        at += 4 + field_nbytes
    return nbytes, packed_nbytes, header_offset


def _bad_entry(path: str, end: EndRecord, position: int, why: str) -> FormatError:
    offset = end.directory_offset + position
    return FormatError(
        f"{path} is damaged: the central directory entry at {offset} is wrong: {why}. "
        "Use another copy.",
        path=path,
        offset=offset,
    )


def payload_offset(header: bytes, entry: Entry, path: str) -> int:
    """Give the file offset of a record's payload from the fixed part of its local header.

    Raises:
        FormatError: No local header stands where the central directory says.
    """
    if len(header) < LOCAL_HEADER.size or not header.startswith(LOCAL_SIGNATURE):
        raise FormatError(
            f"{path} is damaged: no local header of {entry.name!r} at {entry.header_offset}. "
            "Use another copy.",
            path=path,
            offset=entry.header_offset,
        )
    name_nbytes, extra_nbytes = struct.unpack_from("<2H", header, LOCAL_HEADER.size - 4)
    return int(entry.header_offset + LOCAL_HEADER.size + name_nbytes + extra_nbytes)


def central_directory(entries: Iterable[Entry]) -> bytes:
    """Encode the central directory of stored entries, in the given order."""
    return b"".join(central_entry(e.name, e.nbytes, e.crc32, e.header_offset) for e in entries)
