"""Which rank writes how much of a checkpoint, for a parallel layout.

Source: Rajbhandari et al., "ZeRO", arXiv 1910.02054 (stage 1 and 2 shard the optimizer's state over
the data-parallel group, stage 3 and FSDP the weights too).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from gdsckpt.planning.band import Band
from gdsckpt.planning.sizing import CheckpointSize

SHARDINGS = ("none", "zero1", "zero2", "zero3", "fsdp", "hsdp")
WRITERS = ("spread", "first")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How a model lies on the GPUs of a job.

    Attributes:
        data: Data-parallel ranks (replicas of the model, before sharding).
        tensor: Tensor-parallel ranks; each holds its part of every matrix.
        pipeline: Pipeline stages.
        context: Context-parallel ranks; they hold the same weights, as data-parallel ranks do.
        expert: Expert-parallel ranks, out of data times context; divides it.
        sharding: One of ``SHARDINGS``.
        shard_ranks: With ``hsdp``, ranks that hold one whole copy together; divides data x context.
        gpus_per_node: GPUs of a node; one rank each.
        writers: Of state that several ranks hold alike, ``first``: one of them writes all of it;
            ``spread``: they write equal shares (torch's DCP balances so by default).

    Raises:
        ConfigError: A value is out of its bounds, or two contradict each other.
    """

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    sharding: str = "fsdp"
    shard_ranks: int | None = None
    gpus_per_node: int = 8
    writers: str = "spread"

    @property
    def num_ranks(self) -> int:
        """Ranks of the job, one per GPU."""
        return self.data * self.tensor * self.pipeline * self.context

    @property
    def num_nodes(self) -> int:
        """Nodes, the last one perhaps not full."""
        return -(-self.num_ranks // self.gpus_per_node)


@dataclass(frozen=True, slots=True)
class RankGroup:
    """Ranks that write the same amount.

    Attributes:
        name: Which ranks.
        num_ranks: How many.
        weights_bytes: Bytes of weights that each writes.
        optimizer_bytes: Bytes of the optimizer's state (and other parts) that each writes.
    """

    name: str
    num_ranks: int
    weights_bytes: Band
    optimizer_bytes: Band

    @property
    def nbytes(self) -> Band:
        """Bytes that each of them writes."""
        return self.weights_bytes + self.optimizer_bytes


@dataclass(frozen=True, slots=True)
class Placement:
    """Who writes how much of one checkpoint.

    Attributes:
        layout: The layout.
        groups: The ranks by what they write, the largest first; those that write nothing too.
        node_bytes: What the node that writes most writes.
        num_writing_nodes: Nodes that write at all.
    """

    layout: Layout
    groups: tuple[RankGroup, ...]
    node_bytes: Band
    num_writing_nodes: int

    @property
    def rank_bytes(self) -> Band:
        """What the rank that writes most writes: it decides how long a save lasts."""
        return self.groups[0].nbytes

    @property
    def num_writing_ranks(self) -> int:
        """Ranks that write at all; each writes one shard."""
        return sum(group.num_ranks for group in self.groups if group.nbytes.high > 0)

    @property
    def nbytes(self) -> Band:
        """All ranks together: the size of the checkpoint."""
        return Band.total(group.nbytes * group.num_ranks for group in self.groups)

    def as_dict(self) -> dict[str, Any]:
        """Give all of it as values that JSON has."""
        return {
            **dataclasses.asdict(self),
            "rank_bytes": self.rank_bytes.as_dict(),
            "num_writing_ranks": self.num_writing_ranks,
        }


def place(size: CheckpointSize, layout: Layout, *, expert_share: float = 0.0) -> Placement:
    """Say which rank writes how much.

    Args:
        size: The checkpoint.
        layout: The layout.
        expert_share: Share of the parameters that are in experts, 0 to 1.

    Raises:
        ConfigError: ``expert_share`` contradicts the layout.
    """
    raise NotImplementedError
