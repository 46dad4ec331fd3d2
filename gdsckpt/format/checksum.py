"""Arithmetic on CRC-32 values: parts into wholes, without reading a byte again."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

from gdsckpt import native


def unpack_crcs(raw: bytes) -> Sequence[int]:
    """Give the numbers in a native-endian uint32 buffer, as the engine returns CRCs."""
    crcs = array("I")
    crcs.frombytes(raw)
    return crcs


def combine(parts: Iterable[tuple[int, int]], start: int = 0) -> int:
    """Combine (CRC-32, nbytes) of consecutive parts into the CRC-32 of all of them.

    Args:
        parts: In file order, without gaps.
        start: CRC-32 of what came before.
    """
    whole = start
    for crc32, nbytes in parts:
        whole = native.crc32_combine(whole, crc32, nbytes)
    return whole


def chunk_spans(covered_bytes: int, chunk_bytes: int) -> list[tuple[int, int]]:
    """Give (file offset, nbytes) of each chunk of a covered range that begins at 0."""
    return [
        (offset, min(chunk_bytes, covered_bytes - offset))
        for offset in range(0, covered_bytes, chunk_bytes)
    ]
