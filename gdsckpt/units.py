"""Bytes, rates, durations, counts, money, shares: read from what people write, written for people.

Measured amounts are printed in decimal units, as drives and networks are sold; settings in binary
units, as buffers are cut.
"""

import re
from collections.abc import Mapping
from fractions import Fraction

from gdsckpt.errors import ConfigError

_BINARY_UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "PiB": 2**50}
_DECIMAL_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "PB": 10**15}
_BYTE_UNITS = {"": 1, "B": 1, **_BINARY_UNITS, **_DECIMAL_UNITS, "kB": 10**3}
_COUNT_UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_BIT_UNITS = {"kbit": 125, "Mbit": 125 * 10**3, "Gbit": 125 * 10**6, "Tbit": 125 * 10**9}
_RATE_UNITS = {
    f"{unit}/s": factor for unit, factor in {**_BYTE_UNITS, **_BIT_UNITS}.items() if unit
}
_TIME_UNITS = {
    "us": Fraction(1, 10**6),
    "ms": Fraction(1, 10**3),
    "s": Fraction(1),
    "min": Fraction(60),
    "h": Fraction(3600),
    "d": Fraction(86400),
    "y": Fraction(365 * 86400),
}

# ASCII digits only: `\d` and int() also take digits of other scripts.
_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([A-Za-z]*)")
_RATE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([A-Za-z]*/?[A-Za-z]*)")
_DURATION = re.compile(r"(?:[0-9]+(?:\.[0-9]+)? ?[A-Za-z]+ ?)+")
_DURATION_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([A-Za-z]+)")
_MONEY = re.compile(r"\$ ?([0-9]+(?:\.[0-9]+)?)|([0-9]+(?:\.[0-9]+)?) ?USD")
_SHARE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(%?)")


def parse_bytes(value: int | str, *, field: str | None = None) -> int:
    """Read a number of bytes, such as ``"32MiB"``, ``"4GB"``, ``"1.5 GiB"`` or ``65536``.

    KiB, MiB, GiB, TiB and PiB are powers of 1024; kB (or KB), MB, GB, TB and PB powers of 1000.

    Args:
        value: The number, or text with an optional unit; without one it is in bytes.
        field: Name of the setting, for the error.

    Returns:
        Bytes, at least 0.

    Raises:
        ConfigError: It is negative, not a whole number of bytes, or not understood.
    """
    return _parse(value, _BYTE_UNITS, field, "a number of bytes such as 65536, 32MiB or 4GB")


def parse_count(value: int | str, *, field: str | None = None) -> int:
    """Read a count, such as ``"50M"`` or ``"1.5B"`` parameters.

    Args:
        value: The number, or text with an optional K, M, B (10**9) or T (10**12).
        field: Name of the setting, for the error.

    Returns:
        The count, at least 0.

    Raises:
        ConfigError: It is negative, not a whole number, or not understood.
    """
    return _parse(value, _COUNT_UNITS, field, "a count such as 125000, 50M or 7B")


def parse_rate(value: str, *, field: str | None = None) -> float:
    """Read a rate, such as ``"70GB/s"``, ``"1.5 GiB/s"`` or ``"400Gbit/s"`` (50 GB/s).

    Args:
        value: Text with a unit; a bare number is refused, since nobody can tell what it counts.
        field: Name of the setting, for the error.

    Returns:
        Bytes per second, at least 0.

    Raises:
        ConfigError: It is negative, or not understood.
    """
    wanted = "a rate with its unit such as 70GB/s, 1.5GiB/s or 400Gbit/s"
    number, unit = _match(_RATE, value, field, wanted).groups()
    return float(Fraction(number) * _factor(value, unit, _RATE_UNITS, field))


def parse_duration(value: str, *, field: str | None = None) -> float:
    """Read a duration, such as ``"90s"``, ``"15min"``, ``"1 h 30 min"`` or ``"30d"``.

    Units are us, ms, s, min, h, d (24 h) and y (365 d).

    Args:
        value: Text with units; a bare number is refused.
        field: Name of the setting, for the error.

    Returns:
        Seconds, at least 0.

    Raises:
        ConfigError: It is negative, or not understood.
    """
    text = _match(
        _DURATION, value, field, "a duration with its unit such as 90s, 15min, 1h or 30d"
    ).group()
    return float(
        sum(
            Fraction(number) * _factor(value, unit, _TIME_UNITS, field)
            for number, unit in _DURATION_PART.findall(text)
        )
    )


def parse_usd(value: str, *, field: str | None = None) -> float:
    """Read an amount of money, such as ``"$2.50"`` or ``"2.50 USD"``.

    Args:
        value: Text with ``$`` or ``USD``; other currencies are not converted.
        field: Name of the setting, for the error.

    Returns:
        US dollars, at least 0.

    Raises:
        ConfigError: It is negative, or not understood.
    """
    found = _match(_MONEY, value, field, "US dollars such as $2.50 or 2.50USD")
    return float(found.group(1) or found.group(2))


