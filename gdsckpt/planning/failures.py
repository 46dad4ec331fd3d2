"""How often a job is interrupted: from GPUs, nodes or a measured job to failures of each kind.

A failure of a process (a software fault, a hang, a driver that has to be reset) leaves the local
drives readable, so the newest local copy is enough. The loss of a node takes its drives with it, so
does the preemption of a spot instance: then the newest complete copy in the bucket counts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Generic, TypeVar

from gdsckpt.errors import ConfigError
from gdsckpt.planning.band import Band

HOUR_S = 3600.0
DAY_S = 86400.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Cases(Generic[T]):
    """One thing as it is when all uncertain inputs turn out well, as expected, and badly."""

    best: T
    likely: T
    worst: T


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRates:
    """Interruptions of a whole job per second, each kind independent of its past (exponential).

    Attributes:
        process_per_s: Those after which the local copies are still there.
        node_per_s: Those that take the local copies of a node away.
        preemption_per_s: Spot instances that are taken back.

    Raises:
        ConfigError: A rate is negative or not finite.
    """

    process_per_s: float
    node_per_s: float
    preemption_per_s: float = 0.0

    def __post_init__(self) -> None:
        """Check the rates."""
        for name in ("process_per_s", "node_per_s", "preemption_per_s"):
            require_number(name, getattr(self, name), minimum=0.0)

    @property
    def total_per_s(self) -> float:
        """Interruptions of any kind per second."""
        return self.process_per_s + self.node_per_s + self.preemption_per_s

    @property
    def mtbf_s(self) -> float:
        """Mean seconds from one interruption to the next; infinite without any."""
        return 1.0 / self.total_per_s if self.total_per_s else math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureSource:
    """What is known of failures; exactly one of the three mean times is given.

    Attributes:
        mtbf_gpu_s: Mean seconds between interruptions that one GPU, with its share of the node,
            causes.
        mtbf_node_s: The same for a node.
        mtbf_job_s: The same for the job as it is, measured; not scaled.
        node_loss_share: Share of the interruptions, 0 to 1, after which a node is replaced. The
            default is an estimate: most of those of Llama 3 were blamed on hardware, but a reset
            often helps.
        preemption_mtbf_node_s: Mean seconds until one spot node is taken back; None for none.

    Raises:
        ConfigError: None or several of the mean times are given, or a value is out of bounds.
    """

    mtbf_gpu_s: Band | None = None
    mtbf_node_s: Band | None = None
    mtbf_job_s: Band | None = None
    node_loss_share: Band = Band(0.3, 0.6, 0.8)
    preemption_mtbf_node_s: Band | None = None

    def __post_init__(self) -> None:
        """Check that the values do not contradict each other."""
        names = ("mtbf_gpu_s", "mtbf_node_s", "mtbf_job_s")
        given = [name for name in names if getattr(self, name) is not None]
        if len(given) != 1:
            what = " and ".join(given) if given else "none of them"
            raise ConfigError(
                f"mtbf is given by {what}: give exactly one of {', '.join(names)}.",
                field=given[-1] if given else "mtbf_gpu_s",
            )
        for name in (*names, "preemption_mtbf_node_s"):
            band: Band | None = getattr(self, name)
            if band is not None:
                require_number(name, band.low, minimum=1.0)
        share = self.node_loss_share
        require_number("node_loss_share", share.low, minimum=0.0)
        require_number("node_loss_share", share.high, maximum=1.0)

    def rates(self, *, num_gpus: int, gpus_per_node: int) -> Cases[FailureRates]:
        """Scale to a job: rates of independent parts add up, so the mean time falls as 1 / parts.

        Args:
            num_gpus: GPUs of the job, at least 1.
            gpus_per_node: GPUs of one node, at least 1.

        Returns:
            The rates of the whole job; best is the longest mean time with the fewest node losses.

        Raises:
            ConfigError: A count is below 1.
        """
        require_number("num_gpus", num_gpus, minimum=1)
        require_number("gpus_per_node", gpus_per_node, minimum=1)
        num_nodes = math.ceil(num_gpus / gpus_per_node)
        if self.mtbf_gpu_s is not None:
            failing, parts = self.mtbf_gpu_s, num_gpus
        elif self.mtbf_node_s is not None:
            failing, parts = self.mtbf_node_s, num_nodes
        else:
            failing, parts = self.mtbf_job_s or Band.exactly(math.inf), 1
        share, spot = self.node_loss_share, self.preemption_mtbf_node_s

        def at(mtbf_s: float, lost: float, preempted_s: float | None) -> FailureRates:
            total = parts / mtbf_s
            return FailureRates(
                process_per_s=total * (1 - lost),
                node_per_s=total * lost,
                preemption_per_s=num_nodes / preempted_s if preempted_s else 0.0,
            )

        return Cases(
            best=at(failing.high, share.low, spot.high if spot else None),
            likely=at(failing.mid, share.mid, spot.mid if spot else None),
            worst=at(failing.low, share.high, spot.low if spot else None),
        )


LLAMA3_MTBF_GPU_S = 54 * DAY_S * 16384 / 419
"""Seconds per GPU and unexpected interruption: 419 in 54 days on 16,384 H100, so 3.1 h for the job
and 50,700 h for a GPU (Llama 3 405B; "The Llama 3 Herd of Models", arXiv 2407.21783, table 5)."""

RSC1_MTBF_NODE_S = 1000 / 6.50 * DAY_S
"""Seconds per node of 8 A100 and failure: 6.50 in 1,000 node-days on the cluster RSC-1
("Revisiting Reliability in Large-Scale Machine Learning Research Clusters", arXiv 2410.21680)."""

RSC2_MTBF_NODE_S = 1000 / 2.34 * DAY_S
"""The same for the cluster RSC-2 of that paper: 2.34 failures in 1,000 node-days."""

TYPICAL_MTBF_GPU_S = Band(LLAMA3_MTBF_GPU_S / 2, LLAMA3_MTBF_GPU_S, RSC2_MTBF_NODE_S * 8)
"""What to assume without measurements: half of the Llama 3 figure (new hardware, the first weeks),
that figure, and the better of the two clusters."""


def require_number(
    field: str, value: float, *, minimum: float = -math.inf, maximum: float = math.inf
) -> None:
    """Raise ConfigError unless a value is finite and within its bounds.

    Args:
        field: Its name, for the error.
        value: The value.
        minimum: Smallest that is allowed.
        maximum: Largest that is allowed.
    """
    if not math.isfinite(value) or not minimum <= value <= maximum:
        bounds = (
            f"at least {minimum:g}"
            if math.isinf(maximum)
            else f"at most {maximum:g}"
            if math.isinf(minimum)
            else f"{minimum:g} to {maximum:g}"
        )
        raise ConfigError(f"{field} is {value:g}: give a number, {bounds}.", field=field)
