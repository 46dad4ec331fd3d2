"""A plan as tables and sentences, for the terminal and for the page."""

from __future__ import annotations

from dataclasses import dataclass

from gdsckpt.planning import bandwidth, published
from gdsckpt.planning.advice import num_uploads
from gdsckpt.planning.band import Band
from gdsckpt.planning.measured import Measured
from gdsckpt.planning.plan import Plan
from gdsckpt.units import (
    format_binary_bytes,
    format_bytes,
    format_duration,
    format_rate,
    format_share,
    format_usd,
)


@dataclass(frozen=True, slots=True)
class Section:
    """One part of the report.

    Attributes:
        title: Its heading.
        head: Headings of its table; empty for none.
        rows: Rows of the table.
        right: Columns that are set flush right.
        lines: Sentences after the table.
    """

    title: str
    head: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    right: tuple[int, ...] = ()
    lines: tuple[str, ...] = ()


def sections_of(plan: Plan) -> tuple[Section, ...]:
    """Give all parts of the report, in their order."""
    parts = [_advice(plan), _size(plan), _ranks(plan), _save(plan), _capacity(plan)]
    parts += [_cadence(plan), _cost(plan)]
    if plan.measured is not None:
        parts.append(_measured(plan.measured))
    parts.append(_assumptions(plan))
    return tuple(parts)


def headline(plan: Plan) -> tuple[tuple[str, str, str], ...]:
    """Give the figures that matter most: name, value, and what stands around it."""
    timeline, cadence = plan.facts.timeline, plan.cadence
    cheapest = plan.costing.costs[0]
    stall, drain = timeline.stall_s, timeline.to_store.seconds
    best = cadence.best_interval_s
    return (
        (
            "checkpoint",
            format_bytes(plan.facts.size.nbytes.mid),
            f"{plan.facts.placement.num_writing_ranks:,} shards",
        ),
        (
            "stall of a save",
            format_duration(stall.mid),
            f"{format_share(timeline.overlap_share.mid)} of the time",
        ),
        (
            "upload",
            format_duration(drain.mid),
            f"{format_share(timeline.drain_share.mid)} of the time to the next",
        ),
        (
            "goodput",
            format_share(cadence.goodput.mid),
            f"{format_share(cadence.goodput.low)} to {format_share(cadence.goodput.high)}",
        ),
        (
            "best interval",
            format_duration(best.mid),
            f"{format_duration(best.low)} to {format_duration(best.high)}",
        ),
        (
            f"cheapest for {format_duration(plan.costing.workload.run_s)}",
            format_usd(cheapest.total_usd.mid),
            cheapest.architecture,
        ),
    )


def references() -> tuple[Section, ...]:
    """Give published figures beside what the formulas here give, and why they differ."""
    sizes = tuple(
        (
            each.name,
            each.said,
            format_bytes(each.computed_bytes),
            _signed(each.difference),
            " + ".join(f"{nbytes:g} {part}" for part, nbytes in each.counts),
        )
        for each in published.published()
    )
    rates = tuple(
        (
            each.name,
            f"{each.published:g} {each.unit}",
            f"{each.computed:.3g} {each.unit}",
            _signed(each.difference),
        )
        for each in bandwidth.references()
    )
    return (
        Section(
            "Published sizes, and the bytes per parameter that they count",
            ("what", "published", "computed", "differs by", "bytes per parameter"),
            sizes,
            (1, 2, 3),
            tuple(f"{each.name}: {each.note}" for each in published.published()),
        ),
        Section(
            "Published times and rates",
            ("what", "published", "computed", "differs by"),
            rates,
            (1, 2, 3),
            tuple(f"{each.name}: {each.note}" for each in bandwidth.references() if each.note),
        ),
    )


def _signed(share: float) -> str:
    return f"{100 * share:+.1f} %"


def bills(plan: Plan) -> tuple[Section, ...]:
    """Give the bill of each architecture, line by line, the cheapest first."""
    return tuple(
        Section(
            f"{each.architecture}: {each.total_usd.format(format_usd)}",
            ("for", "USD", "grows with"),
            tuple((line.name, line.usd.format(format_usd), line.driver) for line in each.lines),
            (1,),
        )
        for each in plan.costing.costs
    )


def _advice(plan: Plan) -> Section:
    said = tuple(f"{each.level}: {each.text}" for each in plan.advice)
    return Section("Advice", lines=said or ("nothing to object to",))


