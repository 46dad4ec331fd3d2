"""CRC-32 on a CUDA device: the arithmetic of the kernel, without a table look-up per byte.

Read the 32-bit words of a message row by row, ``stride`` words to a row. The message is then a
polynomial in y = x**(32 stride) whose coefficients are the words of a column. If the stride is a
power of two, P(y) is a power of P(x), as squaring is linear over GF(2); so P(y) is 0 modulo P(x).
Hence a word may be taken away if it is added (exclusive-or) to those 14 of the 32 words behind it
in its column that the terms of P name. A thread does this for one column, and there remains a
message of 32 rows with the same remainder modulo P. Smaller strides leave 32 to 128 words, each of
which is multiplied by its power of x.

So neighbouring threads load neighbouring words, the state lies in registers, no table is read, and
a word costs one load and 14 exclusive-ors (LOP3 takes three inputs, so 7).

What this comes to for sm_90, by the machine code of numba-cuda 0.30.4 and CUDA 13.5 (not run): the
inner loop has 273 instructions for 128 bytes of a thread, 229 of them LOP3 and 32 loads, of which
11 to 22 are under way at a time; 64 registers and no spills, so four blocks of 256 threads fit a
multiprocessor. Estimates, not measured: at 64 LOP3 per clock and multiprocessor ("Throughput of
Native Arithmetic Instructions" in the CUDA C++ Programming Guide) this is 36 bytes per clock, or
8 TB/s for the 132 multiprocessors of an H200 at 1.755 GHz, so its memory (4.8 TB/s) is the limit.
What a block does once, the first and last rows and the smaller strides, costs as much as 130 KiB.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda

from gdsckpt.kernels.gf2 import ONE, POLYNOMIAL, byte_powers

i64 = np.int64
u32 = np.uint32
u64 = np.uint64

NO_GUARD = -(2**63)
"""First index of a message of which every word is there: the comparison is compiled away."""

BYTE_POWERS = np.array(byte_powers(), dtype=u32)
EIGHT_ZEROS = (u32(0),) * 8
NO_ROWS = EIGHT_ZEROS + EIGHT_ZEROS + EIGHT_ZEROS + EIGHT_ZEROS


@cuda.jit(device=True)
def word_at(message: Any, index: Any) -> Any:
    """Give a word of a message (words, index of the first), and 0 for those before it begins."""
    words, first = message
    if index < first:
        return u32(0)
    # An unsigned index has no test for negative ones, which count from the end.
    return words[u64(index)]


@cuda.jit(device=True)
def mix(rows: Any, word: Any) -> Any:
    """Add to a word what the 32 words before it in its column, oldest first, leave to it.

    The word d rows before it is ``rows[32 - d]``, and has a share if P has the term x**(32 - d).
    """
    low = rows[0] ^ rows[1] ^ rows[2] ^ rows[4] ^ rows[5] ^ rows[7] ^ rows[8]
    high = rows[10] ^ rows[11] ^ rows[12] ^ rows[16] ^ rows[22] ^ rows[23] ^ rows[26]
    return u32(word ^ low ^ high)


# Tuples and calls in place of loops: so every index is a constant and the state stays in registers.


@cuda.jit(device=True)
def fold_1(rows: Any, message: Any, index: Any) -> Any:
    """Take in one word of a column."""
    return rows[1:] + (mix(rows, word_at(message, index)),)


@cuda.jit(device=True)
def fold_4(rows: Any, message: Any, index: Any, stride: Any) -> Any:
    """Take in four words of a column."""
    rows = fold_1(rows, message, index)
    rows = fold_1(rows, message, index + stride)
    rows = fold_1(rows, message, index + 2 * stride)
    return fold_1(rows, message, index + 3 * stride)


@cuda.jit(device=True)
def fold_32(rows: Any, message: Any, index: Any, stride: Any) -> Any:
    """Take in 32 words of a column."""
    rows = fold_4(rows, message, index, stride)
    rows = fold_4(rows, message, index + 4 * stride, stride)
    rows = fold_4(rows, message, index + 8 * stride, stride)
    rows = fold_4(rows, message, index + 12 * stride, stride)
    rows = fold_4(rows, message, index + 16 * stride, stride)
    rows = fold_4(rows, message, index + 20 * stride, stride)
    rows = fold_4(rows, message, index + 24 * stride, stride)
    return fold_4(rows, message, index + 28 * stride, stride)


@cuda.jit(device=True)
def keep_1(rows: Any, message: Any, index: Any, kept: Any) -> Any:
    """Store what remains of one of the last 32 words; it has no share in those behind it.

    ``kept`` is (array, index in the message of its first word).
    """
    remaining, first = kept
    remaining[u64(index - first)] = mix(rows, word_at(message, index))
    return rows[1:] + (u32(0),)


@cuda.jit(device=True)
def keep_4(rows: Any, message: Any, index: Any, stride: Any, kept: Any) -> Any:
    """Store what remains of four words of a column."""
    rows = keep_1(rows, message, index, kept)
    rows = keep_1(rows, message, index + stride, kept)
    rows = keep_1(rows, message, index + 2 * stride, kept)
    return keep_1(rows, message, index + 3 * stride, kept)


@cuda.jit(device=True)
def keep_32(rows: Any, message: Any, index: Any, stride: Any, kept: Any) -> None:
    """Store what remains of the last 32 words of a column."""
    rows = keep_4(rows, message, index, stride, kept)
    rows = keep_4(rows, message, index + 4 * stride, stride, kept)
    rows = keep_4(rows, message, index + 8 * stride, stride, kept)
    rows = keep_4(rows, message, index + 12 * stride, stride, kept)
    rows = keep_4(rows, message, index + 16 * stride, stride, kept)
    rows = keep_4(rows, message, index + 20 * stride, stride, kept)
    rows = keep_4(rows, message, index + 24 * stride, stride, kept)
    keep_4(rows, message, index + 28 * stride, stride, kept)


@cuda.jit(device=True)
def fold(words: Any, begin: Any, end: Any, stride: Any, remaining: Any) -> None:
    """Fold words [begin, end) into 32 rows of ``stride`` words with the same remainder.

    Called by threads 0 to ``stride`` - 1 of a block, each for one column.

    Args:
        words: uint32, readable in that range.
        begin: Index of the first word; the message is as if zeros stood before it.
        end: Index behind the last word.
        stride: Words in a row, a power of two.
        remaining: uint32, gets the 32 * ``stride`` words.
    """
    column = cuda.threadIdx.x
    batch = 32 * stride
    # The first batch may begin before the message, as may the last if it is the only one.
    batches = max((end - begin + batch - 1) // batch, 2)
    index = end - batches * batch + column
    rows = fold_32(NO_ROWS, (words, begin), index, stride)
    index += batch
    for _ in range(batches - 2):
        rows = fold_32(rows, (words, i64(NO_GUARD)), index, stride)
        index += batch
    keep_32(rows, (words, begin), index, stride, (remaining, end - batch))


@cuda.jit(device=True)
def multiply(a: Any, b: Any) -> Any:
    """Multiply two polynomials modulo P, as ``gf2.multiply``."""
    product = u32(0)
    for _ in range(32):
        if b & ONE:
            product = u32(product ^ a)
        b = u32(b << 1)
        reduction = POLYNOMIAL if a & 1 else 0
        a = u32(a >> 1 ^ reduction)
    return product


@cuda.jit(device=True)
def power_of_bytes(nbytes: Any) -> Any:
    """Give x**(8 nbytes) modulo P."""
    powers = cuda.const.array_like(BYTE_POWERS)
    product = u32(ONE)
    digit = 0
    while nbytes > 0:
        if nbytes & 255:
            product = multiply(product, powers[256 * digit + (nbytes & 255)])
        nbytes >>= 8
        digit += 1
    return product


@cuda.jit(device=True)
def add_bytes(remainder: Any, octets: Any, begin: Any, end: Any) -> Any:
    """Put bytes [begin, end) behind a message: its remainder and theirs."""
    for index in range(begin, end):
        remainder = u32(remainder ^ octets[u64(index)])
        for _ in range(8):
            reduction = POLYNOMIAL if remainder & 1 else 0
            remainder = u32(remainder >> 1 ^ reduction)
    return remainder
