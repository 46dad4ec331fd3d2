"""How much is kept, where and for how long, under a retention policy.

Checkpoints come evenly, ``1 / interval`` per second from the beginning of the run to its end; they
are counted as a flow, not one by one, so that a small change of the interval makes a small change
of the cost. At the end of the run all are deleted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gdsckpt.errors import ConfigError
from gdsckpt.planning.failures import require_number

DURATION_MAX_S = 100 * 365 * 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One place that checkpoints pass through on their way to the archive, or to deletion.

    Attributes:
        storage: Name of the storage in the price file.
        keep_newest: So many of the newest that are here stay; what is older moves on to the next
            stage, or is deleted after the last.
        keep_s: In place of ``keep_newest``: how long each stays. Without both, until the end of
            the run.
        keep_every: Only every so manyeth of those that come is taken in, the others are deleted.

    Raises:
        ConfigError: Both are given, or a value is out of its bounds.
    """

    storage: str
    keep_newest: int | None = None
    keep_s: float | None = None
    keep_every: int = 1

    def __post_init__(self) -> None:
        """Check the values."""
        if self.keep_newest is not None and self.keep_s is not None:
            raise ConfigError(
                f"keep_newest and keep_s are both given for {self.storage}: give one of them.",
                field="keep_newest",
            )
        if self.keep_newest is not None:
            require_number("keep_newest", self.keep_newest, minimum=1, maximum=1e9)
        if self.keep_s is not None:
            require_number("keep_s", self.keep_s, minimum=0.0, maximum=DURATION_MAX_S)
        require_number("keep_every", self.keep_every, minimum=1, maximum=1e9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """What passes through one stage during the run.

    Attributes:
        stage: Where.
        first_s: When the first comes, seconds after the beginning of the run.
        per_s: Checkpoints per second that come from then on.
        stay_s: How long each stays; ends with the run.
        run_s: Duration of the run.
    """

    stage: Stage
    first_s: float
    per_s: float
    stay_s: float
    run_s: float

    @property
    def num_in(self) -> float:
        """Checkpoints that come."""
        return self.per_s * max(self.run_s - self.first_s, 0.0)

    @property
    def num_out(self) -> float:
        """Checkpoints that have stayed long enough before the run ends, and leave."""
        return self.per_s * max(self.run_s - self.first_s - self.stay_s, 0.0)

    @property
    def peak(self) -> float:
        """Most checkpoints that are here at one time."""
        return self.kept_at(self.run_s)

    def kept_at(self, at_s: float) -> float:
        """Give how many are here at a time, in seconds after the beginning of the run."""
        return self.per_s * min(max(at_s - self.first_s, 0.0), self.stay_s)

    def kept_s(self, minimum_s: float = 0.0) -> float:
        """Give the checkpoint-seconds of the run, each charged for at least ``minimum_s``.

        With the time h that is left when the first comes and k = min(stay, h), those that stay for
        k come during h - k; the others stay between 0 and k. The minimum replaces what is shorter.
        """
        left = max(self.run_s - self.first_s, 0.0)
        stay = min(self.stay_s, left)
        if minimum_s >= stay:
            return self.per_s * minimum_s * left
        return self.per_s * (stay * (left - stay) + (stay**2 + minimum_s**2) / 2)


def flows(stages: Sequence[Stage], *, interval_s: float, run_s: float) -> list[Flow]:
    """Follow the checkpoints of a run through the stages.

    Args:
        stages: In the order in which a checkpoint passes them.
        interval_s: Seconds from one checkpoint to the next, above 0.
        run_s: Duration of the run in seconds, above 0.

    Returns:
        One flow per stage.
    """
    found = []
    first_s, per_s = 0.0, 1.0 / interval_s
    for stage in stages:
        per_s /= stage.keep_every
        stay_s = DURATION_MAX_S if stage.keep_s is None else stage.keep_s
        if stage.keep_newest is not None:
            stay_s = stage.keep_newest / per_s
        found.append(Flow(stage=stage, first_s=first_s, per_s=per_s, stay_s=stay_s, run_s=run_s))
        first_s += stay_s
    return found


def capacity_over_time(
    stages: Sequence[Stage],
    checkpoint_bytes: float,
    *,
    interval_s: float,
    run_s: float,
    num_points: int = 61,
) -> list[tuple[float, dict[str, float]]]:
    """Give what is kept during a run, for plots.

    Returns:
        Evenly spaced (seconds after the beginning, bytes by name of the storage), at least two.
    """
    through = flows(stages, interval_s=interval_s, run_s=run_s)
    points = []
    for n in range(max(num_points, 2)):
        at_s = run_s * n / (max(num_points, 2) - 1)
        kept: dict[str, float] = {}
        for flow in through:
            name = flow.stage.storage
            kept[name] = kept.get(name, 0.0) + flow.kept_at(at_s) * checkpoint_bytes
        points.append((at_s, kept))
    return points