def _size(plan: Plan) -> Section:
    size = plan.facts.size
    count = size.num_parameters
    rows = [
        (
            part.name,
            (part.nbytes / count).format(lambda value: f"{value:.3g}"),
            part.nbytes.format(format_bytes),
            part.why,
        )
        for part in size.parts
    ]
    whole = (size.nbytes / count).format(lambda value: f"{value:.3g}")
    rows.append(("together", whole, size.nbytes.format(format_bytes), f"from {size.source}"))
    return Section(
        f"One checkpoint of {count:,} parameters",
        ("part", "bytes/parameter", "bytes", "what"),
        tuple(rows),
        (1, 2),
    )


def _ranks(plan: Plan) -> Section:
    placement = plan.facts.placement
    layout = placement.layout
    rows = tuple(
        (
            group.name,
            f"{group.num_ranks:,}",
            group.weights_bytes.format(format_bytes),
            group.optimizer_bytes.format(format_bytes),
            group.nbytes.format(format_bytes),
        )
        for group in placement.groups
    )
    sides = (("data", layout.data), ("tensor", layout.tensor), ("pipeline", layout.pipeline))
    shape = " x ".join(f"{name} {number}" for name, number in sides)
    return Section(
        f"Who writes: {layout.num_ranks:,} ranks on {layout.num_nodes:,} nodes "
        f"({plan.facts.node.name}; {shape}; {layout.sharding})",
        ("ranks", "number", "weights each", "optimizer each", "bytes each"),
        rows,
        (1, 2, 3, 4),
        (
            f"the fullest rank writes {placement.rank_bytes.format(format_bytes)}, the fullest "
            f"node {placement.node_bytes.format(format_bytes)}",
        ),
    )


def _save(plan: Plan) -> Section:
    timeline, pace = plan.facts.timeline, plan.facts.pace
    rows = tuple(
        (
            stage.name,
            f"{stage.nbytes.format(format_bytes)} per {stage.unit}",
            stage.bytes_per_s.format(format_rate),
            stage.seconds.format(format_duration),
            stage.why,
        )
        for stage in timeline.stages
    )
    allowed = plan.scenario.saves.allowed_overlap_share
    needed = bandwidth.needed_bytes_per_s(plan.facts.placement.nbytes, pace.interval_s, allowed)
    return Section(
        f"One save every {format_duration(pace.interval_s)} (mode {pace.mode})",
        ("stage", "moves", "at", "takes", "limited by"),
        rows,
        (1, 2, 3),
        (
            f"training waits {timeline.stall_s.format(format_duration)}: "
            f"{timeline.overlap_share.format(format_share)} of the time; stay under "
            f"{format_share(allowed)}",
            f"on NVMe after {timeline.durable_s.format(format_duration)}, in the store after "
            f"{timeline.uploaded_s.format(format_duration)}",
            f"rate that keeps a synchronous save under {format_share(allowed)}: "
            f"{needed.format(format_rate)} in all",
            f"uploads take {timeline.drain_share.format(format_share)} of the time between them; "
            f"they keep up from {timeline.store_needed_bytes_per_s.format(format_rate)} in all",
        ),
    )


def _capacity(plan: Plan) -> Section:
    timeline, cost = plan.facts.timeline, plan.scenario.cost
    rows = [
        (
            "NVMe of the fullest node",
            timeline.nvme_needed_bytes.format(format_bytes),
            timeline.nvme_has_bytes.format(format_bytes),
        ),
        (
            "host memory of a node, for snapshots",
            timeline.host_needed_bytes.format(format_bytes),
            plan.facts.node.host_memory_bytes.value.format(format_bytes),
        ),
    ]
    return Section(
        "Capacity",
        ("of what", "needed", "there"),
        tuple(rows),
        (1, 2),
        (
            f"saved in a day: {timeline.bytes_per_day.format(format_bytes)}; uploads in "
            f"{format_duration(cost.run_s)}: {num_uploads(plan.scenario):,}, in parts of "
            f"{format_binary_bytes(cost.part_bytes)}",
        ),
    )


