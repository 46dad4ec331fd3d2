"""The kernel of the CRC-32 of many pieces: strips to blocks, and a block's words to one number."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda, uint32

from gdsckpt.kernels.crc32_device import add_bytes, fold, i64, multiply, power_of_bytes, u32
from gdsckpt.kernels.gf2 import word_powers
from gdsckpt.kernels.strips import STRIP_ALIGNMENT


@cuda.jit(device=True)
def piece_of(pieces: Any, strip: Any) -> Any:
    """Find the piece of a strip: the first whose strips end behind it."""
    low = 0
    high = pieces.shape[0] - 1
    while low < high:
        middle = (low + high) // 2
        if pieces[middle, 2] > strip:
            high = middle
        else:
            low = middle + 1
    return low


@cuda.jit(device=True)
def strip_of(pieces: Any, piece: Any, strip: Any, strip_bytes: Any) -> Any:
    """Give (first byte, end, bytes of the piece behind it) of a strip."""
    first_strip = pieces[piece - 1, 2] if piece > 0 else 0
    piece_begin = pieces[piece, 0]
    piece_end = piece_begin + pieces[piece, 1]
    aligned = piece_begin - piece_begin % STRIP_ALIGNMENT + (strip - first_strip) * strip_bytes
    begin = max(piece_begin, aligned)
    end = min(piece_end, aligned + strip_bytes)
    return begin, end, piece_end - end


@cuda.jit(device=True)
def with_edges(remainder: Any, octets: Any, strip: Any, body: Any) -> Any:
    """Put the bytes of a strip before and behind its words to the remainder of the words."""
    begin, end = strip
    head_end = min((begin + 3) // 4 * 4, end)
    tail = max(4 * body[1], head_end)
    head = add_bytes(u32(0), octets, begin, head_end)
    if head != 0:
        head = multiply(head, power_of_bytes(4 * (body[1] - body[0])))
    return add_bytes(u32(head ^ remainder), octets, tail, end)


def make_kernel(threads: int) -> Any:
    """Make the kernel for blocks of so many threads.

    Its arguments: ``octets`` uint8 and ``words`` uint32, two views of the same memory from an
    address that is a multiple of ``STRIP_ALIGNMENT``; ``pieces`` int64, rows of (offset of the
    first byte, nbytes, strips of this and all earlier pieces); ``strip_bytes``, a multiple of
    ``STRIP_ALIGNMENT``; ``crcs`` uint32, one per piece, to which the remainder is added. There may
    be more blocks than strips.

    Args:
        threads: A power of two from 64 to 256. Shared memory: 144 bytes for each.
    """
    columns_2, columns_3 = threads // 8, threads // 64
    words_1, words_2, words_3 = 32 * threads, 32 * columns_2, 32 * columns_3
    last_powers = np.array(word_powers(words_3), dtype=u32)

    @cuda.jit
    def crc32_strips(octets: Any, words: Any, pieces: Any, strip_bytes: Any, crcs: Any) -> None:
        strip = cuda.blockIdx.x
        thread = cuda.threadIdx.x
        if strip >= pieces[pieces.shape[0] - 1, 2]:
            return
        rows_1 = cuda.shared.array(words_1, uint32)
        rows_2 = cuda.shared.array(words_2, uint32)
        total = cuda.shared.array(1, uint32)
        piece = piece_of(pieces, strip)
        begin, end, bytes_behind = strip_of(pieces, piece, strip, strip_bytes)
        # The whole words of the strip; fewer than 4 bytes stand before them, and behind them.
        body_end = end // 4
        body = min((begin + 3) // 4, body_end)
        if thread == 0:
            total[0] = 0
        fold(words, body, body_end, i64(threads), rows_1)
        cuda.syncthreads()
        if thread < columns_2:
            fold(rows_1, i64(0), i64(words_1), i64(columns_2), rows_2)
        cuda.syncthreads()
        if thread < columns_3:
            fold(rows_2, i64(0), i64(words_2), i64(columns_3), rows_1)
        cuda.syncthreads()
        if thread < words_3:
            powers = cuda.const.array_like(last_powers)
            cuda.atomic.xor(total, 0, multiply(rows_1[thread], powers[words_3 - thread]))
        cuda.syncthreads()
        if thread == 0:
            ends = (body, body_end)
            remainder = with_edges(total[0], octets, (begin, end), ends)
            remainder = multiply(remainder, power_of_bytes(bytes_behind))
            cuda.atomic.xor(crcs, piece, remainder)

    return crc32_strips
