import zlib

import pytest

from gdsckpt.errors import FormatError, UnsupportedVersionError
from gdsckpt.format import footer


def test_encode_is_the_documented_text():
    text = b"gdsckpt/1 table=0000000000001234 tail=deadbeef check="
    expected = text + b"%08x" % zlib.crc32(text)
    assert footer.encode(0x1234, 0xDEADBEEF) == expected
    assert len(expected) == footer.FOOTER_NBYTES == 61


def test_decode_gives_what_was_encoded():
    raw = footer.encode(2**40 + 5, 77)
    assert footer.decode(b"before" + raw, "f", 1000) == footer.Footer(2**40 + 5, 77)


def test_tail_crc_end_is_where_the_digits_begin():
    raw = footer.encode(0, 0xABCDEF01)
    at = footer.tail_crc_end(len(raw))
    assert raw[at : at + 8] == b"abcdef01"
    assert raw[:at] == footer.encode_prefix(0)


@pytest.mark.parametrize("position", range(61))
def test_decode_any_flipped_bit_is_a_format_error_and_no_new_version(position):
    raw = footer.encode(0x1234, 0xDEADBEEF)
    for bit in range(8):
        damaged = bytearray(raw)
        damaged[position] ^= 1 << bit
        with pytest.raises(FormatError) as caught:
            footer.decode(bytes(damaged), "f", 1000)
        assert caught.value.offset == 1000 - 61
        assert not isinstance(caught.value, UnsupportedVersionError)


def test_decode_whole_footer_of_a_later_version_says_so():
    text = b"gdsckpt/2 table=0000000000001234 tail=deadbeef check="
    with pytest.raises(UnsupportedVersionError) as caught:
        footer.decode(text + b"%08x" % zlib.crc32(text), "f", 1000)
    assert (caught.value.found, caught.value.supported) == (2, 1)
