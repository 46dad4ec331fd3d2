import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdsckpt.errors import ConfigError
from gdsckpt.units import (
    format_binary_bytes,
    format_bytes,
    format_duration,
    format_rate,
    format_share,
    format_usd,
    parse_bytes,
    parse_count,
    parse_duration,
    parse_rate,
    parse_share,
    parse_usd,
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


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [
        ("70GB/s", 70e9),
        ("1.5 GiB/s", 1.5 * 2**30),
        ("400Gbit/s", 50e9),
        ("12 B/s", 12),
        ("0.1kbit/s", 12.5),
    ],
)
def test_parse_rate_understood_text_gives_bytes_per_s(text, bytes_per_s):
    assert parse_rate(text) == bytes_per_s


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("15min", 900),
        ("1h", 3600),
        ("30d", 2_592_000),
        ("1 h 30 min", 5400),
        ("2h5min", 7500),
        ("1y", 31_536_000),
        ("2.5 ms", 0.0025),
    ],
)
def test_parse_duration_understood_text_gives_seconds(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("parse", "value", "said"),
    [
        (parse_rate, "70", "unknown unit ''"),
        (parse_rate, "70GB", "unknown unit 'GB'"),
        (parse_rate, "70Gb/s", "use one of B/s"),
        (parse_rate, "-1GB/s", "give a rate with its unit"),
        (parse_rate, 70, "of type int"),
        (parse_rate, "1GB/h", "unknown unit 'GB/h'"),
        (parse_duration, "90", "give a duration with its unit"),
        (parse_duration, "", "give a duration with its unit"),
        (parse_duration, "-1h", "give a duration with its unit"),
        (parse_duration, "1H", "unknown unit 'H'"),
        (parse_duration, "1h 30", "give a duration with its unit"),
        (parse_duration, 90, "of type int"),
        (parse_duration, "inf s", "give a duration with its unit"),
        (parse_usd, "2.5", "give US dollars"),
        (parse_usd, "2.5EUR", "give US dollars"),
        (parse_usd, "$-1", "give US dollars"),
        (parse_usd, 2.5, "of type float"),
        (parse_share, "110%", "give a share"),
        (parse_share, 1.5, "give a share"),
        (parse_share, -0.1, "give a share"),
        (parse_share, float("nan"), "give a share"),
        (parse_share, True, "of type bool"),
        (parse_share, "a tenth", "give a share"),
    ],
)
def test_parse_quantity_other_value_is_refused(parse, value, said):
    with pytest.raises(ConfigError) as info:
        parse(value, field="limit")
    assert info.value.field == "limit"
    assert str(info.value).startswith("limit is ")
    assert said in str(info.value)


def test_parse_usd_and_share_give_numbers():
    assert (parse_usd("$2.50"), parse_usd("2.50 USD"), parse_usd("0.005USD")) == (2.5, 2.5, 0.005)
    assert (parse_share("10%"), parse_share(0.1), parse_share("0.1"), parse_share(1)) == (
        0.1,
        0.1,
        0.1,
        1.0,
    )


@pytest.mark.parametrize(
    ("usd", "text"),
    [(2.5, "$2.50"), (0, "$0.00"), (12345.6, "$12,346"), (0.00113, "$0.00113"), (-3, "-$3.00")],
)
def test_format_usd(usd, text):
    assert format_usd(usd) == text


def test_format_share():
    assert (format_share(0.025), format_share(0.9871)) == ("2.50 %", "98.7 %")


@given(st.floats(min_value=1e-3, max_value=1e17))
def test_rate_survives_a_round_trip(rate):
    assert parse_rate(format_rate(rate)) == pytest.approx(rate, rel=0.006, abs=0.006)


@given(st.floats(min_value=1e-3, max_value=1e9))
def test_duration_survives_a_round_trip(seconds):
    # The second of two units is cut off, not rounded: an hour and 59 s read "1 h".
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds, rel=0.042)


@given(st.floats(min_value=0.01, max_value=999))
def test_usd_survives_a_round_trip(usd):
    assert parse_usd(format_usd(usd)) == pytest.approx(usd, abs=0.0051)


@given(st.floats(min_value=0.01, max_value=1))
def test_share_survives_a_round_trip(share):
    assert parse_share(format_share(share)) == pytest.approx(share, rel=0.006)
