from array import array

import pytest

from gdsckpt import native
from gdsckpt.errors import ConfigError
from gdsckpt.format import zipfmt

GiB = 1 << 30
PREFIX = "archive/\u00e4/"
SIZES = [0, 1, 4096, 4 * GiB - 2, 4 * GiB - 1, 4 * GiB, 2**63]
OFFSETS = [0, 1, 4 * GiB - 2, 4 * GiB - 1, 4 * GiB, 2**62]
NUMBERS = [0, *(10**digits - 1 for digits in range(1, 20)), 10**19, 2**64 - 1]
RECORDS = [
    (number, nbytes, 0xFFFFFFFF - number % 1000, header_offset)
    for number in NUMBERS
    for nbytes in SIZES
    for header_offset in OFFSETS
]
"""Rows of (number, nbytes, crc32, header_offset)."""


def columns():
    numbers, nbytes, crcs, header_offsets = zip(*RECORDS, strict=True)
    return array("Q", numbers), array("Q", nbytes), array("I", crcs), array("Q", header_offsets)


def test_zip_local_headers_are_those_of_zipfmt():
    numbers, nbytes, _, _ = columns()
    expected = [zipfmt.local_header(f"{PREFIX}{n}", size, 0) for n, size, _, _ in RECORDS]
    assert native.zip_local_headers(PREFIX, numbers, nbytes) == b"".join(expected)


def test_zip_central_entries_are_those_of_zipfmt():
    expected = [zipfmt.central_entry(f"{PREFIX}{n}", size, crc, at) for n, size, crc, at in RECORDS]
    assert native.zip_central_entries(PREFIX, *columns()) == b"".join(expected)


def test_zip_headers_of_no_records_are_empty():
    none = array("Q")
    assert native.zip_local_headers(PREFIX, none, none) == b""
    assert native.zip_central_entries(PREFIX, none, none, array("I"), none) == b""


@pytest.mark.parametrize("position", range(4))
def test_zip_central_entries_with_a_column_too_short_are_refused(position):
    given = list(columns())
    given[position] = given[position][1:]
    with pytest.raises(ConfigError) as caught:
        native.zip_central_entries(PREFIX, *given)
    assert caught.value.field == ["nbytes", "nbytes", "crcs", "header_offsets"][position]


@pytest.mark.parametrize("position", range(4))
def test_zip_central_entries_with_numbers_of_another_width_are_refused(position):
    given = list(columns())
    given[position] = array("H", [1])
    with pytest.raises(ConfigError) as caught:
        native.zip_central_entries(PREFIX, *given)
    assert caught.value.field == ["numbers", "nbytes", "crcs", "header_offsets"][position]


def test_zip_local_headers_with_a_name_too_long_are_refused():
    one = array("Q", [1])
    with pytest.raises(ConfigError) as caught:
        native.zip_local_headers("x" * 65536, one, one)
    assert caught.value.field == "prefix"
