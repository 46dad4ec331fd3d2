"""From the inputs of a scenario, and what was measured, to what the formulas take."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gdsckpt.errors import ConfigError
from gdsckpt.planning import bandwidth, cadence, failures, hardware, layouts, sizing
from gdsckpt.planning.bandwidth import Pace, Timeline
from gdsckpt.planning.cadence import SaveCosts, Schedule
from gdsckpt.planning.failures import Cases, FailureRates, FailureSource
from gdsckpt.planning.hardware import Figure, Node
from gdsckpt.planning.layouts import Layout, Placement
from gdsckpt.planning.measured import Measured
from gdsckpt.planning.scenario import Scenario
from gdsckpt.planning.sizing import CheckpointSize, PartSize, Recipe
from gdsckpt.units import format_duration

GIVEN = "given"
REPORTS = "reports"


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a plan is computed from.

    Attributes:
        size: The checkpoint.
        placement: Who writes how much of it.
        node: A node, with what was given or measured in place of its own figures.
        pace: How saves follow each other.
        timeline: One save from the call to the store.
        rates: Failures of the job.
        costs: What a save and a restart take.
        schedule: When saves and uploads are made.
        assumptions: What was taken for granted since nothing said otherwise; one sentence each.
    """

    size: CheckpointSize
    placement: Placement
    node: Node
    pace: Pace
    timeline: Timeline
    rates: Cases[FailureRates]
    costs: Cases[SaveCosts]
    schedule: Schedule
    assumptions: tuple[str, ...] = field(default=())


def facts_of(
    scenario: Scenario, measured: Measured | None = None, size: CheckpointSize | None = None
) -> Facts:
    """Derive what the formulas take.

    Args:
        scenario: The inputs, with the measured ones in it already (:func:`adopt`).
        measured: Rates and times that replace those of the hardware.
        size: The checkpoint of a live model or a configuration; None takes that of the scenario.

    Raises:
        ConfigError: Inputs are missing or contradict each other.
    """
    size = size or checkpoint_size(scenario)
    node = _node(scenario, measured)
    layout, assumed = _layout(scenario, node)
    placement = layouts.place(size, layout, expert_share=scenario.model.experts_share)
    pace = _pace(scenario)
    timeline = _timeline(placement, node, pace, measured)
    source = _failure_source(scenario)
    if source.mtbf_gpu_s is failures.TYPICAL_MTBF_GPU_S:
        assumed.append(
            "failures: as often as on large clusters that were written about (--mtbf-gpu)"
        )
    assumed.append("a restore reads as fast as a save writes")
    return Facts(
        size=size,
        placement=placement,
        node=node,
        pace=pace,
        timeline=timeline,
        rates=source.rates(num_gpus=layout.num_ranks, gpus_per_node=layout.gpus_per_node),
        costs=_costs(scenario, timeline),
        schedule=Schedule(
            interval_s=scenario.saves.interval_s,
            upload_every=scenario.saves.upload_every,
            back_pressure=scenario.saves.back_pressure,
            max_in_flight=scenario.saves.in_flight,
        ),
        assumptions=tuple(assumed),
    )


def adopt(scenario: Scenario, measured: Measured) -> Scenario:
    """Give the scenario with its assumptions replaced by what was measured.

    Flags of the user come after it, so that they win.
    """
    changes: dict[str, Mapping[str, Any]] = {
        "model": _known(parameters=None, checkpoint_bytes=measured.checkpoint_bytes),
        "saves": _known(
            interval_s=None if measured.interval_s is None else max(1e-3, measured.interval_s.mid),
            mode={"device": "host"}.get(measured.mode or "", measured.mode),
        ),
        "cost": _known(
            part_bytes=None
            if measured.part_bytes is None
            else min(max(round(measured.part_bytes.high), 5 << 20), 5 << 30)
        ),
    }
    if measured.checkpoint_bytes is not None:
        changes["model"] = {**changes["model"], "parameters": None}
    layout = scenario.layout
    apart = layout.tensor * layout.pipeline * layout.context
    if measured.num_ranks is not None and measured.num_ranks % apart == 0:
        changes["layout"] = {"gpus": measured.num_ranks, "data": None}
    sections = {
        name: dataclasses.replace(getattr(scenario, name), **values)
        for name, values in changes.items()
    }
    return dataclasses.replace(scenario, **sections)


