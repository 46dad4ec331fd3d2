"""A quantity that is not known exactly: its lowest, likeliest and highest value."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gdsckpt.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Band:
    """Three values of one quantity, ``low <= mid <= high``, all finite and in the same unit.

    Arithmetic takes the two operands for independent of each other and keeps the extremes, so the
    result is never narrower than what is possible; ``band - band`` is not zero. Numbers are taken
    as bands without width.

    Attributes:
        low: The smallest value that is plausible.
        mid: The likeliest.
        high: The largest value that is plausible.

    Raises:
        ConfigError: The three are out of order, or one is not finite.
    """

    low: float
    mid: float
    high: float

    def __post_init__(self) -> None:
        """Check the order."""
        if not all(map(math.isfinite, (self.low, self.mid, self.high))):
            raise ConfigError(
                f"band is ({self.low}, {self.mid}, {self.high}): give finite numbers.", field="band"
            )
        if not self.low <= self.mid <= self.high:
            raise ConfigError(
                f"band is ({self.low}, {self.mid}, {self.high}): give low <= mid <= high.",
                field="band",
            )

    @classmethod
    def exactly(cls, value: float) -> Band:
        """Give a value that is known."""
        return cls(value, value, value)

    @classmethod
    def of(cls, value: Band | float) -> Band:
        """Give a band as it is, and a number as a band without width."""
        return value if isinstance(value, Band) else cls.exactly(value)

    @classmethod
    def around(cls, mid: float, share: float) -> Band:
        """Give ``mid`` with ``share`` of it (0.1 is 10 %, at least 0) to each side."""
        width = abs(mid) * share
        return cls(mid - width, mid, mid + width)

    @classmethod
    def total(cls, bands: Iterable[Band]) -> Band:
        """Give the sum; of none, zero."""
        return sum(bands, cls.exactly(0.0))

    @property
    def is_exact(self) -> bool:
        """Whether low and high are the same."""
        return self.low == self.high

    @property
    def width(self) -> float:
        """High minus low, in the unit of the band."""
        return self.high - self.low

    def __add__(self, other: Band | float) -> Band:
        second = Band.of(other)
        return Band(self.low + second.low, self.mid + second.mid, self.high + second.high)

    __radd__ = __add__

    def __sub__(self, other: Band | float) -> Band:
        second = Band.of(other)
        return Band(self.low - second.high, self.mid - second.mid, self.high - second.low)

    def __rsub__(self, other: float) -> Band:
        return Band.of(other) - self

    def __mul__(self, other: Band | float) -> Band:
        second = Band.of(other)
        return _spanning(self, second, lambda a, b: a * b)

    __rmul__ = __mul__

    def __truediv__(self, other: Band | float) -> Band:
        """Divide; a divisor that may be zero is a ConfigError."""
        second = Band.of(other)
        if second.low <= 0 <= second.high:
            raise ConfigError(
                f"a divisor is between {second.low} and {second.high}: it has to be away from 0.",
                field="band",
            )
        return _spanning(self, second, lambda a, b: a / b)

    def __rtruediv__(self, other: float) -> Band:
        return Band.of(other) / self

    def map(self, function: Callable[[float], float]) -> Band:
        """Apply a function that rises everywhere or falls everywhere within the band."""
        ends = sorted((function(self.low), function(self.high)))
        return Band(ends[0], _within(function(self.mid), ends[0], ends[1]), ends[1])

    def at_least(self, other: Band | float) -> Band:
        """Give the larger of the two, value by value: ``band.at_least(0)`` cuts negatives off."""
        second = Band.of(other)
        return Band(
            max(self.low, second.low), max(self.mid, second.mid), max(self.high, second.high)
        )

    def at_most(self, other: Band | float) -> Band:
        """Give the smaller of the two, value by value."""
        second = Band.of(other)
        return Band(
            min(self.low, second.low), min(self.mid, second.mid), min(self.high, second.high)
        )

    def as_dict(self) -> dict[str, float]:
        """Give low, mid and high as values that JSON has."""
        return {"low": self.low, "mid": self.mid, "high": self.high}

    def format(self, write: Callable[[float], str]) -> str:
        """Give it for people: ``"46 s (41 s to 52 s)"``, or one value where all read the same.

        Args:
            write: Gives one value with its unit, as ``gdsckpt.units.format_duration`` does.
        """
        low, mid, high = write(self.low), write(self.mid), write(self.high)
        return mid if low == mid == high else f"{mid} ({low} to {high})"


def _spanning(first: Band, second: Band, operation: Callable[[float, float], float]) -> Band:
    """Give the extremes over all corners; the operation is monotone in each operand."""
    corners = [operation(a, b) for a in (first.low, first.high) for b in (second.low, second.high)]
    low, high = min(corners), max(corners)
    return Band(low, _within(operation(first.mid, second.mid), low, high), high)


def _within(value: float, low: float, high: float) -> float:
    """Keep rounding errors from moving the middle out of its ends."""
    return min(max(value, low), high)