def _cadence(plan: Plan) -> Section:
    cadence, likely = plan.cadence, plan.cadence.likely
    run = cadence.simulation
    shares = (
        ("trained and kept", "useful_share"),
        ("stalls of saves", "stall_share"),
        ("waiting for saves and uploads", "wait_share"),
        ("done again", "lost_share"),
        ("restarting", "restart_share"),
    )
    rows = []
    for name, attribute in shares:
        row = [name, format_share(getattr(likely, attribute))]
        if run is not None:
            mean = run.goodput_mean if attribute == "useful_share" else getattr(run, attribute)
            row.append(format_share(mean))
        rows.append(tuple(row))
    lines = [
        f"interrupted every {cadence.mtbf_s.format(format_duration)}; a failure that leaves the "
        f"drives loses {format_duration(likely.lost_per_process_failure_s)} of training, the loss "
        f"of a node {format_duration(likely.lost_per_node_loss_s)}",
        f"goodput {cadence.goodput.format(format_share)}; best with an interval of "
        f"{cadence.best_interval_s.format(format_duration)}: "
        f"{cadence.best_goodput.format(format_share)}",
        f"from the stall alone: Young {format_duration(cadence.young_s)}, Daly "
        f"{format_duration(cadence.daly_s)} of training between saves",
    ]
    if run is None:
        lines.append(f"simulation: {cadence.not_simulated}")
    else:
        lines.append(
            f"simulated {run.settings.num_runs:,} runs of "
            f"{format_duration(run.settings.run_s)} (seed {run.settings.seed}): goodput "
            f"{run.goodput.format(format_share)} in 90 % of them, "
            f"{run.num_failures.format(lambda value: f'{value:.0f}')} interruptions, "
            f"{run.num_uploads:.0f} uploads, {run.num_skipped:.0f} left out"
        )
    head = ("the time", "closed form", *(("simulated",) if run is not None else ()))
    right = tuple(range(1, len(head)))
    return Section("Cadence", head, tuple(rows), right, tuple(lines))


def _cost(plan: Plan) -> Section:
    costing = plan.costing
    rows = tuple(
        (
            each.architecture,
            each.total_usd.format(format_usd),
            each.storage_usd.format(format_usd),
            _idle(each.idle.gpu_hours, each.idle.usd, has_price=costing.has_gpu_price),
        )
        for each in costing.costs
    )
    lines = [f"{each.architecture}: driven by {each.main_driver}" for each in costing.costs]
    lines += [each.statement for each in costing.crossovers]
    lines.append(
        f"prices: {', '.join(costing.price_files)}; list prices of their date, to be checked. "
        "A number of GPU-hours has the number of GPUs in it already"
    )
    if not costing.has_gpu_price:
        lines.append("the price of a GPU-hour is not known: standstill costs nothing here")
    return Section(
        f"Cost of {format_duration(costing.workload.run_s)}",
        ("architecture", "total", "storage", "GPUs standing still"),
        rows,
        (1, 2, 3),
        tuple(lines),
    )


def _idle(gpu_hours: Band, usd: Band, *, has_price: bool) -> str:
    hours = f"{gpu_hours.mid:,.1f} GPU-hours"
    return f"{hours}, {format_usd(usd.mid)}" if has_price else hours


def _measured(found: Measured) -> Section:
    named = (
        ("size of a checkpoint", found.checkpoint_bytes, format_bytes),
        ("time of a save", found.save_s, format_duration),
        ("stall of a save", found.stall_s, format_duration),
        ("rate of a rank", found.save_bytes_per_s, format_rate),
        ("from save to save", found.interval_s, format_duration),
        ("time of an upload", found.upload_s, format_duration),
        ("rate of an upload", found.upload_bytes_per_s, format_rate),
        ("share that was sent", found.sent_share, format_share),
    )
    rows = tuple((name, band.format(write)) for name, band, write in named if band is not None)
    return Section(
        f"Measured in {found.root}",
        ("what", "median (10 % to 90 %)"),
        rows,
        (1,),
        (
            f"{found.num_saves} saves, {found.num_uploads} uploads, {found.num_manifests} "
            f"manifests; {found.num_skipped} lines and manifests could not be used",
        ),
    )


def _assumptions(plan: Plan) -> Section:
    node = plan.facts.node
    figures = (
        node.gpu_to_host_bytes_per_s,
        node.drive_write_bytes_per_s,
        node.store_bytes_per_s,
    )
    sources = tuple(f"{each.source}{f' ({each.as_of})' if each.as_of else ''}" for each in figures)
    return Section("Rests on", lines=(*plan.facts.assumptions, *sources))
