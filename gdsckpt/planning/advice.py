"""What is wrong with a plan, in plain words, and what to do about it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass

from gdsckpt.planning import bandwidth, cadence
from gdsckpt.planning.band import Band
from gdsckpt.planning.building import Facts
from gdsckpt.planning.scenario import Scenario
from gdsckpt.units import format_binary_bytes, format_bytes, format_duration, format_rate
from gdsckpt.units import format_share as percent

WARNING = "warning"
NOTE = "note"

PARTS_MAX = 10_000
"""Parts of a multipart upload (Amazon S3 User Guide, "Multipart upload limits")."""

PUTS_PER_PREFIX_PER_S = 3500
"""PUT, COPY, POST and DELETE requests per second that one partitioned prefix takes at least
(Amazon S3 User Guide, "Best practices design patterns: optimizing Amazon S3 performance")."""

PART_STEP_BYTES = 1 << 20
_READ_PER_RESTORE = 2
"""Checkpoints that a restore may want: the newest, and the one before where that is damaged."""

_WORTHWHILE_SHARE = 0.002
"""Goodput below which another interval is not worth a word: 0.2 %, 3 minutes a day."""


@dataclass(frozen=True, slots=True)
class Advice:
    """One thing to know.

    Attributes:
        level: ``warning``: the plan does not work, or not as it should; ``note``: good to know.
        topic: What it is about, one word that stays the same from version to version.
        text: What, why, and what to do.
    """

    level: str
    topic: str
    text: str

    def as_dict(self) -> dict[str, str]:
        """Give all of it as values that JSON has."""
        return dataclasses.asdict(self)


def advice_on(scenario: Scenario, facts: Facts) -> tuple[Advice, ...]:
    """Give what is to be said of a plan, warnings first."""
    found = [
        *_on_overlap(scenario, facts),
        *_on_drain(facts),
        *_on_nvme(scenario, facts),
        *_on_host_memory(facts),
        *_on_parts(scenario, facts),
        *_on_prefixes(scenario, facts),
        *_on_retention(scenario, facts),
        *_on_interval(facts),
        *_on_failures(facts),
        *_on_rendezvous(facts),
    ]
    return tuple(sorted(found, key=lambda each: each.level != WARNING))


def parts_of(nbytes: float, part_bytes: int) -> int:
    """Give the parts of an object of so many bytes, at least 1."""
    return max(1, math.ceil(nbytes / part_bytes))


def part_bytes_for(nbytes: float) -> int:
    """Give the smallest part, in whole MiB, with which an object stays under 95 % of the limit."""
    step = PART_STEP_BYTES
    return max(5 * step, math.ceil(nbytes / (PARTS_MAX * 0.95) / step) * step)


def prefixes_for(bytes_per_s: float, part_bytes: int) -> int:
    """Give the prefixes over which so fast an upload has to be spread, at least 1."""
    return max(1, math.ceil(bytes_per_s / part_bytes / PUTS_PER_PREFIX_PER_S))


def kept_uploads(scenario: Scenario) -> int:
    """Give the checkpoints that are in the bucket at the end of the run."""
    uploads = num_uploads(scenario)
    newest, every = scenario.cost.keep_uploads, scenario.cost.keep_every
    if newest is None:
        return uploads
    older = max(0, uploads - newest)
    return min(uploads, newest) + (older // every if every else 0)


def num_uploads(scenario: Scenario) -> int:
    """Give the uploads of the run without failures."""
    saves = scenario.saves
    return math.floor(scenario.cost.run_s / (saves.interval_s * saves.upload_every))


def graded(value: Band, limit: float) -> str | None:
    """Tell how a band stands to a limit: over it (warning), perhaps (note), or below (None)."""
    if value.mid > limit:
        return WARNING
    return NOTE if value.high > limit else None


def _may(level: str) -> str:
    return "" if level == WARNING else "in the worst case "


def _on_overlap(scenario: Scenario, facts: Facts) -> Iterator[Advice]:
    timeline, interval_s = facts.timeline, facts.pace.interval_s
    limit = scenario.saves.allowed_overlap_share
    level = graded(timeline.overlap_share, limit)
    if level is None:
        return
    needed = bandwidth.needed_bytes_per_s(facts.placement.nbytes, interval_s, limit)
    longer_s = max(timeline.alone_stall_s.mid / limit, timeline.durable_s.mid)
    stands = (
        "nothing is ever trained"
        if timeline.overlap_share.mid >= 1
        else f"that is {percent(timeline.overlap_share.mid)} of the time"
    )
    other = "" if facts.pace.mode != "sync" else ", or save behind the training (--mode host)"
    yield Advice(
        level,
        "overlap",
        f"{_may(level)}training waits {timeline.stall_s.format(format_duration)} for every save, "
        f"each {format_duration(interval_s)}: {stands}, and the line is {percent(limit)}. Save at "
        f"most every {format_duration(longer_s)}, move {format_rate(needed.mid)} in all{other}.",
    )


def _on_drain(facts: Facts) -> Iterator[Advice]:
    timeline, pace = facts.timeline, facts.pace
    level = graded(timeline.drain_share, 1.0)
    if level is not None:
        drain_s = timeline.to_store.seconds
        every = max(pace.uploads_every + 1, math.ceil(drain_s.mid / pace.interval_s))
        yield Advice(
            level,
            "drain",
            f"{_may(level)}an upload takes {drain_s.format(format_duration)}, longer than the "
            f"{format_duration(pace.interval_s * pace.uploads_every)} to the next: uploads fall "
            f"behind, and saves wait or are not uploaded. Upload every {every}th save "
            f"(--upload-every {every}), or send "
            f"{format_rate(timeline.store_needed_bytes_per_s.mid)} in all.",
        )
    written = bandwidth.overlap_share(timeline.durable_s, pace.interval_s)
    level = graded(written, 1.0)
    if level is not None:
        yield Advice(
            level,
            "drives",
            f"{_may(level)}a save is on NVMe {timeline.durable_s.format(format_duration)} after it "
            f"began, longer than the {format_duration(pace.interval_s)} to the next. Save less "
            "often, or add drives.",
        )


def _on_nvme(scenario: Scenario, facts: Facts) -> Iterator[Advice]:
    needed, has = facts.timeline.nvme_needed_bytes, facts.timeline.nvme_has_bytes
    if needed.mid > has.mid:
        level = WARNING
    elif needed.high > has.low:
        level = NOTE
    else:
        return
    one = facts.placement.node_bytes.mid
    fits = math.floor(has.low / one) if one else 0
    do = (
        f"Keep {max(1, fits - 2)} steps on it (--keep-local {max(1, fits - 2)})"
        if fits >= 3
        else "It holds no two steps beside the one being written: add drives or nodes"
    )
    yield Advice(
        level,
        "nvme",
        f"{_may(level)}the NVMe of a node cannot hold the steps: {scenario.saves.keep_local} kept, "
        f"{facts.timeline.steps_in_flight.mid:.0f} in flight and one being written are "
        f"{needed.format(format_bytes)}; it has {has.format(format_bytes)}. {do}.",
    )


def _on_host_memory(facts: Facts) -> Iterator[Advice]:
    needed, has = facts.timeline.host_needed_bytes, facts.node.host_memory_bytes.value
    level = WARNING if needed.mid > has.mid / 2 else NOTE if needed.high > has.low / 2 else None
    if level is not None:
        yield Advice(
            level,
            "memory",
            f"{_may(level)}a snapshot takes {needed.format(format_bytes)} of the "
            f"{has.format(format_bytes)} of host memory of a node, more than half. Take --mode "
            "fence, which needs none, or spread the state over more nodes.",
        )


def _on_parts(scenario: Scenario, facts: Facts) -> Iterator[Advice]:
    shard, part = facts.placement.rank_bytes, scenario.cost.part_bytes
    num_parts = parts_of(shard.high, part)
    if num_parts > PARTS_MAX:
        fitting = part_bytes_for(shard.high)
        yield Advice(
            WARNING,
            "parts",
            f"a shard of {format_bytes(shard.high)} in parts of "
            f"{format_binary_bytes(part)} has {num_parts:,} parts, and a store takes "
            f"{PARTS_MAX:,}. Take parts of {format_binary_bytes(fitting)} (--part "
            f"{format_binary_bytes(fitting).replace(' ', '')}).",
        )


def _on_prefixes(scenario: Scenario, facts: Facts) -> Iterator[Advice]:
    part, has = scenario.cost.part_bytes, scenario.cost.prefixes
    rate = _send_bytes_per_s(facts)
    for value, level in ((rate.mid, WARNING), (rate.high, NOTE)):
        wanted = prefixes_for(value, part)
        if wanted > has:
            yield Advice(
                level,
                "prefixes",
                f"{_may(level)}all nodes together send {value / part:,.0f} parts of "
                f"{format_binary_bytes(part)} a second, and one prefix takes "
                f"{PUTS_PER_PREFIX_PER_S:,} requests a second. Spread the keys over {wanted} "
                f"prefixes (--prefixes {wanted}), or take parts of "
                f"{format_binary_bytes(_next_part(value, has))}.",
            )
            return


def _send_bytes_per_s(facts: Facts) -> Band:
    """Give what all nodes send while they upload."""
    rate = facts.node.store_bytes_per_s.value * facts.placement.num_writing_nodes
    limit = facts.pace.store_bytes_per_s
    return rate if limit is None else rate.at_most(limit)


def _next_part(bytes_per_s: float, num_prefixes: int) -> int:
    step = PART_STEP_BYTES
    return math.ceil(bytes_per_s / (PUTS_PER_PREFIX_PER_S * num_prefixes) / step) * step


def _on_retention(scenario: Scenario, facts: Facts) -> Iterator[Advice]:
    kept, nbytes = kept_uploads(scenario), facts.placement.nbytes
    read = max(1, scenario.cost.restores) * _READ_PER_RESTORE
    num_days = math.ceil(scenario.cost.run_s / 86400)
    if kept <= 2 * (read + num_days):
        return
    daily = max(1, round(86400 / (facts.pace.interval_s * facts.pace.uploads_every)))
    yield Advice(
        WARNING if scenario.cost.keep_uploads is None else NOTE,
        "retention",
        f"at the end of {format_duration(scenario.cost.run_s)} the bucket holds {kept:,} "
        f"checkpoints, {(nbytes * kept).format(format_bytes)}; a restore reads the newest, perhaps "
        f"the one before, and {scenario.cost.restores} restores are planned. Nobody will read most "
        f"of them: keep the newest {read} and one a day (--keep-uploads {read} --keep-every "
        f"{daily}).",
    )


def _on_interval(facts: Facts) -> Iterator[Advice]:
    best = cadence.best_interval_band(
        facts.rates, facts.costs, upload_every=facts.schedule.upload_every
    )
    interval_s = facts.schedule.interval_s
    if best.low <= interval_s <= best.high:
        return
    other = dataclasses.replace(facts.schedule, interval_s=best.mid)
    now = cadence.goodput_band(facts.rates, facts.costs, facts.schedule)
    then = cadence.goodput_band(facts.rates, facts.costs, other)
    if then.mid - now.mid < _WORTHWHILE_SHARE:
        return
    why = (
        "more work is lost at a failure than saves would cost"
        if interval_s > best.high
        else "saves cost more than the failures that they guard against"
    )
    risk = (
        f" If all inputs turn out badly it gives {percent(then.low)}, and this one "
        f"{percent(now.low)}: measure before you go so far."
        if then.low < now.low - _WORTHWHILE_SHARE
        else ""
    )
    yield Advice(
        NOTE,
        "interval",
        f"the interval of {format_duration(interval_s)} gives a goodput of {percent(now.mid)}, "
        f"one of {best.format(format_duration)} would give {percent(then.mid)}: {why}.{risk}",
    )


def _on_failures(facts: Facts) -> Iterator[Advice]:
    uploaded_s, mtbf_s = facts.timeline.uploaded_s, facts.rates.likely.mtbf_s
    if uploaded_s.mid > mtbf_s:
        yield Advice(
            WARNING,
            "mtbf",
            f"the job is interrupted every {format_duration(mtbf_s)}, before an upload is done "
            f"({format_duration(uploaded_s.mid)}): few checkpoints will ever be in the bucket.",
        )
    if facts.rates.likely.preemption_per_s and not facts.costs.likely.survives_preemption:
        yield Advice(
            WARNING,
            "preemption",
            f"a save and its upload take {format_duration(uploaded_s.mid)}, longer than the "
            f"{format_duration(facts.costs.likely.preemption_notice_s)} of warning before a spot "
            "node goes: count on the newest upload only.",
        )


def _on_rendezvous(facts: Facts) -> Iterator[Advice]:
    num_nodes = facts.placement.num_writing_nodes
    if num_nodes > 1:
        yield Advice(
            NOTE,
            "rendezvous",
            f"{num_nodes} nodes write one checkpoint, each to its own NVMe, and none sees the "
            "files of the others. A commit needs a place where all meet: the store of the process "
            "group, or a POSIX directory that all nodes share. A bucket has no rename, and a tool "
            "that expects one shared path needs the POSIX file system.",
        )
