"""Write a shard in order, to a sink that cannot seek.

The checksums of the records stand before their bytes, so every byte is looked at twice: once to
checksum it, once to write it. A change between the two is found and raised.
"""

from __future__ import annotations

import ctypes
import io
from array import array
from collections.abc import Iterator
from typing import BinaryIO

from gdsckpt import native, tracing
from gdsckpt.engine.base import ROW_WIDTH, Extent
from gdsckpt.errors import ConfigError, StorageError, TornSnapshotError, storage_error_from
from gdsckpt.format import checksum, zipfmt
from gdsckpt.format.table import ChunkTable
from gdsckpt.staging.content import ShardPlan, Tail, address_of, encode_tail

_PIECE_BYTES = 1 << 20
_DEVICE_PIECE_BYTES = 16 << 20
"""A copy from a device costs more to begin than to go on."""


def require_binary(file: object, method: str) -> None:
    """Refuse what is no binary file object, before anything is done with it.

    Args:
        file: What the caller passed.
        method: ``"read"`` or ``"write"``.

    Raises:
        ConfigError: It has no such method, is closed, or takes text.
    """
    if not callable(getattr(file, method, None)):
        why = f"is neither a path nor a binary file object that can {method}"
    elif isinstance(file, io.TextIOBase):
        why = "takes text, not bytes: open it in binary mode"
    elif getattr(file, "closed", False) is True:
        why = "is closed"
    else:
        return
    raise ConfigError(f"f of type {type(file).__name__} {why}.", field="f")


def write(sink: BinaryIO, plan: ShardPlan, chunk_bytes: int, path: str) -> tuple[Tail, int]:
    """Write all bytes of a shard in file order.

    Args:
        sink: Where to.
        plan: Extents of the shard.
        chunk_bytes: Size of a chunk of the table.
        path: For messages.

    Returns:
        The tail and the CRC-32 of the whole file.
    """
    record_crcs = _fill_in_crcs(plan)
    chunks = _ChunkCrcs(chunk_bytes)
    written_crcs: list[int] = []
    position = 0
    for n, row in enumerate(_rows(plan)):
        gap = bytes(row.file_offset - position)
        _write_all(sink, memoryview(gap), position, path)
        chunks.add(gap)
        crc = 0
        for piece in _pieces(row, plan.streams):
            _write_all(sink, piece, row.file_offset, path)
            chunks.add(piece)
            crc = native.crc32(piece, crc)
        if n % 2:
            written_crcs.append(crc)
        position = row.file_offset + row.nbytes
    if written_crcs != record_crcs:
        changed = [n for n, crc in enumerate(written_crcs) if crc != record_crcs[n]]
        records = plan.layout.records
        names = tuple(records[n].name for n in changed)
        raise TornSnapshotError(
            f"{', '.join(names[:3])} changed while it was written to {path}; what was written is "
            "not usable. Keep the state unchanged until save returns.",
            names=names,
        )
    chunk_table = ChunkTable(chunk_bytes, position, tuple(chunks.finish()), plan.tensors)
    tail = encode_tail(plan.layout, record_crcs, chunk_table)
    _write_all(sink, memoryview(tail.raw), position, path)
    return tail, native.crc32(tail.raw, chunks.whole)


class _ChunkCrcs:
    """CRC-32 of consecutive chunks, and of all of them, from pieces of any size."""

    def __init__(self, chunk_bytes: int) -> None:
        self._chunk_bytes = chunk_bytes
        self._room = chunk_bytes
        self._crc = 0
        self._crcs: list[int] = []
        self.whole = 0

    def add(self, piece: bytes | memoryview) -> None:
        view = memoryview(piece)
        while view.nbytes:
            part = view[: self._room]
            self._crc = native.crc32(part, self._crc)
            self._room -= part.nbytes
            view = view[part.nbytes :]
            if self._room == 0:
                self._close(self._chunk_bytes)

    def finish(self) -> list[int]:
        if self._room < self._chunk_bytes:
            self._close(self._chunk_bytes - self._room)
        return self._crcs

    def _close(self, nbytes: int) -> None:
        self._crcs.append(self._crc)
        self.whole = checksum.combine([(self._crc, nbytes)], self.whole)
        self._crc, self._room = 0, self._chunk_bytes


def _rows(plan: ShardPlan) -> Iterator[Extent]:
    rows = plan.extents
    for at in range(0, len(rows), ROW_WIDTH):
        yield Extent(*rows[at : at + ROW_WIDTH])


def _fill_in_crcs(plan: ShardPlan) -> list[int]:
    """Put the CRC of every record into its header, which stands in ``plan.literals``."""
    crcs: list[int] = []
    header_address = 0
    for n, row in enumerate(_rows(plan)):
        if n % 2 == 0:
            header_address = row.address
            continue
        crc = 0
        for piece in _pieces(row, plan.streams):
            crc = native.crc32(piece, crc)
        field = (ctypes.c_char * 4).from_address(header_address + zipfmt.LOCAL_CRC_OFFSET)
        field.raw = crc.to_bytes(4, "little")
        crcs.append(crc)
    return crcs


def _pieces(row: Extent, streams: array[int]) -> Iterator[memoryview]:
    """Give the bytes of an extent in host memory, a piece at a time, each valid until the next."""
    if row.device == native.HOST:
        for at in range(0, row.nbytes, _PIECE_BYTES):
            size = min(_PIECE_BYTES, row.nbytes - at)
            yield memoryview((ctypes.c_char * size).from_address(row.address + at)).cast("B")
        return
    copy = bytearray(min(row.nbytes, _DEVICE_PIECE_BYTES))
    for at in range(0, row.nbytes, _DEVICE_PIECE_BYTES):
        size = min(_DEVICE_PIECE_BYTES, row.nbytes - at)
        with tracing.stage("copy", size):
            native.cuda_copy_to_host(
                address_of(copy), row.device, row.address + at, size, streams=streams
            )
        yield memoryview(copy)[:size]


def _write_all(sink: BinaryIO, piece: memoryview, offset: int, path: str) -> None:
    """Write every byte of a piece; sinks without a buffer may take fewer at a time."""
    while piece.nbytes:
        try:
            taken: int | None = sink.write(piece)
        except OSError as error:
            raise storage_error_from(
                error, op="write", path=path, offset=offset, nbytes=piece.nbytes
            ) from error
        if taken is None:  # a raw file that would block took none; others that say nothing took all
            taken = 0 if isinstance(sink, io.RawIOBase) else piece.nbytes
        if taken <= 0:
            raise StorageError(
                f"write to {path} took none of {piece.nbytes} bytes. Use a blocking file object.",
                op="write",
                path=path,
                offset=offset,
                nbytes=piece.nbytes,
                errno=None,
            )
        piece = piece[taken:]