def recipe_of(scenario: Scenario) -> Recipe:
    """Give what the checkpoint keeps of each parameter.

    Raises:
        ConfigError: There cannot be a master copy.
    """
    model = scenario.model
    is_wide = sizing.DTYPE_BYTES[sizing.require_dtype(model.weights, "weights")] >= 4
    if model.master and (is_wide or model.optimizer == "none"):
        raise ConfigError(
            f"--master is yes, but --weights is {model.weights} and --optimizer is "
            f"{model.optimizer}: a float32 copy belongs to narrower weights that are trained.",
            field="master",
        )
    return Recipe(
        weights_dtype=model.weights,
        optimizer=model.optimizer,
        moments_dtype=model.moments,
        has_master_copy=model.master,
    )


def checkpoint_size(scenario: Scenario) -> CheckpointSize:
    """Give the size from the number of parameters, or from the bytes where these are known.

    Known bytes are split as the parts of the recipe are.

    Raises:
        ConfigError: Neither is given.
    """
    model = scenario.model
    recipe = recipe_of(scenario)
    if model.parameters is not None:
        return sizing.size(model.parameters, recipe)
    if model.checkpoint_bytes is None:
        raise ConfigError(
            "nothing says how large a checkpoint is. Give --parameters 70B, --checkpoint 912GB, "
            "--model MODULE:FACTORY, --model-config FILE, --from-report DIR or --scenario NAME.",
            field="parameters",
        )
    nbytes = model.checkpoint_bytes
    whole = recipe.bytes_per_parameter.mid
    parts = tuple(
        PartSize(part.name, part.role, nbytes * (part.bytes_per_parameter.mid / whole), part.why)
        for part in recipe.parts
    )
    return CheckpointSize(max(1, round(nbytes.mid / whole)), parts, GIVEN)


