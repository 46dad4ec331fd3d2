"""Architectures side by side, and the save frequency at which the cheaper one changes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from gdsckpt.errors import ConfigError
from gdsckpt.planning.architecture import Architecture, FileSystem, LocalDrives, Workload
from gdsckpt.planning.band import Band
from gdsckpt.planning.capacity import Stage
from gdsckpt.planning.cost import Cost, cost
from gdsckpt.planning.prices import Prices

RULE_PER_HOUR = 4.0
"""The rule of thumb: up to about four saves an hour object storage is cheaper, above it a parallel
file system. Nobody says for which sizes and prices; :class:`Crossover` tells whether it holds."""

LOWEST_PER_HOUR, HIGHEST_PER_HOUR = 0.05, 120.0
_RULE_FACTOR = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossover:
    """Where the cheaper of two architectures changes.

    Attributes:
        first: Name of the one.
        second: Name of the other.
        per_hour: Saves an hour at which both cost the same with the likely prices, ascending;
            empty where one is cheaper at all frequencies that were looked at.
        per_hour_band: Where the first of them may lie within the bands of the prices; None where
            it may not exist.
        cheaper_below: Name of the one that is cheaper at the lowest frequency.
        cheaper_above: Name of the one that is cheaper at the highest frequency.
        rule_holds: Whether a crossover lies within a factor of two of ``RULE_PER_HOUR``.
        statement: All this in words.
    """

    first: str
    second: str
    per_hour: tuple[float, ...]
    per_hour_band: Band | None
    cheaper_below: str
    cheaper_above: str
    rule_holds: bool
    statement: str

    def as_dict(self) -> dict[str, Any]:
        """Give the fields as values that JSON has."""
        return dataclasses.asdict(self)


def standard_architectures(
    *, stall_s: Band, file_system: str = "fsx-lustre-1000", keep_newest: int = 3
) -> tuple[Architecture, ...]:
    """Give the three that are usually compared.

    Args:
        stall_s: Stall of a save to local drives, in seconds.
        file_system: Name of the parallel file system in the price file.
        keep_newest: Checkpoints that are kept where reading them is fast.
    """
    return (
        Architecture(
            name="synchronous to parallel file system",
            file_system=FileSystem(storage=file_system, keep_newest=keep_newest),
        ),
        Architecture(
            name="local NVMe, then Express, then Standard",
            drives=LocalDrives(keep_newest=keep_newest),
            stages=(
                Stage(storage="s3-express", keep_newest=keep_newest),
                Stage(storage="s3-standard", keep_newest=keep_newest * 4, keep_every=4),
            ),
            stall_s=stall_s,
        ),
        Architecture(
            name="local NVMe, then Standard",
            drives=LocalDrives(keep_newest=keep_newest),
            stages=(Stage(storage="s3-standard", keep_newest=keep_newest * 4),),
            stall_s=stall_s,
        ),
        Architecture(
            name="all NVMe, two copies",
            drives=LocalDrives(keep_newest=keep_newest, num_copies=2),
            stall_s=stall_s,
        ),
    )


def compare(
    workload: Workload, architectures: Iterable[Architecture], prices: Prices
) -> list[Cost]:
    """Compute the bill of each architecture, the cheapest first."""
    costs = [cost(workload, each, prices) for each in architectures]
    return sorted(costs, key=lambda each: each.total_usd.mid)


def cost_over_frequency(
    workload: Workload,
    architecture: Architecture,
    prices: Prices,
    *,
    per_hour: Sequence[float] | None = None,
) -> list[tuple[float, Band]]:
    """Give (saves an hour, total in USD) for plots.

    Args:
        workload: Its own interval is not used.
        architecture: Where checkpoints go.
        prices: What that costs.
        per_hour: Frequencies; None takes 61 between the lowest and highest that are looked at.
    """
    chosen = _frequencies(61) if per_hour is None else per_hour
    return [(each, cost(_at(workload, each), architecture, prices).total_usd) for each in chosen]


def crossover(
    workload: Workload, first: Architecture, second: Architecture, prices: Prices
) -> Crossover:
    """Find the frequencies at which two architectures cost the same.

    Looks from one save in 20 hours to one in 30 seconds: signs of the difference at 61
    frequencies, then bisection. Retention, stall of a local save and prices stay as they are.

    Raises:
        ConfigError: Both are the same.
    """
    if first == second:
        raise ConfigError(f"{first.name} is compared with itself.", field="architecture")

    def difference(per_hour: float, first_end: str, second_end: str) -> float:
        at = _at(workload, per_hour)
        bills = cost(at, first, prices).total_usd, cost(at, second, prices).total_usd
        return float(getattr(bills[0], first_end) - getattr(bills[1], second_end))

    found = _roots(difference, "mid", "mid")
    ends = [
        roots[0]
        for roots in (_roots(difference, "low", "high"), _roots(difference, "high", "low"))
        if roots
    ]
    band = None
    if found and len(ends) == 2:
        band = Band(min(*ends, found[0]), found[0], max(*ends, found[0]))
    below, above = (
        first.name if difference(per_hour, "mid", "mid") <= 0 else second.name
        for per_hour in (LOWEST_PER_HOUR, HIGHEST_PER_HOUR)
    )
    holds = any(
        RULE_PER_HOUR / _RULE_FACTOR <= each <= RULE_PER_HOUR * _RULE_FACTOR for each in found
    )
    return Crossover(
        first=first.name,
        second=second.name,
        per_hour=tuple(found),
        per_hour_band=band,
        cheaper_below=below,
        cheaper_above=above,
        rule_holds=holds,
        statement=_statement(found, below, above, holds=holds),
    )


def _statement(found: list[float], below: str, above: str, *, holds: bool) -> str:
    rule = f"the rule of thumb of {RULE_PER_HOUR:g} an hour {'holds' if holds else 'does not hold'}"
    if not found:
        return (
            f"{below} is cheaper from {LOWEST_PER_HOUR:g} to {HIGHEST_PER_HOUR:g} saves an hour: "
            f"there is no crossover, and {rule} here."
        )
    at = ", ".join(f"{each:.3g}" for each in found)
    return f"{below} is cheaper below {at} saves an hour, {above} above: {rule} here."


def _roots(difference: Any, first_end: str, second_end: str) -> list[float]:
    points = [(each, difference(each, first_end, second_end)) for each in _frequencies(61)]
    found = []
    for (low, at_low), (high, at_high) in zip(points, points[1:], strict=False):
        if (at_low <= 0) == (at_high <= 0):
            continue
        left, right = low, high
        for _ in range(50):
            middle = math.sqrt(left * right)
            if (difference(middle, first_end, second_end) <= 0) == (at_low <= 0):
                left = middle
            else:
                right = middle
        found.append(math.sqrt(left * right))
    return found


def _frequencies(number: int) -> list[float]:
    ratio = HIGHEST_PER_HOUR / LOWEST_PER_HOUR
    return [LOWEST_PER_HOUR * ratio ** (n / (number - 1)) for n in range(number)]


def _at(workload: Workload, per_hour: float) -> Workload:
    return dataclasses.replace(workload, interval_s=3600 / per_hour)
