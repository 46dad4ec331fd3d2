"""The closing comment of a shard: the last bytes of the file, the key to all the others.

It is the zip archive comment, plain ASCII of fixed length::

    gdsckpt/1 table=<16 hex digits> tail=<8 hex digits> check=<8 hex digits>

``table`` is the file offset of the chunk table's local header. ``tail`` is the CRC-32 of all bytes
from there up to the digits of ``tail`` themselves: table, central directory, end records and the
comment's own beginning. ``check`` is the CRC-32 of the comment up to its own digits.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from gdsckpt.errors import FormatError, UnsupportedVersionError
from gdsckpt.format.layout import FORMAT_VERSION

MAGIC = b"gdsckpt/"
FOOTER_NBYTES = 61
_TAIL_DIGITS_AT = 38
_CHECK_DIGITS_AT = 53


@dataclass(frozen=True, slots=True)
class Footer:
    """What the closing comment says.

    Attributes:
        table_offset: File offset of the chunk table's local header.
        tail_crc32: CRC-32 of the file from ``table_offset`` to the ``tail`` digits.
    """

    table_offset: int
    tail_crc32: int


def encode_prefix(table_offset: int) -> bytes:
    """Encode the comment up to the ``tail`` digits: the part that the tail CRC covers."""
    return b"%s%d table=%016x tail=" % (MAGIC, FORMAT_VERSION, table_offset)


def encode(table_offset: int, tail_crc32: int) -> bytes:
    """Encode the whole comment."""
    unchecked = encode_prefix(table_offset) + b"%08x check=" % tail_crc32
    return unchecked + b"%08x" % zlib.crc32(unchecked)


def tail_crc_end(file_nbytes: int) -> int:
    """Give the file offset where the bytes under the tail CRC end."""
    return file_nbytes - FOOTER_NBYTES + _TAIL_DIGITS_AT


def has_magic(file_end: bytes) -> bool:
    """Tell whether the last bytes of a file are, or once were, our comment."""
    return file_end[-FOOTER_NBYTES:].startswith(MAGIC)


def decode(file_end: bytes, path: str, file_nbytes: int) -> Footer:
    """Decode the comment.

    Args:
        file_end: At least the last ``FOOTER_NBYTES`` bytes of the file.
        path: For messages.
        file_nbytes: Size of the file in bytes.

    Raises:
        UnsupportedVersionError: An intact comment of a later format version.
        FormatError: The comment is damaged.
    """
    raw = file_end[-FOOTER_NBYTES:]
    offset = file_nbytes - FOOTER_NBYTES
    try:
        table_offset = int(raw[16:32], 16)
        tail_crc32 = int(raw[_TAIL_DIGITS_AT : _TAIL_DIGITS_AT + 8], 16)
    except ValueError:
        table_offset = tail_crc32 = -1
    if table_offset >= 0 and raw == encode(table_offset, tail_crc32):
        return Footer(table_offset, tail_crc32)
    found = _intact_version(raw)
    if found is not None and found != FORMAT_VERSION:
        raise UnsupportedVersionError(
            f"{path} has format version {found}; this gdsckpt reads version {FORMAT_VERSION}. "
            "Install a newer gdsckpt, or read the file with stock torch.load.",
            path=path,
            offset=offset,
            found=found,
            supported=FORMAT_VERSION,
        )
    raise FormatError(
        f"{path} is damaged: its closing comment at {offset} does not match its own checksum. "
        "Use another copy.",
        path=path,
        offset=offset,
    )


def _intact_version(raw: bytes) -> int | None:
    """Give the version of a comment whose own checksum is right; a flip is no new version."""
    head, _, check = raw.rpartition(b" check=")
    version = raw[len(MAGIC) :].split(b" ", 1)[0]
    if check != b"%08x" % zlib.crc32(head + b" check=") or not version.isdigit():
        return None
    return int(version)
