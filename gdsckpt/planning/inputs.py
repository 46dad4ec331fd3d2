"""Inputs of a plan: each is declared once, with its kind, bounds and meaning; read from text."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gdsckpt import units
from gdsckpt.errors import ConfigError
from gdsckpt.planning.band import Band

Value = int | float | str | bool | Band | None

YEAR_S = 365 * 86400.0
BAND_MARK = ".."
"""Between the ends of a quantity that is not known exactly: ``"1h..3h"``, ``"1h..2h..3h"``."""


def _bytes(value: Any, field: str) -> float:
    if not isinstance(value, str) or not any(map(str.isalpha, value)):
        raise ConfigError(
            f"{field} is {value!r}, without a unit: give bytes such as 912GB (powers of 1000) or "
            "850GiB (powers of 1024).",
            field=field,
        )
    return units.parse_bytes(value, field=field)


def _bool(value: Any, field: str) -> bool:
    found = {"true": True, "yes": True, "false": False, "no": False}.get(str(value).lower())
    if found is None:
        raise ConfigError(f"{field} is {value!r}. Allowed: true, false.", field=field)
    return found


@dataclass(frozen=True, slots=True)
class Kind:
    """What an input measures.

    Attributes:
        name: For the documentation.
        parse: Reads what a user writes; given the value and the name of the field.
        format: Writes a value for people.
        minimum: Smallest value that makes sense, unless the input says otherwise.
        maximum: Largest.
        metavar: What stands for a value in the help.
        suffix: What attributes of this kind end with, which the names of inputs leave out.
    """

    name: str
    parse: Callable[[Any, str], Any]
    format: Callable[[Any], str]
    minimum: float
    maximum: float
    metavar: str
    suffix: str = ""


COUNT = Kind("a count", lambda v, f: units.parse_count(v, field=f), "{:,}".format, 1, 10**16, "N")
BYTES = Kind("bytes", _bytes, units.format_bytes, 1, 10.0**21, "BYTES", suffix="_bytes")
RATE = Kind(
    "bytes per second",
    lambda v, f: units.parse_rate(v, field=f),
    units.format_rate,
    1,
    1e18,
    "RATE",
    suffix="_bytes_per_s",
)
DURATION = Kind(
    "a duration",
    lambda v, f: units.parse_duration(v, field=f),
    units.format_duration,
    1e-3,
    1000 * YEAR_S,
    "TIME",
    suffix="_s",
)
USD = Kind(
    "US dollars", lambda v, f: units.parse_usd(v, field=f), units.format_usd, 0, 1e9, "USD", "_usd"
)
SHARE = Kind(
    "a share",
    lambda v, f: units.parse_share(v, field=f),
    units.format_share,
    0,
    1,
    "SHARE",
    "_share",
)
TEXT = Kind("text", lambda v, f: _text(v, f), str, -math.inf, math.inf, "TEXT")
BOOL = Kind("yes or no", _bool, lambda v: "yes" if v else "no", -math.inf, math.inf, "yes|no")


def _text(value: Any, field: str) -> str:
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise ConfigError(f"{field} is {value!r}: give a text.", field=field)
    return value.strip()


@dataclass(frozen=True, slots=True)
class Input:
    """One input.

    Attributes:
        kind: What it measures.
        meaning: For the help and the documentation.
        choices: The allowed texts; empty for any.
        minimum: Smallest value; None takes that of the kind.
        maximum: Largest value; None takes that of the kind.
        is_band: Whether it may be uncertain: ``LOW..HIGH`` or ``LOW..MID..HIGH``.
        group: Of the inputs of a group at most one is given; empty for none.
    """

    kind: Kind
    meaning: str
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    is_band: bool = False
    group: str = ""

    def parse(self, value: Any, field: str) -> Value:
        """Read what a user wrote.

        Raises:
            ConfigError: It is not understood or out of its bounds; ``field`` is the name given.
        """
        if self.is_band:
            return self._band(value, field)
        parsed: Value = self._checked(value, field)
        return parsed

    def format(self, value: Value) -> str:
        """Write a value for people, with its unit."""
        if value is None:
            return "not given"
        return (
            value.format(self.kind.format) if isinstance(value, Band) else self.kind.format(value)
        )

    def _band(self, value: Any, field: str) -> Band:
        ends = value.split(BAND_MARK) if isinstance(value, str) else [value]
        numbers = [float(self._checked(end, field)) for end in ends]
        if len(numbers) > 3 or numbers != sorted(numbers):
            raise ConfigError(
                f"{field} is {value!r}: give one value, LOW..HIGH or LOW..MID..HIGH, ascending.",
                field=field,
            )
        middle = numbers[1] if len(numbers) == 3 else (numbers[0] + numbers[-1]) / 2
        return Band(numbers[0], middle, numbers[-1])

    def _checked(self, value: Any, field: str) -> Any:
        parsed = self.kind.parse(value, field)
        if self.choices and parsed not in self.choices:
            raise ConfigError(
                f"{field} is {value!r}. Allowed: {', '.join(self.choices)}.", field=field
            )
        if isinstance(parsed, int | float) and not isinstance(parsed, bool):
            self._check_bounds(parsed, value, field)
        return parsed

    def _check_bounds(self, parsed: float, value: Any, field: str) -> None:
        low = self.kind.minimum if self.minimum is None else self.minimum
        high = self.kind.maximum if self.maximum is None else self.maximum
        if not low <= parsed <= high:
            write = self.kind.format
            raise ConfigError(
                f"{field} is {value!r}: give {self.kind.name} from {write(low)} to {write(high)}.",
                field=field,
            )


def given(kind: Kind, meaning: str, default: Value = None, **facts: Any) -> Any:
    """Declare an input as a field of a dataclass."""
    return dataclasses.field(default=default, metadata={"input": Input(kind, meaning, **facts)})


def inputs_of(cls: type[Any]) -> dict[str, tuple[str, Input]]:
    """Give the inputs of a dataclass by the name that users write: attribute and input.

    Users write ``interval = "1h"`` for ``interval_s``: the unit stands beside the value.
    """
    found = {}
    for field in dataclasses.fields(cls):
        declared: Input | None = field.metadata.get("input")
        if declared is not None:
            found[field.name.removesuffix(declared.kind.suffix)] = (field.name, declared)
    return found


def read_values(
    cls: type[Any], values: Mapping[str, Any], label: Callable[[str], str]
) -> dict[str, Value]:
    """Read the values that a user gave for a dataclass.

    Args:
        cls: The dataclass.
        values: By the names that users write.
        label: Gives what a name is called in errors, such as ``--interval``.

    Returns:
        Parsed values by attribute.

    Raises:
        ConfigError: A name is unknown, two contradict each other, or a value cannot be used.
    """
    known = inputs_of(cls)
    parsed: dict[str, Value] = {}
    groups: dict[str, str] = {}
    for name, value in values.items():
        if name not in known:
            raise unknown_name(label(name), name, list(known))
        attribute, declared = known[name]
        other = groups.setdefault(declared.group or name, name)
        if other != name:
            raise ConfigError(
                f"{label(other)} and {label(name)} contradict each other: give one of them.",
                field=label(name),
            )
        parsed[attribute] = declared.parse(value, label(name))
    return parsed


def replaced(old: Any, new: Mapping[str, Value]) -> Any:
    """Give a dataclass with new values; the others of their groups go, as they were overruled."""
    known = dict(inputs_of(type(old)).values())
    groups = {known[name].group for name in new} - {""}
    cleared = {name: None for name, declared in known.items() if declared.group in groups}
    return dataclasses.replace(old, **{**cleared, **new})


def unknown_name(label: str, name: str, known: list[str]) -> ConfigError:
    """Make the error for a name that does not exist."""
    import difflib  # costs 2 ms, and only an error needs it

    near = difflib.get_close_matches(name, known, n=1)
    hint = f"Did you mean {near[0]}?" if near else f"Known are {', '.join(known)}."
    return ConfigError(f"{label} is unknown. {hint}", field=label)