def _known(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _layout(scenario: Scenario, node: Node) -> tuple[Layout, list[str]]:
    wanted = scenario.layout
    apart = wanted.tensor * wanted.pipeline * wanted.context
    assumed = []
    gpus, data = wanted.gpus, wanted.data
    if gpus is None and data is None:
        gpus = node.gpus if node.gpus % apart == 0 else apart
        assumed.append(f"the job has {gpus} GPUs (--gpus)")
    if gpus is not None:
        if gpus % apart:
            raise ConfigError(
                f"--gpus is {gpus}, no multiple of --tensor x --pipeline x --context = {apart}.",
                field="gpus",
            )
        data = gpus // apart
    layout = Layout(
        data=data or 1,
        tensor=wanted.tensor,
        pipeline=wanted.pipeline,
        context=wanted.context,
        expert=wanted.expert,
        sharding=wanted.sharding,
        shard_ranks=wanted.shard_ranks,
        gpus_per_node=node.gpus,
        writers=wanted.writers,
    )
    return layout, assumed


def _node(scenario: Scenario, measured: Measured | None) -> Node:
    wanted = scenario.hardware
    node = hardware.node(wanted.node)
    figures = {
        "gpu_to_host_bytes_per_s": wanted.host_rate_bytes_per_s,
        "drive_write_bytes_per_s": wanted.drive_rate_bytes_per_s,
        "drive_bytes": wanted.drive_capacity_bytes,
        "store_bytes_per_s": wanted.node_store_rate_bytes_per_s,
    }
    changes: dict[str, Any] = {
        name: Figure(band, "given by the user", "")
        for name, band in figures.items()
        if band is not None
    }
    changes |= _known(gpus=wanted.gpus_per_node, drives=wanted.drives)
    if {"drives", "drive_write_bytes_per_s"} & changes.keys():
        changes["drives_max_bytes_per_s"] = None  # that of another set of drives
    node = dataclasses.replace(node, **changes)
    return node if measured is None else _measured_node(node, measured, changes.keys())


def _measured_node(node: Node, measured: Measured, is_given: Any) -> Node:
    """Put measured rates in the place of those of the hardware, but not of those of the user."""
    changes: dict[str, Any] = {}
    save, upload = measured.save_bytes_per_s, measured.upload_bytes_per_s
    if save is not None and "drive_write_bytes_per_s" not in is_given:
        together = save * min(measured.num_ranks or 1, node.gpus)
        source = f"measured by {measured.num_saves} saves in {measured.root}"
        changes["drive_write_bytes_per_s"] = Figure(together / max(1, node.drives), source, "")
        changes["drives_max_bytes_per_s"] = None
    if upload is not None and "store_bytes_per_s" not in is_given:
        source = f"measured by {measured.num_uploads} uploads from {measured.root}"
        changes["store_bytes_per_s"] = Figure(upload, source, "")
    return dataclasses.replace(node, **changes)


def _pace(scenario: Scenario) -> Pace:
    saves = scenario.saves
    if saves.step_time_s is not None and saves.step_time_s > saves.interval_s:
        raise ConfigError(
            f"--step-time is {format_duration(saves.step_time_s)}, more than --interval, "
            f"{format_duration(saves.interval_s)}: there is at most one save a step.",
            field="step_time",
        )
    return Pace(
        interval_s=saves.interval_s,
        mode=saves.mode,
        step_s=saves.step_time_s,
        store_bytes_per_s=scenario.hardware.store_rate_bytes_per_s,
        steps_kept=saves.keep_local,
        uploads_every=saves.upload_every,
    )


def _timeline(placement: Placement, node: Node, pace: Pace, measured: Measured | None) -> Timeline:
    """Follow a save; where its stall and its end were measured in the same mode, these count."""
    timeline = bandwidth.timeline(placement, node, pace)
    if measured is None or not measured.rank_bytes or measured.rank_bytes.mid <= 0:
        return timeline
    larger = placement.rank_bytes.mid / measured.rank_bytes.mid
    if measured.save_s is not None:
        durable_s = measured.save_s * larger
        timeline = dataclasses.replace(
            timeline, durable_s=durable_s, uploaded_s=durable_s + timeline.to_store.seconds
        )
    is_same = {"device": "host"}.get(measured.mode or "", measured.mode) == pace.mode
    if measured.stall_s is not None and is_same:
        stall_s = measured.stall_s * larger
        timeline = dataclasses.replace(
            timeline,
            stall_s=stall_s,
            alone_stall_s=stall_s,
            overlap_share=bandwidth.overlap_share(stall_s, pace.interval_s),
        )
    return timeline


def _failure_source(scenario: Scenario) -> FailureSource:
    wanted = scenario.failures
    is_given = any((wanted.mtbf_gpu_s, wanted.mtbf_node_s, wanted.mtbf_job_s))
    return FailureSource(
        mtbf_gpu_s=wanted.mtbf_gpu_s if is_given else failures.TYPICAL_MTBF_GPU_S,
        mtbf_node_s=wanted.mtbf_node_s,
        mtbf_job_s=wanted.mtbf_job_s,
        node_loss_share=wanted.node_loss_share,
        preemption_mtbf_node_s=wanted.spot_mtbf_node_s,
    )


def _costs(scenario: Scenario, timeline: Timeline) -> Cases[SaveCosts]:
    wanted = scenario.failures
    to_host_s, to_store_s = timeline.to_host.seconds, timeline.to_store.seconds
    return cadence.SaveCosts.cases(
        # What saves wait for each other the schedule adds.
        stall_s=timeline.alone_stall_s,
        commit_s=timeline.durable_s.at_least(timeline.alone_stall_s),
        upload_s=to_store_s,
        restart_s=wanted.restart_s,
        restore_local_s=timeline.to_nvme.seconds + to_host_s,
        restore_remote_s=to_store_s + to_host_s,
        preemption_notice_s=wanted.spot_notice_s,
        preemption_wait_s=wanted.spot_wait_s,
    )
