import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdsckpt.errors import ConfigError
from gdsckpt.units import (
    format_binary_bytes,
    format_bytes,
    format_duration,
    format_rate,
    parse_bytes,
    parse_count,
)


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        (0, 0),
        (65536, 65536),
        ("0", 0),
        ("65536", 65536),
        ("12B", 12),
        ("1KiB", 1024),
        ("32MiB", 33554432),
        ("32 MiB", 33554432),
        (" 32MiB ", 33554432),
        ("1.5GiB", 1610612736),
        ("2TiB", 2199023255552),
        ("1PiB", 1125899906842624),
        ("1kB", 1000),
        ("1KB", 1000),
        ("4GB", 4000000000),
        ("1.001MB", 1001000),
        ("3TB", 3000000000000),
        ("1PB", 1000000000000000),
    ],
    ids=repr,
)
def test_parse_bytes_understood_text_gives_bytes(text, nbytes):
    assert parse_bytes(text) == nbytes


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("", "give a number of bytes"),
        ("MiB", "give a number of bytes"),
        ("-1", "give a number of bytes"),
        (-1, "give a number of bytes"),
        ("1e9", "give a number of bytes"),
        ("0x10", "give a number of bytes"),
        ("32mib", "unknown unit 'mib'"),
        ("32M", "use one of B, KiB, MiB"),
        ("1 2", "give a number of bytes"),
        ("1_000", "give a number of bytes"),
        (".5GiB", "give a number of bytes"),
        ("\u0663", "give a number of bytes"),
        ("0.5B", "not a whole number"),
        ("0.3KiB", "not a whole number"),
        (True, "of type bool"),
        (1.5, "of type float"),
        (None, "of type NoneType"),
    ],
    ids=repr,
)
def test_parse_bytes_other_value_is_refused(value, said):
    with pytest.raises(ConfigError) as info:
        parse_bytes(value, field="chunk_bytes")
    assert info.value.field == "chunk_bytes"
    assert str(info.value).startswith("chunk_bytes is ")
    assert said in str(info.value)


@pytest.mark.parametrize(
    ("text", "count"),
    [(7, 7), ("125", 125), ("50M", 50_000_000), ("1.5B", 1_500_000_000), ("2T", 2 * 10**12)],
)
def test_parse_count_understood_text_gives_count(text, count):
    assert parse_count(text) == count


@pytest.mark.parametrize("value", ["50MB", "50m", "1.5", "-3", "many", False])
def test_parse_count_other_value_is_refused(value):
    with pytest.raises(ConfigError) as info:
        parse_count(value, field="params")
    assert info.value.field == "params"


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (1024, "1.02 kB"),
        (9994, "9.99 kB"),
        (9996, "10.0 kB"),
        (12345, "12.3 kB"),
        (999499, "999 kB"),
        (999500, "1.00 MB"),
        (4_830_000_000, "4.83 GB"),
        (100 * 10**12, "100 TB"),
        (2 * 10**15, "2 PB"),
        (12345 * 10**15, "12345 PB"),
    ],
)
def test_format_bytes_gives_three_digits_in_decimal_units(nbytes, text):
    assert format_bytes(nbytes) == text


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (1023, "1023 B"),
        (65536, "64 KiB"),
        (16777216, "16 MiB"),
        (1536 * 2**20, "1536 MiB"),
        (2**40, "1 TiB"),
    ],
)
def test_format_binary_bytes_is_exact(nbytes, text):
    assert format_binary_bytes(nbytes) == text


@given(st.integers(min_value=0, max_value=2**62))
def test_format_binary_bytes_is_read_back(nbytes):
    assert parse_bytes(format_binary_bytes(nbytes)) == nbytes


@pytest.mark.parametrize(
    ("bytes_per_s", "text"),
    [(0.0, "0 B/s"), (6.714e9, "6.71 GB/s"), (125e6, "125 MB/s"), (0.5, "0.50 B/s")],
)
def test_format_rate_gives_decimal_units(bytes_per_s, text):
    assert format_rate(bytes_per_s) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 us"),
        (0.00085, "850 us"),
        (0.0123, "12.3 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1.00 s"),
        (1.02, "1.02 s"),
        (59.94, "59.9 s"),
        (59.95, "1 min"),
        (60, "1 min"),
        (125, "2 min 5 s"),
        (3600, "1 h"),
        (7500, "2 h 5 min"),
        (86400, "1 d"),
        (183600, "2 d 3 h"),
    ],
)
def test_format_duration_gives_readable_units(seconds, text):
    assert format_duration(seconds) == text
