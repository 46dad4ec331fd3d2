"""Which steps of a root stay, and which may go first when the drive is full. Pure: no files."""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from gdsckpt.errors import ConfigError, StorageError
from gdsckpt.staging import root as roots
from gdsckpt.staging.root import StepEntry

BEST = ("min", "max")


@dataclass(frozen=True, slots=True)
class Policy:
    """What stays; a step that any of the rules keeps does.

    Attributes:
        keep_local: So many of the newest steps, at least 1.
        keep_every: Every step that is a multiple of this; None for no such rule.
        keep_best: So many of the steps with the best metric; those without one are not among them.
        best: Whether the smallest (``min``) or the largest (``max``) metric is the best.

    Raises:
        ConfigError: A value is out of its bounds.
    """

    keep_local: int = 3
    keep_every: int | None = None
    keep_best: int = 0
    best: str = "min"

    def __post_init__(self) -> None:
        """Check the values."""
        _require_whole("keep_local", self.keep_local, 1)
        _require_whole("keep_best", self.keep_best, 0)
        if self.keep_every is not None:
            _require_whole("keep_every", self.keep_every, 1)
        if self.best not in BEST:
            raise ConfigError(f"best is {self.best!r}. Allowed: min, max.", field="best")


@dataclass(frozen=True, slots=True)
class Decision:
    """What becomes of one step.

    Attributes:
        step: The step.
        is_kept: Whether it stays.
        why: Which rule keeps it, or that none does.
    """

    step: int
    is_kept: bool
    why: str


def decide(
    metrics: Mapping[int, float | None], policy: Policy, protected: Collection[int] = ()
) -> list[Decision]:
    """Decide on each complete step of a root, in ascending order.

    Args:
        metrics: By step, what its saver measured it by; None or NaN for nothing.
        policy: What stays.
        protected: Steps that stay in any case, such as those that are being uploaded.

    Returns:
        One decision per step. The newest is always kept.
    """
    steps = sorted(metrics)
    newest = set(steps[-policy.keep_local :])
    best = set(_best(metrics, policy))
    every = policy.keep_every
    decisions = []
    for step in steps:
        if step == steps[-1]:
            why = "the newest"
        elif step in newest:
            why = f"one of the {policy.keep_local} newest"
        elif step in best:
            why = f"one of the {policy.keep_best} with the best metric ({metrics[step]})"
        elif every is not None and step % every == 0:
            why = f"a multiple of {every}"
        elif step in protected:
            why = "in use"
        else:
            decisions.append(Decision(step, is_kept=False, why=_why_not(policy)))
            continue
        decisions.append(Decision(step, is_kept=True, why=why))
    return decisions


def steps_to_prune(
    entries: Iterable[StepEntry], policy: Policy, protected: Collection[int] = ()
) -> list[int]:
    """Give the complete steps that :func:`decide` does not keep, in ascending order.

    Those stay too without which a superseded step would count as complete again.
    """
    found = list(entries)
    decisions = decide(metrics_of(found), policy, {*protected, *superseding(found)})
    return [each.step for each in decisions if not each.is_kept]


def superseding(entries: Iterable[StepEntry]) -> set[int]:
    """Give the complete steps by which the superseded ones are known to be so.

    Usually there are none, since superseded steps are set aside before anything is pruned; one that
    is being read is not.
    """
    found = list(entries)
    needed = set()
    for left in found:
        if left.state == roots.SUPERSEDED:
            earlier = [entry for entry in roots.complete(found) if entry.step < left.step]
            needed |= {max(earlier, key=lambda entry: entry.sequence).step} if earlier else set()
    return needed


def metrics_of(entries: Iterable[StepEntry]) -> dict[int, float | None]:
    """Give the metrics of the complete steps of a root."""
    return {entry.step: entry.metric for entry in roots.complete(entries)}


@dataclass(frozen=True, slots=True, kw_only=True)
class NewStep:
    """A step that is about to be saved.

    Attributes:
        step: The step.
        metric: What its saver measures it by, if anything.
        nbytes: Bytes that it needs.
        path: Where, for messages.
    """

    step: int
    metric: float | None
    nbytes: int
    path: str | os.PathLike[str]


def prunable_for(
    new: NewStep,
    entries: Sequence[StepEntry],
    policy: Policy,
    protected: Collection[int] = (),
) -> list[StepEntry]:
    """Give the entries that may go already before a new step is there, in ascending order.

    These are the ones that the policy would prune once it is there, but the newest complete one:
    a crash before the commit has to leave that. Complete ones after the new step are about to be
    superseded; none of them goes for it.
    """
    newest = roots.newest(entries)
    before = [entry for entry in roots.complete(entries) if entry.step < new.step]
    needed = {*protected, *superseding(entries)}
    decisions = decide({**metrics_of(before), new.step: new.metric}, policy, needed)
    pruned = {each.step for each in decisions if not each.is_kept}
    return [entry for entry in before if entry.step in pruned and entry is not newest]


def to_free(
    new: NewStep,
    free_bytes: int | None,
    entries: Sequence[StepEntry],
    policy: Policy,
    protected: Collection[int] = (),
) -> list[StepEntry]:
    """Choose the entries to prune before a save, so that it fits; the first ones first.

    Args:
        new: The step to be saved.
        free_bytes: On its file system; None where that does not say.
        entries: Of the root, as scanned.
        policy: What stays.
        protected: Steps that stay in any case.

    Returns:
        As few of the oldest of :func:`prunable_for` as are enough; none where it fits already.

    Raises:
        StorageError: It would not fit even then (``errno`` is ENOSPC); nothing was pruned.
    """
    if free_bytes is None:
        return []
    chosen: list[StepEntry] = []
    available = free_bytes
    for entry in prunable_for(new, entries, policy, protected):
        if available >= new.nbytes:
            break
        chosen.append(entry)
        available += entry.nbytes
    if available >= new.nbytes:
        return chosen
    raise StorageError(
        f"save of {new.nbytes} bytes to {os.fspath(new.path)} cannot fit: {free_bytes} bytes are "
        f"free on its file system, and {available} would be after pruning what may go (errno "
        f"{errno.ENOSPC}). Free space there, lower keep_local or choose another root.",
        op="save",
        path=new.path,
        offset=0,
        nbytes=new.nbytes,
        errno=errno.ENOSPC,
    )


def _best(metrics: Mapping[int, float | None], policy: Policy) -> list[int]:
    """Give the steps with the best metrics; of equal ones the later."""
    sign = 1.0 if policy.best == "min" else -1.0
    ranked = sorted(
        (sign * metric, -step)
        for step, metric in metrics.items()
        if metric is not None and not math.isnan(metric)
    )
    return [-negative for _, negative in ranked[: policy.keep_best]]


def _why_not(policy: Policy) -> str:
    """Say which rules do not keep a step."""
    rules = [f"not one of the {policy.keep_local} newest"]
    if policy.keep_best:
        rules.append(f"of the {policy.keep_best} with the best metric")
    if policy.keep_every is not None:
        rules.append(f"a multiple of {policy.keep_every}")
    return ", nor ".join(rules)


def _require_whole(name: str, value: object, minimum: int) -> None:
    if type(value) is not int or value < minimum:
        raise ConfigError(
            f"{name} is {value!r}. Give a whole number of at least {minimum}.", field=name
        )
