"""How long a checkpoint takes on its way, what training waits for, and what has to be bought."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from gdsckpt.planning.band import Band
from gdsckpt.planning.hardware import Node
from gdsckpt.planning.layouts import Placement

OVERLAP_SHARE_MAX = 0.10
"""The line to stay under: stall / interval (docs/planning.md)."""

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
    """

    interval_s: float
    mode: str = "host"
    step_s: float | None = None
    store_bytes_per_s: Band | None = None
    steps_kept: int = 2
    uploads_every: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """One save from the call to the store.

    Attributes:
        to_host: HBM to host memory.
        to_nvme: Host memory to NVMe.
        to_store: NVMe to the object store.
        stall_s: What training waits for.
        durable_s: From the call until it is on NVMe.
        uploaded_s: From the call until it is in the store.
        overlap_share: ``stall_s`` / interval.
        drain_share: Upload time / time between uploads; above 1 uploads fall behind.
        needed_bytes_per_s: Rate, of the whole job, that keeps the stall at 10 % of the interval.
        store_needed_bytes_per_s: Rate to the store with which uploads keep up.
        steps_in_flight: Saves that are waiting for the store or going there at the same time.
        nvme_needed_bytes: NVMe of the fullest node, for the steps kept, in flight and being
            written.
        nvme_has_bytes: NVMe of a node.
        host_needed_bytes: Host memory of a node that one snapshot takes; 0 where there is none.
        bytes_per_day: What is saved in a day.
    """

    to_host: Stage
    to_nvme: Stage
    to_store: Stage
    stall_s: Band
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

    Raises:
        ConfigError: A value of ``pace`` is out of its bounds, or the node has no drives.
    """
    raise NotImplementedError


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
    raise NotImplementedError
