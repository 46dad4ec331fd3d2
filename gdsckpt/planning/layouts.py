"""Which rank writes how much of a checkpoint, for a parallel layout.

Source: Rajbhandari et al., "ZeRO", arXiv 1910.02054 (stage 1 and 2 shard the optimizer's state over
the data-parallel group, stage 3 and FSDP the weights too).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from gdsckpt.errors import ConfigError
from gdsckpt.planning.band import Band
from gdsckpt.planning.sizing import CheckpointSize

SHARDINGS = ("none", "zero1", "zero2", "zero3", "fsdp", "hsdp")
WRITERS = ("spread", "first")
RANKS_MAX = 2**20
_SIDES = ("data", "tensor", "pipeline", "context", "expert", "gpus_per_node")
# The embeddings of Llama 3 405B are 16 % of a stage of 126 / 32 layers; it moved a layer for them.
_PIPELINE_IMBALANCE = Band(1.0, 1.05, 1.2)


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
        imbalance: How many times the average the fullest rank holds, at least 1; None for what is
            usual: more than 1 with pipeline stages, whose first and last have the embeddings too.

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
    imbalance: Band | None = None

    def __post_init__(self) -> None:
        """Check the values."""
        for name in _SIDES:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(
                    f"{name} is {value!r}: give a whole number from 1 on.", field=name
                )
        if self.num_ranks > RANKS_MAX:
            raise ConfigError(
                f"--data x --tensor x --pipeline x --context are {self.num_ranks} ranks, more "
                f"than {RANKS_MAX}.",
                field="data",
            )
        _require_one_of("sharding", self.sharding, SHARDINGS)
        _require_one_of("writers", self.writers, WRITERS)
        if self.replicas % self.expert:
            raise ConfigError(
                f"--expert is {self.expert}, which does not divide data x context = "
                f"{self.replicas}.",
                field="expert",
            )
        self._check_shard_ranks()
        if self.imbalance is not None and self.imbalance.low < 1:
            raise ConfigError(f"imbalance is {self.imbalance}: give at least 1.", field="imbalance")

    def _check_shard_ranks(self) -> None:
        if self.sharding == "hsdp" and self.shard_ranks is None:
            raise ConfigError(
                "--sharding is hsdp, which needs --shard-ranks: how many ranks hold one copy "
                "together.",
                field="shard_ranks",
            )
        if self.sharding != "hsdp" and self.shard_ranks is not None:
            raise ConfigError(
                f"--shard-ranks is {self.shard_ranks}, but --sharding is {self.sharding}: only "
                "hsdp has it.",
                field="shard_ranks",
            )
        ranks = 1 if self.shard_ranks is None else self.shard_ranks
        if isinstance(ranks, bool) or ranks < 1 or self.replicas % ranks:
            raise ConfigError(
                f"--shard-ranks is {ranks!r}, which does not divide data x context = "
                f"{self.replicas}.",
                field="shard_ranks",
            )

    @property
    def replicas(self) -> int:
        """Ranks that would hold the same weights without sharding: data x context."""
        return self.data * self.context

    @property
    def num_ranks(self) -> int:
        """Ranks of the job, one per GPU."""
        return self.data * self.tensor * self.pipeline * self.context

    @property
    def num_nodes(self) -> int:
        """Nodes, the last one perhaps not full."""
        return -(-self.num_ranks // self.gpus_per_node)

    @property
    def fullest_to_average(self) -> Band:
        """How many times the average the fullest rank holds."""
        if self.imbalance is not None:
            return self.imbalance
        return Band.exactly(1.0) if self.pipeline == 1 else _PIPELINE_IMBALANCE

    def holders(self, role: str, *, is_expert: bool) -> int:
        """Give how many ranks at one place of the tensor and pipeline group share one copy.

        Args:
            role: Role of the part (``sizing.ROLES``).
            is_expert: Whether it belongs to routed experts.
        """
        apart = self.expert if is_expert else 1
        if self.sharding == "none" or (role == "weights" and self.sharding in ("zero1", "zero2")):
            return apart
        return max(apart, self.replicas if self.shard_ranks is None else self.shard_ranks)


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
        groups: The ranks by what they write on average, the largest first; those that write
            nothing too.
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
        return self.groups[0].nbytes * self.layout.fullest_to_average

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
    if not 0 <= expert_share <= 1:
        raise ConfigError(
            f"expert_share is {expert_share}: give a share from 0 to 1.", field="expert_share"
        )
    if layout.expert > 1 and expert_share == 0:
        raise ConfigError(
            f"--expert is {layout.expert}, but the model has no experts: give --experts, the share "
            "of the parameters that is in them.",
            field="expert",
        )
    pieces = _pieces(size, layout, expert_share)
    groups = _groups(pieces, layout)
    by_place = [group for group in groups for _ in range(group.num_ranks // _places(layout))]
    ranks = range(min(layout.gpus_per_node, layout.num_ranks))
    node = Band.total(by_place[_replica(rank, layout)].nbytes for rank in ranks)
    return Placement(
        layout, groups, node * layout.fullest_to_average, _num_writing_nodes(groups, layout)
    )


@dataclass(frozen=True, slots=True)
class _Piece:
    """State of which each of so many ranks, of those that could, writes an equal share."""

    role: str
    writers: int
    nbytes_each: Band


def _pieces(size: CheckpointSize, layout: Layout, expert_share: float) -> list[_Piece]:
    pieces = []
    for part in size.parts:
        for is_expert, share in ((False, 1 - expert_share), (True, expert_share)):
            if share == 0:
                continue
            holders = layout.holders(part.role, is_expert=is_expert)
            writers = layout.replicas if layout.writers == "spread" else holders
            each = part.nbytes * (share / (_places(layout) * writers))
            pieces.append(_Piece(part.role, writers, each))
    return pieces


def _groups(pieces: list[_Piece], layout: Layout) -> tuple[RankGroup, ...]:
    """Cut the replicas where one of the pieces has its last writer."""
    groups = []
    first = 0
    for end in sorted({layout.replicas, *(piece.writers for piece in pieces)}):
        mine = [piece for piece in pieces if piece.writers >= end]
        weights = Band.total(p.nbytes_each for p in mine if p.role == "weights")
        others = Band.total(p.nbytes_each for p in mine if p.role != "weights")
        name = f"replica {first}" if end == first + 1 else f"replicas {first} to {end - 1}"
        groups.append(RankGroup(name, (end - first) * _places(layout), weights, others))
        first = end
    return tuple(groups)


def _places(layout: Layout) -> int:
    """Parts that tensor and pipeline parallelism cut a replica into."""
    return layout.tensor * layout.pipeline


def _replica(rank: int, layout: Layout) -> int:
    """Give the replica of a rank: tensor ranks are next to each other, then come the replicas.

    Source: Megatron-Core's order ``tp-cp-ep-dp-pp``.
    """
    return rank // layout.tensor % layout.replicas


def _num_writing_nodes(groups: tuple[RankGroup, ...], layout: Layout) -> int:
    writing = sum(g.num_ranks for g in groups if g.nbytes.high > 0) // _places(layout)
    if writing == layout.replicas:
        return layout.num_nodes
    return len(
        {
            rank // layout.gpus_per_node
            for rank in range(layout.num_ranks)
            if _replica(rank, layout) < writing
        }
    )


def _require_one_of(field: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"{field} is {value!r}. Allowed: {', '.join(allowed)}.", field=field)
