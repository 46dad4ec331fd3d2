"""How good a cadence is, and which would be best: closed forms, a curve, and a simulation."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from gdsckpt.errors import ConfigError
from gdsckpt.planning import cadence, simulate
from gdsckpt.planning.band import Band
from gdsckpt.planning.building import Facts
from gdsckpt.planning.cadence import Goodput
from gdsckpt.planning.simulate import Simulation, SimulationSettings

CURVE_POINTS = 49
_CURVE_SPAN = 40.0
"""The curve goes from a fortieth to forty times what it is about."""


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """Goodput of one interval between saves, in seconds."""

    interval_s: float
    goodput: Band


@dataclass(frozen=True, slots=True, kw_only=True)
class Cadence:
    """What becomes of the time, and how often to save.

    Attributes:
        mtbf_s: Seconds from one interruption of the job to the next.
        likely: What becomes of the time with the likely inputs, in closed form.
        goodput: Share of the time whose training is kept.
        best_interval_s: Interval with the highest goodput.
        best_goodput: Goodput with the likeliest of these.
        young_s: Young's optimum of the time to train between two saves, first order.
        daly_s: Daly's, of higher order.
        curve: Goodput against the interval.
        simulation: What simulated runs came to; None where none were.
        not_simulated: Why none were; empty where some were.
    """

    mtbf_s: Band
    likely: Goodput
    goodput: Band
    best_interval_s: Band
    best_goodput: Band
    young_s: float
    daly_s: float
    curve: tuple[CurvePoint, ...]
    simulation: Simulation | None = None
    not_simulated: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Give all of it as values that JSON has."""
        return dataclasses.asdict(self)


def cadence_of(facts: Facts, settings: SimulationSettings | None) -> Cadence:
    """Judge the cadence of a plan.

    Args:
        facts: The plan.
        settings: How much to simulate; None for nothing.
    """
    schedule, rates, costs = facts.schedule, facts.rates, facts.costs
    best_s = cadence.best_interval_band(rates, costs, upload_every=schedule.upload_every)
    best = dataclasses.replace(schedule, interval_s=best_s.mid)
    mtbf_s = rates.likely.mtbf_s
    simulation, reason = _simulated(facts, settings)
    return Cadence(
        mtbf_s=Band(rates.worst.mtbf_s, mtbf_s, rates.best.mtbf_s),
        likely=cadence.goodput(rates.likely, costs.likely, schedule),
        goodput=cadence.goodput_band(rates, costs, schedule),
        best_interval_s=best_s,
        best_goodput=cadence.goodput_band(rates, costs, best),
        young_s=cadence.young_interval_s(costs.likely.stall_s, mtbf_s),
        daly_s=cadence.daly_interval_s(costs.likely.stall_s, mtbf_s),
        curve=_curve(facts, best_s),
        simulation=simulation,
        not_simulated=reason,
    )


def _curve(facts: Facts, best_s: Band) -> tuple[CurvePoint, ...]:
    """Give points that are equally far from each other on a logarithmic scale."""
    interval_s = facts.schedule.interval_s
    low = max(1e-2, min(interval_s, best_s.mid) / _CURVE_SPAN)
    high = min(cadence.INTERVAL_MAX_S, max(interval_s, best_s.mid) * _CURVE_SPAN)
    points = []
    for number in range(CURVE_POINTS):
        at = low * math.exp(math.log(high / low) * number / (CURVE_POINTS - 1))
        schedule = dataclasses.replace(facts.schedule, interval_s=min(at, cadence.INTERVAL_MAX_S))
        points.append(
            CurvePoint(
                schedule.interval_s, cadence.goodput_band(facts.rates, facts.costs, schedule)
            )
        )
    return tuple(points)


def _simulated(facts: Facts, settings: SimulationSettings | None) -> tuple[Simulation | None, str]:
    if settings is None:
        return None, "not asked for (--simulate RUNS)"
    try:
        return simulate.simulate(
            facts.rates.likely, facts.costs.likely, facts.schedule, settings=settings
        ), ""
    except ConfigError as error:
        return None, str(error)
