"""An open, indexed file: its records, and checked reads of them."""

from __future__ import annotations

import contextlib
import enum
import os
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from gdsckpt import native
from gdsckpt.errors import ChecksumError, FormatError, ShortTransferError, storage_error_from
from gdsckpt.format import checksum, layout, table
from gdsckpt.format.footer import Footer
from gdsckpt.format.zipfmt import Entry
from gdsckpt.report import Damage
from gdsckpt.staging import files

TABLE_NAME = layout.TABLE_RECORD.removeprefix(f"{layout.ARCHIVE}/")
"""Name of the chunk table within the archive's folder."""

_CHUNK_BYTES_MAX = 1 << 30
_CHUNK_BYTES_UNIT = 64 << 10
"""What the setting ``chunk_bytes`` allows: a slab of this size is allocated to scan a file."""


class Origin(enum.Enum):
    """Who wrote a file, by its marks."""

    GDSCKPT = "gdsckpt"
    FOREIGN_ZIP = "foreign zip"
    NO_ZIP = "no zip"


@dataclass(frozen=True, slots=True)
class Shard:
    """An open, indexed file.

    Attributes:
        path: For messages.
        fd: Buffered descriptor.
        nbytes: File size when it was opened.
        origin: By its marks.
        archive: Name of the zip's folder, without a slash; empty where it is no zip.
        entries: Records in directory order; empty where it is no zip.
        payload_offsets: File offset of each record's payload, as ``entries`` come.
        file: Descriptors for the engine.
        footer: Closing comment of our own files.
    """

    path: str
    fd: int
    nbytes: int
    origin: Origin
    archive: str
    entries: tuple[Entry, ...]
    payload_offsets: array[int]
    file: files.OpenFile
    footer: Footer | None
    _index_of: dict[str, int] = field(default_factory=dict)
    _storage_records: list[int] = field(default_factory=list)

    def find(self, name: str) -> int | None:
        """Give the index of the record ``<archive>/<name>``, or None."""
        if not self._index_of:
            self._index_of.update({entry.name: n for n, entry in enumerate(self.entries)})
        return self._index_of.get(f"{self.archive}/{name}")

    def storage_records(self) -> list[int]:
        """List the storage records, as indices, in the order in which the pickle names them.

        torch and gdsckpt number storages as the pickler meets them.

        Raises:
            FormatError: One is compressed, so its size may be any lie.
        """
        if not self._storage_records:
            prefix = f"{self.archive}/data/"
            numbered = []
            for n, entry in enumerate(self.entries):
                if entry.name.startswith(prefix):
                    require_stored(self, entry)
                    numbered.append((_sort_key(entry.name[len(prefix) :]), n))
            self._storage_records.extend(n for _, n in sorted(numbered))
        return self._storage_records

    def read_record(self, index: int, *, verify: bool = True) -> bytes:
        """Read one small record.

        Raises:
            ChecksumError: Its bytes do not match the CRC-32 that the archive names.
            FormatError: It is compressed or encrypted, which torch never writes.
        """
        entry = self.entries[index]
        offset = self.payload_offsets[index]
        require_stored(self, entry)
        payload = read_at(self.fd, self.path, offset, entry.nbytes)
        actual = native.crc32(payload)
        if verify and self.has_checksum(entry) and actual != entry.crc32:
            raise checksum_error(self, index, actual)
        return payload

    def has_checksum(self, entry: Entry) -> bool:
        """Tell whether the CRC-32 field of a record means anything."""
        return self.origin is Origin.GDSCKPT or entry.crc32 != 0

    def read_table(self) -> table.ChunkTable:
        """Read the chunk table of one of our own files.

        Raises:
            FormatError: The file has none, or it is damaged.
        """
        index = self.find(TABLE_NAME)
        if self.footer is None or index is None:
            raise FormatError(
                f"{self.path} has no chunk table. Only files that gdsckpt wrote have one.",
                path=self.path,
                offset=0,
            )
        raw = self.read_record(index)
        decoded = table.decode(raw, self.path, self.payload_offsets[index])
        if decoded.chunk_bytes > _CHUNK_BYTES_MAX or decoded.chunk_bytes % _CHUNK_BYTES_UNIT:
            raise FormatError(
                f"{self.path} is damaged: its chunk table names chunks of {decoded.chunk_bytes} "
                f"bytes, which no save writes. Use another copy.",
                path=self.path,
                offset=self.payload_offsets[index],
            )
        if decoded.covered_bytes != self.footer.table_offset:
            raise FormatError(
                f"{self.path} is damaged: its chunk table covers {decoded.covered_bytes} bytes, "
                f"but begins at {self.footer.table_offset}. Use another copy.",
                path=self.path,
                offset=self.payload_offsets[index],
            )
        return decoded


_providers: dict[int, Callable[[int, int], None]] = {}


