import random

from gdsckpt import native
from gdsckpt.kernels import gf2


def test_multiply_by_one_changes_nothing():
    assert gf2.multiply(0x12345678, gf2.ONE) == 0x12345678
    assert gf2.multiply(gf2.ONE, 0x12345678) == 0x12345678


def test_multiply_by_x_reduces_by_the_polynomial():
    x_to_31, x = 1, gf2.ONE >> 1
    assert gf2.multiply(x_to_31, x) == gf2.POLYNOMIAL


def test_multiply_distributes_over_exclusive_or():
    numbers = random.Random(0)
    for _ in range(100):
        a, b, c = (numbers.getrandbits(32) for _ in range(3))
        assert gf2.multiply(a ^ b, c) == gf2.multiply(a, c) ^ gf2.multiply(b, c)


def test_byte_powers_shift_a_crc_as_appended_bytes_do():
    powers = gf2.byte_powers()
    crc = 0x8BADF00D
    for digit in range(gf2.DIGITS):
        for d in (0, 1, 2, 128, 255):
            shifted = native.crc32_combine(crc, 0, d * 256**digit)
            assert gf2.multiply(crc, powers[256 * digit + d]) == shifted


def test_word_powers_are_byte_powers_of_four_bytes_each():
    bytes_ = gf2.byte_powers()
    words = gf2.word_powers(63)
    assert list(words) == [bytes_[4 * n] for n in range(64)]
