"""Constants of CRC-32 (zip, zlib) as arithmetic on polynomials over GF(2).

A polynomial of degree below 32 is a number whose bit 31 is the coefficient of x**0 and whose bit 0
is that of x**31: the reflected order of CRC-32. The *remainder* of a message is its CRC-32 with
neither preset nor final inversion. It is linear: that of the exclusive-or of two messages is the
exclusive-or of both, and n bytes put behind a message multiply its part by x**(8 n).
"""

from __future__ import annotations

from array import array

POLYNOMIAL = 0xEDB88320
"""P without its term x**32. Source: RFC 1952 section 8."""

ONE = 0x80000000
"""The polynomial 1."""

DIGITS = 6
"""Digits to base 256 of the largest power: 2**48 bytes."""


def multiply(a: int, b: int) -> int:
    """Multiply two polynomials modulo P."""
    product = 0
    while b:
        if b & ONE:
            product ^= a
        b = b << 1 & 0xFFFFFFFF
        a = a >> 1 ^ (POLYNOMIAL if a & 1 else 0)
    return product


def byte_powers() -> array[int]:
    """Give x**(8 d 256**k) modulo P at index 256 k + d, for k < ``DIGITS`` and d < 256."""
    powers = array("I")
    base = ONE >> 8
    for _ in range(DIGITS):
        power = ONE
        for _ in range(256):
            powers.append(power)
            power = multiply(power, base)
        base = power
    return powers


def word_powers(num_words: int) -> array[int]:
    """Give x**(32 n) modulo P for n from 0 to ``num_words``."""
    base = multiply(ONE >> 16, ONE >> 16)
    powers = array("I", [ONE])
    for _ in range(num_words):
        powers.append(multiply(powers[-1], base))
    return powers