def parse_share(value: float | str, *, field: str | None = None) -> float:
    """Read a share of a whole, such as ``"10%"`` or ``0.1``.

    Args:
        value: The number from 0 to 1, or text with ``%``.
        field: Name of the setting, for the error.

    Returns:
        The share, from 0 to 1.

    Raises:
        ConfigError: It is not within 0 and 1, or not understood.
    """
    wanted = "a share from 0 to 1 such as 0.1 or 10%"
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    number, percent = _match(
        _SHARE, format(value, "f") if is_number else value, field, wanted
    ).groups()
    share = float(Fraction(number) / (100 if percent else 1))
    if share > 1:
        raise ConfigError(f"{field or 'value'} is {value!r}: give {wanted}.", field=field)
    return share


def format_bytes(nbytes: float) -> str:
    """Give a measured amount in decimal units and three digits: ``"4.83 GB"``, ``"512 B"``."""
    return _format_decimal(nbytes, "B")


def format_binary_bytes(nbytes: int) -> str:
    """Give a setting exactly, in the largest binary unit that divides it: ``"16 MiB"``.

    ``parse_bytes`` gives back the number.
    """
    for unit, factor in reversed(_BINARY_UNITS.items()):
        if nbytes and nbytes % factor == 0:
            return f"{nbytes // factor} {unit}"
    return f"{nbytes} B"


def format_rate(bytes_per_s: float) -> str:
    """Give a rate in decimal units and three digits: ``"6.71 GB/s"``."""
    return _format_decimal(bytes_per_s, "B/s")


def format_duration(seconds: float) -> str:
    """Give a duration in the unit it is read best in: ``"12.3 ms"``, ``"1.02 s"``, ``"2 h 5 min"``.

    Args:
        seconds: Duration, at least 0.

    Returns:
        Three digits below a minute, otherwise the two largest units.
    """
    if seconds >= 59.95:
        return _format_clock(round(seconds))
    for unit, factor in (("us", 1e6), ("ms", 1e3)):
        if seconds * factor < 999.5:
            return f"{_three_digits(seconds * factor)} {unit}"
    return f"{_three_digits(seconds)} s"


def format_usd(usd: float) -> str:
    """Give an amount of money with cents, from a thousand on without: ``"$2.50"``, ``"$12,346"``.

    Amounts below a cent keep three digits: ``"$0.00113"``.
    """
    if abs(usd) >= 999.5:
        return f"${usd:,.0f}" if usd >= 0 else f"-${-usd:,.0f}"
    if usd and abs(usd) < 0.00995:
        return f"${usd:.3g}" if usd >= 0 else f"-${-usd:.3g}"
    return f"${usd:.2f}" if usd >= 0 else f"-${-usd:.2f}"


def format_share(share: float) -> str:
    """Give a share in percent and three digits: ``"2.50 %"``, ``"98.7 %"``."""
    return f"{_three_digits(share * 100)} %"


def _match(
    pattern: re.Pattern[str], value: object, field: str | None, wanted: str
) -> re.Match[str]:
    name = field or "value"
    if not isinstance(value, str):
        raise ConfigError(
            f"{name} is {value!r}, of type {type(value).__name__}: give {wanted}.", field=field
        )
    match = pattern.fullmatch(value.strip())
    if match is None:
        raise ConfigError(f"{name} is {value!r}: give {wanted}.", field=field)
    return match


def _factor(
    value: str, unit: str, units: Mapping[str, int | Fraction], field: str | None
) -> int | Fraction:
    if unit not in units:
        raise ConfigError(
            f"{field or 'value'} is {value!r}, with the unknown unit {unit!r}: use one of "
            f"{', '.join(units)}.",
            field=field,
        )
    return units[unit]


def _parse(value: int | str, units: dict[str, int], field: str | None, wanted: str) -> int:
    name = field or "value"
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ConfigError(
            f"{name} is {value!r}, of type {type(value).__name__}: give {wanted}.", field=field
        )
    match = _QUANTITY.fullmatch(str(value).strip())
    if match is None:
        raise ConfigError(f"{name} is {value!r}: give {wanted}.", field=field)
    number, unit = match.groups()
    if unit not in units:
        known = ", ".join(u for u in units if u)
        raise ConfigError(
            f"{name} is {value!r}, with the unknown unit {unit!r}: use one of {known}.", field=field
        )
    amount = Fraction(number) * units[unit]
    if amount.denominator != 1:
        raise ConfigError(f"{name} is {value!r}, not a whole number: give {wanted}.", field=field)
    return amount.numerator


def _format_decimal(amount: float, unit: str) -> str:
    for prefix in ("", "k", "M", "G", "T"):
        if amount < 999.5:
            return f"{_three_digits(amount)} {prefix}{unit}"
        amount /= 1000
    return f"{_three_digits(amount)} P{unit}"


def _three_digits(amount: float) -> str:
    """Give three significant digits without an exponent; whole numbers below 1000 stay whole."""
    if amount >= 99.95 or amount == int(amount):
        return f"{amount:.0f}"
    return f"{amount:.1f}" if amount >= 9.995 else f"{amount:.2f}"


def _format_clock(seconds: int) -> str:
    for unit, factor, small_unit, small_factor in (
        ("d", 86400, "h", 3600),
        ("h", 3600, "min", 60),
        ("min", 60, "s", 1),
    ):
        if seconds >= factor:
            rest = seconds % factor // small_factor
            return f"{seconds // factor} {unit}" + (f" {rest} {small_unit}" if rest else "")
    raise AssertionError("a duration below a minute is no clock time")
