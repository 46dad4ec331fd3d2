"""Architectures side by side, and the save frequency at which the cheaper one changes."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from gdsckpt.errors import ConfigError
from gdsckpt.planning.architecture import Architecture, FileSystem, LocalDrives, Workload
from gdsckpt.planning.band import Band
from gdsckpt.planning.capacity import Stage
from gdsckpt.planning.cost import Cost, cost, file_system_bytes
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
        per_hour_band: Where the first of them lies within the bands of prices and stalls; None
            where it does not exist with the likely ones.
        is_certain: Whether, within the bands, there is always a crossover or never one.
        counts_idle: Whether GPUs that stand still are in the comparison, or storage alone.
        cheaper_below: Name of the one that is cheaper at the lowest frequency.
        cheaper_above: Name of the one that is cheaper at the highest frequency.
        rule_holds: Whether a crossover lies within a factor of two of ``RULE_PER_HOUR``.
        statement: All this in words.
    """

    first: str
    second: str
    per_hour: tuple[float, ...]
    per_hour_band: Band | None
    is_certain: bool
    counts_idle: bool
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
    workload: Workload,
    first: Architecture,
    second: Architecture,
    prices: Prices,
    *,
    counts_idle: bool = True,
) -> Crossover:
    """Find the frequencies at which two architectures cost the same.

    Looks from one save in 20 hours to one in 30 seconds: signs of the difference at 61
    frequencies, then bisection. Retention and the stall of a local save stay as they are. For the
    band, one architecture has its low values and the other its high ones, and the reverse; the
    price of a GPU-hour is the same for both.

    Args:
        workload: Its own interval is not used.
        first: The one.
        second: The other.
        prices: What they cost.
        counts_idle: Whether to count GPUs that stand still, or storage alone.

    Raises:
        ConfigError: Both are the same, or a price is missing.
    """
    if first == second:
        raise ConfigError(f"{first.name} is compared with itself.", field="architecture")
    pair = _Pair(workload, first, second, prices)
    found = pair.roots("mid", "mid", "mid", counts_idle=counts_idle)
    corners = [
        pair.roots(first_end, second_end, gpu_end, counts_idle=counts_idle)
        for first_end, second_end in (("low", "high"), ("mid", "mid"), ("high", "low"))
        for gpu_end in (("low", "mid", "high") if counts_idle else ("mid",))
    ]
    firsts = [roots[0] for roots in (*corners, found) if roots]
    below, above = (
        first.name
        if pair.difference(each, "mid", "mid", "mid" if counts_idle else None) <= 0
        else second.name
        for each in (LOWEST_PER_HOUR, HIGHEST_PER_HOUR)
    )
    holds = any(
        RULE_PER_HOUR / _RULE_FACTOR <= each <= RULE_PER_HOUR * _RULE_FACTOR for each in found
    )
    return Crossover(
        first=first.name,
        second=second.name,
        per_hour=tuple(found),
        per_hour_band=Band(min(firsts), found[0], max(firsts)) if found else None,
        is_certain=all(corners) if found else not any(corners),
        counts_idle=counts_idle,
        cheaper_below=below,
        cheaper_above=above,
        rule_holds=holds,
        statement=_statement(found, below, above, holds=holds),
    )


def rule_cases(
    workload: Workload, first: Architecture, second: Architecture, prices: Prices
) -> tuple[tuple[str, Crossover], ...]:
    """Show when the rule of thumb holds: the crossover under different assumptions.

    Args:
        workload: What is saved; its interval gives the size of the file system that is there.
        first: The one with the parallel file system.
        second: The other.
        prices: What they cost.

    Returns:
        Pairs of what is assumed and what follows.

    Raises:
        ConfigError: ``first`` has no file system.
    """
    if first.file_system is None:
        raise ConfigError(f"{first.name} has no file system.", field="architecture")
    price = prices.storage_named(first.file_system.storage)
    capacity = file_system_bytes(workload, first.file_system, price)
    there = dataclasses.replace(first.file_system, provisioned_bytes=capacity)
    fixed = dataclasses.replace(first, file_system=there)
    fits = "the file system grows with the frequency"
    stays = f"the file system has the {capacity / 1e12:.3g} TB for now"
    cases = []
    for architecture, size in ((first, fits), (fixed, stays)):
        for counts_idle, what in ((True, "with GPUs that stand still"), (False, "storage alone")):
            found = crossover(workload, architecture, second, prices, counts_idle=counts_idle)
            cases.append((f"{what}; {size}", found))
    return tuple(cases)


class _Pair:
    """Two architectures at any frequency; each bill is computed once."""

    def __init__(
        self, workload: Workload, first: Architecture, second: Architecture, prices: Prices
    ) -> None:
        gpu = prices.gpu_named(workload.gpu)
        self._gpu_hour_usd = gpu.usd_per_gpu_hour.usd

        @functools.cache
        def bills(per_hour: float) -> tuple[Cost, Cost]:
            at = _at(workload, per_hour)
            return cost(at, first, prices), cost(at, second, prices)

        self._bills = bills

    def difference(
        self, per_hour: float, first_end: str, second_end: str, gpu_end: str | None
    ) -> float:
        """Give first minus second in USD; ``gpu_end`` None leaves standstill out."""
        total = 0.0
        ends = (first_end, second_end)
        for bill, end, sign in zip(self._bills(per_hour), ends, (1, -1), strict=True):
            usd = float(getattr(bill.storage_usd, end))
            if gpu_end is not None:
                price = getattr(self._gpu_hour_usd, gpu_end)
                usd += float(getattr(bill.idle.gpu_hours, end) * price)
            total += sign * usd
        return total

    def roots(
        self, first_end: str, second_end: str, gpu_end: str, *, counts_idle: bool
    ) -> list[float]:
        """Give the frequencies where the difference changes its sign, ascending."""
        gpu = gpu_end if counts_idle else None

        def is_first_cheaper(per_hour: float) -> bool:
            return self.difference(per_hour, first_end, second_end, gpu) <= 0

        grid = _frequencies(61)
        found = []
        for low, high in itertools.pairwise(grid):
            at_low = is_first_cheaper(low)
            if at_low == is_first_cheaper(high):
                continue
            left, right = low, high
            for _ in range(24):  # the ratio of neighbours, 1.14, to 1e-8
                middle = math.sqrt(left * right)
                if is_first_cheaper(middle) == at_low:
                    left = middle
                else:
                    right = middle
            found.append(math.sqrt(left * right))
        return found


def _statement(found: list[float], below: str, above: str, *, holds: bool) -> str:
    rule = f"the rule of thumb of {RULE_PER_HOUR:g} an hour {'holds' if holds else 'does not hold'}"
    if not found:
        return (
            f"{below} is cheaper from {LOWEST_PER_HOUR:g} to {HIGHEST_PER_HOUR:g} saves an hour: "
            f"there is no crossover, and {rule} here."
        )
    at = ", ".join(f"{each:.3g}" for each in found)
    return f"{below} is cheaper below {at} saves an hour, {above} above: {rule} here."


def _frequencies(number: int) -> list[float]:
    ratio = HIGHEST_PER_HOUR / LOWEST_PER_HOUR
    return [LOWEST_PER_HOUR * ratio ** (n / (number - 1)) for n in range(number)]


def _at(workload: Workload, per_hour: float) -> Workload:
    return dataclasses.replace(workload, interval_s=3600 / per_hour)