@contextlib.contextmanager
def provided(fd: int, provide: Callable[[int, int], None]) -> Iterator[None]:
    """Have ``provide`` called with (offset, nbytes) before bytes of a descriptor are read.

    For files that are filled when they are read. Only :func:`read_at` asks for them: what reads a
    descriptor by itself has to see to it that the bytes are there.
    """
    _providers[fd] = provide
    try:
        yield
    finally:
        del _providers[fd]


def read_at(fd: int, path: str, offset: int, nbytes: int) -> bytes:
    """Read exactly ``nbytes`` at ``offset``; short reads are continued.

    Raises:
        ShortTransferError: The file ends before.
        StorageError: A read failed.
        GdsckptError: What provides the bytes failed.
    """
    if fd in _providers:
        _providers[fd](offset, nbytes)
    parts: list[bytes] = []
    done = 0
    while done < nbytes:
        try:
            part = os.pread(fd, min(nbytes - done, 1 << 30), offset + done)
        except OSError as error:
            raise storage_error_from(
                error, op="pread", path=path, offset=offset + done, nbytes=nbytes - done
            ) from error
        if not part:
            raise ShortTransferError(
                f"pread of {nbytes} bytes at offset {offset} in {path} gave {done}: the file ends "
                "there, so it was cut short while it was read. Use another copy.",
                op="pread",
                path=path,
                offset=offset,
                nbytes=nbytes,
                expected_bytes=nbytes,
                actual_bytes=done,
            )
        parts.append(part)
        done += len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def require_stored(shard: Shard, entry: Entry) -> None:
    """Refuse compressed and encrypted records.

    Raises:
        FormatError: torch never writes such records.
    """
    if not entry.is_stored:
        raise FormatError(
            f"{shard.path} is no torch checkpoint: its record {entry.name!r} is compressed or "
            "encrypted. Pass a file that torch.save or gdsckpt.save wrote.",
            path=shard.path,
            offset=entry.header_offset,
        )


def checksum_error(shard: Shard, index: int, actual: int) -> ChecksumError:
    """Build the error for a record whose bytes do not match; names tensors where known."""
    entry = shard.entries[index]
    offset = shard.payload_offsets[index]
    tensors = tensors_of_record(shard, entry.name)
    named = f" ({', '.join(tensors[:3])}{', ...' if len(tensors) > 3 else ''})" if tensors else ""
    return ChecksumError(
        f"{shard.path} is damaged: record {entry.name!r}{named}, {entry.nbytes} bytes at "
        f"{offset}, has CRC-32 {actual:08x}, but {entry.crc32:08x} was written. "
        f"Run 'gdsckpt verify' for the exact place, and use another copy.",
        path=shard.path,
        offset=offset,
        shard=Path(shard.path).name,
        fqn=tensors[0] if tensors else None,
        record=entry.name,
        expected=entry.crc32,
        actual=actual,
    )


def tensors_of_record(shard: Shard, name: str) -> tuple[str, ...]:
    """Name the tensors whose bytes a record holds, as far as the file tells."""
    key = storage_key(name.removeprefix(f"{shard.archive}/data/"))
    if shard.origin is not Origin.GDSCKPT or key is None:
        return ()
    try:
        tensors = shard.read_table().tensors
    except (FormatError, ShortTransferError):
        return ()
    return tuple(tensor.name for tensor in tensors if tensor.record == key)


def storage_key(text: str) -> int | None:
    """Read the ``n`` of a record ``data/<n>``; None for what no pickler writes."""
    is_number = text.isascii() and text.isdigit() and len(text) <= _KEY_DIGITS_MAX
    return int(text) if is_number else None


def _sort_key(key: str) -> tuple[bool, int, str]:
    number = storage_key(key)
    return (number is None, number or 0, key)


_KEY_DIGITS_MAX = 20


def check_crcs(shard: Shard, indices: list[int], raw_crcs: bytes) -> None:
    """Compare the CRCs of records that were read with those that the archive names.

    Args:
        shard: The file.
        indices: Records, in the order in which they were read.
        raw_crcs: What the engine returned for them.

    Raises:
        ChecksumError: The first record that differs.
    """
    for index, actual in zip(indices, checksum.unpack_crcs(raw_crcs), strict=True):
        entry = shard.entries[index]
        if actual != entry.crc32 and shard.has_checksum(entry):
            raise checksum_error(shard, index, actual)


def chunk_error(shard: Shard, damage: Damage) -> ChecksumError:
    """Build the error for a damaged place outside any record."""
    return ChecksumError(
        f"{shard.path} is damaged: {damage.what} ({damage.nbytes} bytes at {damage.offset}) does "
        "not match its checksum. Use another copy.",
        path=shard.path,
        offset=damage.offset,
        shard=Path(shard.path).name,
        fqn=None,
        record=None,
        expected=None,
        actual=None,
    )
