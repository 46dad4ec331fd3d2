"""How long a checkpoint takes on its way, what training waits for, and what has to be bought."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from gdsckpt.errors import ConfigError
from gdsckpt.planning.band import Band
from gdsckpt.planning.hardware import Node
from gdsckpt.planning.layouts import Placement

OVERLAP_SHARE_MAX = 0.10
"""The line to stay under: stall / interval (docs/planning.md)."""

DAY_S = 86_400.0

MODES = ("sync", "host", "fence")
"""What training waits for: the write to NVMe; the copy to host memory; what of the write is left
when the next optimizer step comes.
"""


@dataclass(frozen=True, slots=True)
class Stage:
    """One leg of the way.

    Attributes:
        name: ``HBM to host``, ``host to NVMe`` or ``NVMe to store``.
        nbytes: Bytes that the slowest unit moves.
        bytes_per_s: Rate of that unit.
        unit: The unit: ``GPU``, ``node`` or ``job``.
        why: What limits it.
    """

    name: str
    nbytes: Band
    bytes_per_s: Band
    unit: str
    why: str

    @property
    def seconds(self) -> Band:
        """How long it takes."""
        return self.nbytes / self.bytes_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How saves follow each other.

    Attributes:
        interval_s: From one save to the next, in seconds.
        mode: One of ``MODES``.
        step_s: Time of a training step before the optimizer's, which a ``fence`` save has for
            nothing, in seconds; None for unknown: then it waits for all of the write.
        store_bytes_per_s: What the store or the link to it takes of the whole job; None: no limit.
        steps_kept: Committed steps that stay on NVMe.
        uploads_every: Every n-th save is uploaded.
        snapshot_slots: Copies of the state in host memory that a ``host`` save may use in turn.

    Raises:
        ConfigError: A value is out of its bounds.
    """

    interval_s: float
    mode: str = "host"
    step_s: float | None = None
    store_bytes_per_s: Band | None = None
    steps_kept: int = 2
    uploads_every: int = 1
    snapshot_slots: int = 1

    def __post_init__(self) -> None:
        """Check the values."""
        require_positive("interval_s", self.interval_s)
        if self.mode not in MODES:
            raise ConfigError(f"mode is {self.mode!r}. Allowed: {', '.join(MODES)}.", field="mode")
        if self.step_s is not None:
            require_positive("step_s", self.step_s)
            if self.step_s > self.interval_s:
                raise ConfigError(
                    f"step_s is {self.step_s}, more than interval_s, {self.interval_s}: "
                    "there is at most one save a step.",
                    field="step_s",
                )
        if self.store_bytes_per_s is not None:
            require_positive("store_bytes_per_s", self.store_bytes_per_s)
        for name in ("steps_kept", "uploads_every", "snapshot_slots"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(
                    f"{name} is {value!r}: give a whole number from 1 on.", field=name
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """One save from the call to the store.

    Attributes:
        to_host: HBM to host memory.
        to_nvme: Host memory to NVMe.
        to_store: NVMe to the object store.
        stall_s: What training waits for.
        alone_stall_s: The part of it that is left where the save before is on NVMe in time.
        durable_s: From the call until it is on NVMe.
        uploaded_s: From the call until it is in the store.
        overlap_share: ``stall_s`` / interval; / ``durable_s`` where that is longer and so decides
            when the next save begins.
        drain_share: Upload time / time between uploads; above 1 uploads fall behind.
        needed_bytes_per_s: Rate, of the whole job, that keeps the stall at 10 % of the interval.
        store_needed_bytes_per_s: Rate to the store with which uploads keep up.
        steps_in_flight: Saves that go to the store at the same time: 1 while uploads keep up. With
            a ``drain_share`` above 1 more and more wait; this is then how many begin in the time
            of one upload.
        nvme_needed_bytes: NVMe of the fullest node, for the steps kept, in flight and being
            written.
        nvme_has_bytes: NVMe of a node.
        host_needed_bytes: Host memory of the fullest node that snapshots take; 0 where there are
            none.
        bytes_per_day: What is saved in a day.
    """

    to_host: Stage
    to_nvme: Stage
    to_store: Stage
    stall_s: Band
    alone_stall_s: Band
    durable_s: Band
    uploaded_s: Band
    overlap_share: Band
    drain_share: Band
    needed_bytes_per_s: Band
    store_needed_bytes_per_s: Band
    steps_in_flight: Band
    nvme_needed_bytes: Band
    nvme_has_bytes: Band
    host_needed_bytes: Band
    bytes_per_day: Band

    @property
    def stages(self) -> tuple[Stage, Stage, Stage]:
        """The legs in their order."""
        return self.to_host, self.to_nvme, self.to_store

    def as_dict(self) -> dict[str, Any]:
        """Give all of it as values that JSON has."""
        stages = {
            name: {**dataclasses.asdict(stage), "seconds": stage.seconds.as_dict()}
            for name, stage in zip(("to_host", "to_nvme", "to_store"), self.stages, strict=True)
        }
        return {**dataclasses.asdict(self), **stages}


def timeline(placement: Placement, node: Node, pace: Pace) -> Timeline:
    """Follow one save from the call to the store.

    A ``sync`` or ``fence`` save moves from HBM through host memory to NVMe in a stream, so that the
    slower leg decides; a ``host`` save copies all of it first. Where writing takes longer than the
    interval, the next save waits for the rest.

    Args:
        placement: Who writes how much.
        node: What a node moves.
        pace: How saves follow each other.

    Raises:
        ConfigError: The node has no drives, or fewer GPUs than the layout's nodes.
    """
    if node.drives < 1:
        raise ConfigError(
            f"drives is {node.drives}: a save needs local NVMe, so give at least 1.", field="drives"
        )
    ranks = placement.layout.gpus_per_node
    if ranks > node.gpus:
        raise ConfigError(
            f"gpus_per_node is {ranks}, but a {node.name} has {node.gpus} GPUs.",
            field="gpus_per_node",
        )
    to_host, to_nvme, to_store = _stages(placement, node, pace)
    written = to_host.seconds.at_least(to_nvme.seconds)
    upload_interval_s = pace.interval_s * pace.uploads_every
    drain_share = overlap_share(to_store.seconds, upload_interval_s)
    in_flight = drain_share.map(lambda share: float(max(1, math.ceil(share))))
    alone_stall_s = _alone_stall(pace, to_host.seconds, written)
    durable_s = to_host.seconds + to_nvme.seconds if pace.mode == "host" else written
    slots = pace.snapshot_slots if pace.mode == "host" else 0
    stall_s, stall_share = alone_stall_s, overlap_share(alone_stall_s, pace.interval_s)
    if pace.mode == "host":
        # The slot is free when the save before is written, so the next one waits for the rest.
        stall_s = stall_s + (durable_s - pace.interval_s).at_least(0.0)
        stall_share = _waiting_share(alone_stall_s, durable_s, pace.interval_s)
    return Timeline(
        to_host=to_host,
        to_nvme=to_nvme,
        to_store=to_store,
        stall_s=stall_s,
        alone_stall_s=alone_stall_s,
        durable_s=durable_s,
        uploaded_s=durable_s + to_store.seconds,
        overlap_share=stall_share,
        drain_share=drain_share,
        needed_bytes_per_s=needed_bytes_per_s(placement.nbytes, pace.interval_s),
        store_needed_bytes_per_s=placement.nbytes / upload_interval_s,
        steps_in_flight=in_flight,
        nvme_needed_bytes=nvme_needed_bytes(placement.node_bytes, pace, in_flight),
        nvme_has_bytes=node.nvme_bytes,
        host_needed_bytes=placement.node_bytes * slots,
        bytes_per_day=bytes_per_day(placement.nbytes, pace.interval_s),
    )


def _stages(placement: Placement, node: Node, pace: Pace) -> tuple[Stage, Stage, Stage]:
    store = node.store_bytes_per_s.value
    why = f"what a node sends: {node.store_bytes_per_s.source}"
    if pace.store_bytes_per_s is not None:
        # The job's rate is shared as the bytes are.
        share = pace.store_bytes_per_s * (placement.node_bytes.mid / placement.nbytes.mid)
        if share.mid < store.mid:
            why = "what the store takes of the whole job"
        store = store.at_most(share)
    drives = f"{node.drives} drives: {node.drive_write_bytes_per_s.source}"
    return (
        Stage(
            "HBM to host",
            placement.rank_bytes,
            node.gpu_to_host_bytes_per_s.value,
            "GPU",
            f"{node.link}: {node.gpu_to_host_bytes_per_s.source}",
        ),
        Stage("host to NVMe", placement.node_bytes, node.nvme_write_bytes_per_s, "node", drives),
        Stage("NVMe to store", placement.node_bytes, store, "node", why),
    )


def _alone_stall(pace: Pace, to_host_s: Band, written_s: Band) -> Band:
    if pace.mode == "host":
        return to_host_s
    if pace.mode == "fence" and pace.step_s is not None:
        return (written_s - pace.step_s).at_least(0.0)
    return written_s


def _waiting_share(alone_s: Band, durable_s: Band, interval_s: float) -> Band:
    """Give the share of the time without training, where saves wait for the one before."""

    def share(alone: float, durable: float) -> float:
        if alone >= interval_s:
            return alone / interval_s
        return 1 - (interval_s - alone) / durable if durable > interval_s else alone / interval_s

    return Band(
        share(alone_s.low, durable_s.low),
        share(alone_s.mid, durable_s.mid),
        share(alone_s.high, durable_s.high),
    )


def transfer_s(nbytes: Band | float, bytes_per_s: Band | float) -> Band:
    """Give the seconds that so many bytes take.

    Raises:
        ConfigError: The rate may be 0, or one of the two is negative.
    """
    _require_not_negative("nbytes", nbytes)
    require_positive("bytes_per_s", bytes_per_s)
    return Band.of(nbytes) / bytes_per_s


def overlap_share(stall_s: Band | float, interval_s: float) -> Band:
    """Give the share of the time that a stall of every interval takes; 0.1 is the line.

    The same holds of any resource: a parallel file system that works 90 s of every hour is used
    2.5 % of the time.

    Raises:
        ConfigError: The interval is 0, or one of the two is negative.
    """
    _require_not_negative("stall_s", stall_s)
    require_positive("interval_s", interval_s)
    return Band.of(stall_s) / interval_s


def needed_bytes_per_s(
    nbytes: Band | float, interval_s: float, overlap_max: float = OVERLAP_SHARE_MAX
) -> Band:
    """Give the rate at which saving takes at most ``overlap_max`` of the interval.

    Raises:
        ConfigError: The interval or the share is 0, or something is negative.
    """
    require_positive("interval_s", interval_s)
    require_positive("overlap_max", overlap_max)
    return transfer_s(nbytes, interval_s * overlap_max)


def bytes_per_day(nbytes: Band | float, interval_s: float) -> Band:
    """Give the bytes that a day of saves writes.

    Raises:
        ConfigError: The interval is 0, or one of the two is negative.
    """
    require_positive("interval_s", interval_s)
    _require_not_negative("nbytes", nbytes)
    return Band.of(nbytes) * (DAY_S / interval_s)


def nvme_needed_bytes(node_bytes: Band | float, pace: Pace, steps_in_flight: Band) -> Band:
    """Give the NVMe that a node needs for the steps kept, in flight and being written.

    The step in flight is one of those kept when each is uploaded; with ``uploads_every`` it may be
    older than these.
    """
    together = steps_in_flight.at_least(pace.steps_kept)
    if pace.uploads_every > 1:
        together = steps_in_flight + pace.steps_kept
    return Band.of(node_bytes) * (together + 1)


def require_positive(field: str, value: Band | float) -> None:
    """Refuse what is not above 0 and finite.

    Raises:
        ConfigError: It is not; ``field`` names it.
    """
    low = value.low if isinstance(value, Band) else value
    if not (math.isfinite(low) and low > 0):
        raise ConfigError(f"{field} is {value}: it has to be above 0.", field=field)


def _require_not_negative(field: str, value: Band | float) -> None:
    low = value.low if isinstance(value, Band) else value
    if not (math.isfinite(low) and low >= 0):
        raise ConfigError(f"{field} is {value}: it may not be negative.", field=field)


@dataclass(frozen=True, slots=True)
class Reference:
    """A figure from a published text, beside what the formulas here give.

    Attributes:
        name: The question.
        computed: Our answer, in ``unit``.
        published: The text's, in ``unit``.
        unit: Unit of both.
        note: Why they differ; empty where they agree.
    """

    name: str
    computed: float
    published: float
    unit: str
    note: str = ""

    @property
    def difference(self) -> float:
        """How far the published figure is above ours; 0.2 is 20 %."""
        return self.published / self.computed - 1


def references() -> tuple[Reference, ...]:
    """Give the figures of published texts that the formulas here are held against."""
    return (
        Reference("seconds of 3.2 TB at 70 GB/s", transfer_s(3.2e12, 70e9).mid, 46.0, "s"),
        Reference(
            "seconds of a shard of 45 GB at 1.1 GB/s", transfer_s(45e9, 1.1e9).mid, 41.0, "s"
        ),
        Reference(
            "use of a parallel file system that works 90 s of an hour",
            100 * overlap_share(90.0, 3600.0).mid,
            2.5,
            "%",
        ),
        Reference(
            "written in a day by 15 TB each 90 s", bytes_per_day(15e12, 90.0).mid / 1e15, 14.4, "PB"
        ),
        Reference(
            "rate of 15 TB in 5 s",
            transfer_s(15e12, 5.0).mid / 1e12,
            3.6,
            "TB/s",
            "the published 3.6 TB/s are 20 % too high for 15 TB in 5 s, which are 3.0 TB/s; they "
            "would be 18 TB in 5 s, or 15 TB in 4.2 s",
        ),
    )
