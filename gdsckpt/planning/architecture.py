"""What is saved, how often, and where it goes: the input of a cost."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gdsckpt.planning.band import Band
from gdsckpt.planning.capacity import DURATION_MAX_S, Stage
from gdsckpt.planning.failures import require_number
from gdsckpt.planning.tariffs import MONTH_S

PARTS_MAX = 10_000
"""Parts of one multipart upload. Source: Amazon S3 User Guide, "Multipart upload limits"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is saved, how often and by how many.

    Attributes:
        checkpoint_bytes: Bytes of one checkpoint of all ranks.
        interval_s: Seconds from one save to the next.
        run_s: Duration of the run in seconds.
        num_gpus: GPUs that stand still while a save stalls the training.
        gpu: Name of the GPU in the price file.
        num_objects: Files, and so objects, of one checkpoint; usually one per rank.
        part_bytes: Part of a multipart upload.
        num_restores: How often during the run a whole checkpoint is read back from the first
            place that outlives a node.
        cross_zone_share: Share of the bytes written, 0 to 1, that go to another availability zone.
        nat_share: Share of the bytes to and from an object store that pass a NAT gateway.
        egress_share: Share of the bytes read back that leave the region.

    Raises:
        ConfigError: A value is out of its bounds.
    """

    checkpoint_bytes: float
    interval_s: float
    run_s: float = MONTH_S
    num_gpus: int = 1
    gpu: str = "h100"
    num_objects: int = 1
    part_bytes: float = 128 * 2**20
    num_restores: float = 0.0
    cross_zone_share: float = 0.0
    nat_share: float = 0.0
    egress_share: float = 0.0

    def __post_init__(self) -> None:
        """Check the values."""
        require_number("checkpoint_bytes", self.checkpoint_bytes, minimum=1, maximum=1e18)
        require_number("interval_s", self.interval_s, minimum=1e-3, maximum=DURATION_MAX_S)
        require_number("run_s", self.run_s, minimum=1.0, maximum=DURATION_MAX_S)
        require_number("num_gpus", self.num_gpus, minimum=1, maximum=1e8)
        require_number("num_objects", self.num_objects, minimum=1, maximum=1e9)
        require_number("part_bytes", self.part_bytes, minimum=5 * 2**20, maximum=5 * 2**30)
        require_number("num_restores", self.num_restores, minimum=0.0, maximum=1e9)
        for name in ("cross_zone_share", "nat_share", "egress_share"):
            require_number(name, getattr(self, name), minimum=0.0, maximum=1.0)

    @property
    def num_saves(self) -> float:
        """Saves of the run, not rounded."""
        return self.run_s / self.interval_s

    @property
    def parts_per_object(self) -> int:
        """Parts of one object; parts grow where there would be more than ``PARTS_MAX``."""
        object_bytes = self.checkpoint_bytes / self.num_objects
        return min(math.ceil(object_bytes / self.part_bytes), PARTS_MAX)

    @property
    def write_requests_per_checkpoint(self) -> int:
        """Requests at the price of a PUT: per object its parts, begin and end; and the manifest."""
        parts = self.parts_per_object
        return self.num_objects * (parts + 2 if parts > 1 else 1) + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSystem:
    """A parallel file system that saves go to directly, so that the training waits for it.

    Attributes:
        storage: Its name in the price file.
        keep_newest: Checkpoints that it holds, at least 1.
        overlap_share: Where it is bought to fit: share of the time that the training may stand
            still for saves, above 0.
        weighs_idle: Whether to buy a faster one where GPUs that stand still cost more than that.
        provisioned_bytes: Capacity of one that is there already; None buys what is needed.
    """

    storage: str
    keep_newest: int = 2
    overlap_share: float = 0.1
    weighs_idle: bool = False
    provisioned_bytes: float | None = None

    def __post_init__(self) -> None:
        """Check the values."""
        require_number("keep_newest", self.keep_newest, minimum=1, maximum=1e9)
        require_number("overlap_share", self.overlap_share, minimum=1e-6, maximum=1.0)
        if self.provisioned_bytes is not None:
            require_number("provisioned_bytes", self.provisioned_bytes, minimum=1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalDrives:
    """Checkpoints on the drives of the nodes.

    Attributes:
        storage: Name of the drives in the price file.
        keep_newest: Checkpoints that they hold, those in flight among them.
        num_copies: Copies of each on different nodes, at least 1.
    """

    storage: str = "nvme-local"
    keep_newest: int = 3
    num_copies: int = 1

    def __post_init__(self) -> None:
        """Check the values."""
        require_number("keep_newest", self.keep_newest, minimum=1, maximum=1e9)
        require_number("num_copies", self.num_copies, minimum=1, maximum=100)


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """Where checkpoints go; parts that are not there are None or empty.

    Attributes:
        name: What it is called in the output.
        file_system: A parallel file system; its speed gives the stall.
        drives: Local drives.
        stages: Object stores that checkpoints pass through.
        stall_s: Stall of one save in seconds, where there is no file system.
        commit_s: Until one is on the drives, in seconds; where that is longer than the interval,
            the next save waits for the rest.
        upload_every: Every so manyeth save goes to the first of the stages.
    """

    name: str
    file_system: FileSystem | None = None
    drives: LocalDrives | None = None
    stages: tuple[Stage, ...] = ()
    stall_s: Band = Band(0.0, 0.0, 0.0)
    commit_s: Band = Band(0.0, 0.0, 0.0)
    upload_every: int = 1

    def __post_init__(self) -> None:
        """Check the values."""
        require_number("stall_s", self.stall_s.low, minimum=0.0)
        require_number("commit_s", self.commit_s.low, minimum=0.0)
        require_number("upload_every", self.upload_every, minimum=1, maximum=1e9)
