"""How the pieces of a launch are cut into strips, one for each block of the kernel. No device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gdsckpt import native
from gdsckpt.errors import ConfigError
from gdsckpt.kernels.crc32 import Pieces

STRIP_ALIGNMENT = 128
"""Strips begin at multiples of a cache line, so that a warp loads whole lines."""

STRIP_BYTES_MIN = 64 * 1024
# What a block does once costs as much as some 130 KiB (estimated, see crc32_device).
STRIP_BYTES_MAX = 4 * 1024 * 1024

ADDRESSES_END = 2**63


@dataclass(frozen=True)
class Plan:
    """What a launch needs to know.

    Attributes:
        base: Address that offsets count from, a multiple of ``STRIP_ALIGNMENT``.
        span_bytes: From there to the end of the last piece in memory.
        rows: int64, shape (pieces, 3): offset, nbytes, strips of this and all earlier pieces.
        empty_crcs: uint32, shape (pieces,): the CRC-32 of as many zero bytes; the exclusive-or with
            a piece's remainder is its CRC-32.
        strip_bytes: Bytes of a strip, a multiple of ``STRIP_ALIGNMENT``; the first and last strip
            of a piece may have fewer.
    """

    base: int
    span_bytes: int
    rows: Any
    empty_crcs: Any
    strip_bytes: int

    @property
    def num_strips(self) -> int:
        """Strips of all pieces."""
        return int(self.rows[-1, 2]) if len(self.rows) else 0


def choose_strip_bytes(total_bytes: int, num_blocks: int) -> int:
    """Give the strip size at which there are at least ``num_blocks`` strips, within its bounds.

    Returns:
        A power of two from ``STRIP_BYTES_MIN`` to ``STRIP_BYTES_MAX``.
    """
    strip_bytes = STRIP_BYTES_MAX
    while strip_bytes > STRIP_BYTES_MIN and total_bytes < num_blocks * strip_bytes:
        strip_bytes //= 2
    return strip_bytes


def plan_strips(pieces: Pieces, num_blocks: int, strip_bytes: int = 0) -> Plan:
    """Cut pieces into strips.

    Args:
        pieces: As for ``crc32_pieces``.
        num_blocks: Strips wanted, if there are enough bytes.
        strip_bytes: Their size, or 0 to choose it by ``num_blocks``.

    Raises:
        ConfigError: A piece is no range of addresses.
    """
    addresses, sizes = _columns(pieces)
    filled = sizes > 0
    strip_bytes = strip_bytes or choose_strip_bytes(int(sizes.sum()), num_blocks)
    base = int(addresses[filled].min(initial=ADDRESSES_END - 1)) // STRIP_ALIGNMENT
    base *= STRIP_ALIGNMENT
    offsets = np.where(filled, addresses - base, 0)
    ends = offsets + sizes
    begins = offsets - offsets % STRIP_ALIGNMENT
    strips = np.where(filled, -((begins - ends) // strip_bytes), 0)
    return Plan(
        base=base,
        span_bytes=int(ends.max(initial=0)),
        rows=np.stack([offsets, sizes, strips.cumsum()], axis=1),
        empty_crcs=_crcs_of_zeros(sizes),
        strip_bytes=strip_bytes,
    )


def _columns(pieces: Pieces) -> tuple[Any, Any]:
    """Give addresses and sizes as int64, checked."""
    try:
        rows = np.asarray(pieces, dtype=np.uint64).reshape(-1, 2)
    except (TypeError, ValueError, OverflowError) as error:
        raise ConfigError(
            f"pieces are not (address, nbytes) each, from 0 to 2**64 - 1: {error}.", field="pieces"
        ) from error
    addresses, sizes = rows[:, 0], rows[:, 1]
    wrong = (sizes > 0) & ((addresses == 0) | (addresses >= ADDRESSES_END))
    wrong |= sizes >= ADDRESSES_END - np.minimum(addresses, ADDRESSES_END - 1)
    if wrong.any():
        index = int(wrong.argmax())
        raise ConfigError(
            f"pieces[{index}] has {sizes[index]} bytes at address {addresses[index]:#x}, which is "
            "no range of addresses.",
            field="pieces",
        )
    return addresses.astype(np.int64), sizes.astype(np.int64)


def _crcs_of_zeros(sizes: Any) -> Any:
    """Give the CRC-32 of as many zero bytes for each size; most pieces share a few sizes."""
    distinct, inverse = np.unique(sizes, return_inverse=True)
    crcs = [native.crc32_zeros(int(nbytes)) for nbytes in distinct]
    return np.array(crcs, dtype=np.uint32)[inverse]
