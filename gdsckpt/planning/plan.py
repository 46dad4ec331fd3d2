"""A whole plan: size, stall and bandwidth, cadence, cost, and advice, from one scenario."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gdsckpt.planning import advice, bandwidth, building, costing, goodputs, hour, published
from gdsckpt.planning.advice import Advice
from gdsckpt.planning.band import Band
from gdsckpt.planning.building import Facts
from gdsckpt.planning.costing import Costing
from gdsckpt.planning.goodputs import Cadence
from gdsckpt.planning.hour import Hour
from gdsckpt.planning.measured import Measured
from gdsckpt.planning.scenario import Scenario
from gdsckpt.planning.simulate import SimulationSettings
from gdsckpt.planning.sizing import CheckpointSize

PLAN_VERSION = 1
"""Of the JSON document: keys are added under the same number, never changed or taken away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The result.

    Attributes:
        scenario: The inputs, with what was measured in place of what was assumed.
        facts: What follows from them: size, placement, timeline, failures.
        cadence: Goodput, the best interval, the simulation.
        hour: One hour of saves.
        costing: What it costs.
        advice: What is to be said, warnings first.
        measured: What was measured; None for nothing.
    """

    scenario: Scenario
    facts: Facts
    cadence: Cadence
    hour: Hour
    costing: Costing
    advice: tuple[Advice, ...]
    measured: Measured | None = None

    def as_dict(self) -> dict[str, Any]:
        """Give all of it as values that JSON has, with units in the names."""
        facts = self.facts
        return {
            "plan_version": PLAN_VERSION,
            "scenario": plain(self.scenario),
            "size": plain(facts.size.as_dict()),
            "placement": plain(facts.placement.as_dict()),
            "node": plain(facts.node),
            "timeline": plain(facts.timeline.as_dict()),
            "failures": plain(facts.rates),
            "save_costs": plain(facts.costs),
            "schedule": plain(facts.schedule),
            "cadence": plain(self.cadence),
            "hour": plain(self.hour),
            "cost": plain(self.costing),
            "advice": [each.as_dict() for each in self.advice],
            "assumptions": list(facts.assumptions),
            "measured": plain(self.measured),
        }


def references_document() -> dict[str, Any]:
    """Give the published figures and what the formulas give for them, as values that JSON has."""
    sizes = [
        {
            **plain(each),
            "computed_bytes": each.computed_bytes,
            "difference": each.difference,
        }
        for each in published.published()
    ]
    rates = [{**plain(each), "difference": each.difference} for each in bandwidth.references()]
    return {"plan_version": PLAN_VERSION, "sizes": sizes, "rates": rates}


def plain(value: Any) -> Any:
    """Give a value as JSON has it: dataclasses, bands and tuples as objects and lists."""
    if isinstance(value, Band):
        return value.as_dict()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value


def make_plan(
    scenario: Scenario,
    *,
    measured: Measured | None = None,
    size: CheckpointSize | None = None,
    simulation: SimulationSettings | None = None,
) -> Plan:
    """Make the plan.

    Args:
        scenario: The inputs, with the measured ones in it already (``building.adopt``).
        measured: Rates and times that replace those of the hardware.
        size: The checkpoint of a live model or a configuration; None takes that of the scenario.
        simulation: How much to simulate; None for nothing.

    Raises:
        ConfigError: Inputs are missing, contradict each other, or cannot be used.
        StorageError: The price file cannot be read.
    """
    facts = building.facts_of(scenario, measured, size)
    return Plan(
        scenario=scenario,
        facts=facts,
        cadence=goodputs.cadence_of(facts, simulation),
        hour=hour.hour_of(facts.costs.likely, facts.schedule),
        costing=costing.costing_of(scenario, facts),
        advice=advice.advice_on(scenario, facts),
        measured=measured,
    )
