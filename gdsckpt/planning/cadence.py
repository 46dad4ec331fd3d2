"""How often to save: Young's and Daly's optimum, and the goodput of saves to two places.

Words used here. A save begins every ``interval_s``; the training stands still for ``stall_s`` of
it, so ``interval_s - stall_s`` is trained between two saves. The copy counts on the local drives
``commit_s`` after the save began and in the bucket ``upload_s`` after that. Goodput is the share of
the wall time whose training was not lost again.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gdsckpt.errors import ConfigError
from gdsckpt.planning.band import Band
from gdsckpt.planning.failures import Cases, FailureRates, require_number

INTERVAL_MAX_S = 365 * 86400.0
"""Longest interval that is looked at, one year."""

_UPLOAD_EVERY_CHOICES = (*range(1, 17), 20, 24, 30, 32, 48, 60, 64, 96, 128)
_GOLDEN = (math.sqrt(5) - 1) / 2
_BACK_PRESSURE = ("wait", "skip")


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveCosts:
    """What one save, and getting going again, takes; all in seconds.

    A synchronous save to storage that outlives the node has ``stall_s == commit_s`` and
    ``upload_s == 0``.

    Attributes:
        stall_s: For how long the training stands still.
        commit_s: From the beginning of a save until its local copy counts, at least ``stall_s``.
        upload_s: From then until the copy in the bucket counts; one upload at a time.
        restart_s: From a failure until a process can read its checkpoint: noticing it, a new
            node, start of the program, process groups.
        restore_local_s: Loading from local drives.
        restore_remote_s: Loading from the bucket.
        preemption_notice_s: Warning before a spot instance is taken; 120 s at EC2 ("Spot Instance
            interruption notices", EC2 User Guide).
        preemption_wait_s: Until there is another in its place.

    Raises:
        ConfigError: A value is negative or not finite, or ``commit_s`` is below ``stall_s``.
    """

    stall_s: float
    commit_s: float
    upload_s: float = 0.0
    restart_s: float = 0.0
    restore_local_s: float = 0.0
    restore_remote_s: float = 0.0
    preemption_notice_s: float = 0.0
    preemption_wait_s: float = 0.0

    def __post_init__(self) -> None:
        """Check the values."""
        for field in dataclasses.fields(self):
            require_number(field.name, getattr(self, field.name), minimum=0.0)
        if self.commit_s < self.stall_s:
            raise ConfigError(
                f"commit_s is {self.commit_s:g}, less than the stall of {self.stall_s:g} s: the "
                "training goes on at the commit at the latest.",
                field="commit_s",
            )

    @classmethod
    def cases(cls, **bands: Band | float) -> Cases[SaveCosts]:
        """Make the best, likely and worst costs from bands of the fields.

        A band of ``preemption_notice_s`` counts the other way round: the longer the better.
        """
        taken = {name: Band.of(band) for name, band in bands.items()}

        def at(end: str) -> SaveCosts:
            other = {"low": "high", "high": "low", "mid": "mid"}[end]
            values = {
                name: getattr(band, other if name == "preemption_notice_s" else end)
                for name, band in taken.items()
            }
            return cls(**values)

        return Cases(best=at("low"), likely=at("mid"), worst=at("high"))

    @property
    def survives_preemption(self) -> bool:
        """Whether a save that begins with the notice is in the bucket before the node goes."""
        return self.commit_s + self.upload_s <= self.preemption_notice_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """When saves and uploads are made.

    Attributes:
        interval_s: From the beginning of one save to that of the next, without failures.
        upload_every: Every so manyeth save is uploaded, at least 1.
        back_pressure: ``wait``: a save that is to be uploaded waits until there is room for it;
            ``skip``: an upload is left out in its place.
        max_in_flight: Checkpoints that the drives hold beside the newest: one is being uploaded,
            the others wait; 1 to 64.

    Raises:
        ConfigError: A value is out of its bounds.
    """

    interval_s: float
    upload_every: int = 1
    back_pressure: str = "wait"
    max_in_flight: int = 2

    def __post_init__(self) -> None:
        """Check the values."""
        require_number("interval_s", self.interval_s, minimum=1e-3, maximum=INTERVAL_MAX_S)
        require_number("upload_every", self.upload_every, minimum=1, maximum=1e6)
        require_number("max_in_flight", self.max_in_flight, minimum=1, maximum=64)
        if self.back_pressure not in _BACK_PRESSURE:
            raise ConfigError(
                f"back_pressure is {self.back_pressure!r}. Allowed: {', '.join(_BACK_PRESSURE)}.",
                field="back_pressure",
            )

    @property
    def upload_interval_s(self) -> float:
        """Seconds from one upload to the next."""
        return self.interval_s * self.upload_every


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """What becomes of the wall time; the shares add up to 1.

    Attributes:
        useful_share: Trained and kept: the goodput.
        stall_share: The training stood still for saves.
        wait_share: Saves waited for earlier commits and uploads (back-pressure).
        lost_share: Work of any kind that was done again.
        restart_share: From failures until the training went on.
        lost_per_process_failure_s: Training lost at a failure that leaves the local copies, mean.
        lost_per_node_loss_s: Training lost at a failure that takes them away, mean.
        keeps_up: Whether commits and uploads are done before the next begin. Where not, the
            simulation tells more than this.
    """

    useful_share: float
    stall_share: float
    wait_share: float
    lost_share: float
    restart_share: float
    lost_per_process_failure_s: float
    lost_per_node_loss_s: float
    keeps_up: bool

    def as_dict(self) -> dict[str, Any]:
        """Give the fields as values that JSON has."""
        return dataclasses.asdict(self)


def young_interval_s(stall_s: float, mtbf_s: float) -> float:
    """Give Young's optimum: the seconds to train between two saves.

    First order in ``stall_s / mtbf_s``: sqrt(2 stall mtbf).

    Source: J. W. Young, "A first order approximation to the optimum checkpoint interval",
    Communications of the ACM 17(9), 1974.
    """
    require_number("stall_s", stall_s, minimum=0.0)
    require_number("mtbf_s", mtbf_s, minimum=0.0)
    return math.sqrt(2 * stall_s * mtbf_s)


def daly_interval_s(stall_s: float, mtbf_s: float) -> float:
    """Give Daly's higher-order optimum: the seconds to train between two saves.

    Source: J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart
    dumps", Future Generation Computer Systems 22(3), 2006, equation 37.
    """
    require_number("stall_s", stall_s, minimum=0.0)
    require_number("mtbf_s", mtbf_s, minimum=0.0)
    if stall_s >= 2 * mtbf_s:
        return mtbf_s
    ratio = stall_s / (2 * mtbf_s)
    series = 1 + math.sqrt(ratio) / 3 + ratio / 9
    return math.sqrt(2 * stall_s * mtbf_s) * series - stall_s


def exact_interval_s(stall_s: float, mtbf_s: float) -> float:
    """Give the seconds to train between two saves that minimise Daly's exact run time.

    The minimum of ``(exp((t + stall) / mtbf) - 1) / t`` is where (1 - x) exp(x) = exp(-stall /
    mtbf) with x = t / mtbf. Bisection; both sides fall monotonically for x in 0 to 1.
    """
    require_number("stall_s", stall_s, minimum=0.0)
    require_number("mtbf_s", mtbf_s, minimum=1e-9)
    wanted = -stall_s / mtbf_s
    low, high = 0.0, 1.0
    for _ in range(80):
        x = (low + high) / 2
        if x < 1 and math.log1p(-x) + x > wanted:
            low = x
        else:
            high = x
    return mtbf_s * (low + high) / 2


def goodput(rates: FailureRates, costs: SaveCosts, schedule: Schedule) -> Goodput:
    """Give the goodput in closed form.

    With one place to save to and one kind of failure it is exact: the expected time to get through
    a segment s without a failure of rate r is (exp(r s) - 1) / r, and a copy that counts only a
    latency l later multiplies this by exp(r l) (Daly 2006, equation 13, has l = 0). For two places
    the factors are multiplied, the segment of the second stretched by the first: of second order
    in ``interval / mtbf``. Failures while restarting begin the restart again.
    """
    stall = min(costs.stall_s, schedule.interval_s)
    work = schedule.interval_s - stall
    segment = _stretched_s(costs, schedule)
    local_latency = costs.commit_s - costs.stall_s
    remote_latency = local_latency + costs.upload_s
    remote_segment = max(schedule.upload_every * segment, costs.upload_s)
    saved, lost = rates.preemption_per_s, rates.node_per_s
    if not costs.survives_preemption:
        saved, lost = 0.0, lost + saved
    local_kept = _kept_share(rates.process_per_s, segment, local_latency)
    remote_kept = _kept_share(lost, remote_segment / max(local_kept, 1e-300), remote_latency)
    kept = local_kept * remote_kept
    computing = 1 / (1 + _restarts_s_per_s(rates, costs))
    trained = work / segment
    return Goodput(
        useful_share=computing * trained * kept,
        stall_share=computing * stall / segment,
        wait_share=computing * (segment - schedule.interval_s) / segment,
        lost_share=computing * trained * (1 - kept),
        restart_share=1 - computing,
        lost_per_process_failure_s=work / 2 + local_latency,
        lost_per_node_loss_s=(remote_segment / 2 + remote_latency) * trained,
        keeps_up=segment <= schedule.interval_s * (1 + 1e-9)
        and costs.upload_s <= schedule.upload_interval_s,
    )


def goodput_band(rates: Cases[FailureRates], costs: Cases[SaveCosts], schedule: Schedule) -> Band:
    """Give the goodput of a schedule, low with the worst inputs and high with the best."""
    ends = sorted(
        goodput(each_rates, each_costs, schedule).useful_share
        for each_rates, each_costs in (
            (rates.best, costs.best),
            (rates.likely, costs.likely),
            (rates.worst, costs.worst),
        )
    )
    return Band(ends[0], ends[1], ends[2])


def best_schedule(
    rates: FailureRates, costs: SaveCosts, *, upload_every: int | None = None
) -> Schedule:
    """Give the schedule with the highest goodput, by search over the closed form.

    Args:
        rates: Failures of the job; at least one rate above 0.
        costs: What a save takes.
        upload_every: Which saves are uploaded; None looks for that too, fewest uploads among
            equals.

    Raises:
        ConfigError: Nothing ever fails, so there is no optimum.
    """
    if rates.total_per_s <= 0:
        raise ConfigError(
            "mtbf is infinite, so the best interval is too: give a failure rate.", field="mtbf"
        )
    choices = _UPLOAD_EVERY_CHOICES if upload_every is None else (upload_every,)
    best: tuple[float, Schedule] | None = None
    for every in choices:
        schedule = _best_interval(rates, costs, every)
        share = goodput(rates, costs, schedule).useful_share
        if best is None or share > best[0] * (1 + 1e-12):
            best = (share, schedule)
    assert best is not None
    return best[1]


def best_interval_band(
    rates: Cases[FailureRates], costs: Cases[SaveCosts], *, upload_every: int = 1
) -> Band:
    """Give the best interval in seconds: shortest for many failures and cheap saves."""
    values = sorted(
        best_schedule(each_rates, each_costs, upload_every=upload_every).interval_s
        for each_rates, each_costs in (
            (rates.worst, costs.best),
            (rates.likely, costs.likely),
            (rates.best, costs.worst),
        )
    )
    return Band(values[0], values[1], values[2])


def _best_interval(rates: FailureRates, costs: SaveCosts, every: int) -> Schedule:
    """Golden-section search; goodput has one maximum over the interval."""
    shortest = max(costs.stall_s * (1 + 1e-6), costs.commit_s, costs.upload_s / every, 1e-2)
    shortest = min(shortest, INTERVAL_MAX_S)

    def share(log_interval: float) -> float:
        interval = min(math.exp(log_interval), INTERVAL_MAX_S)
        schedule = Schedule(interval_s=interval, upload_every=every)
        return goodput(rates, costs, schedule).useful_share

    found = math.exp(_argmax(share, math.log(shortest), math.log(INTERVAL_MAX_S)))
    return Schedule(interval_s=min(found, INTERVAL_MAX_S), upload_every=every)


def _argmax(function: Callable[[float], float], low: float, high: float) -> float:
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_left, at_right = function(left), function(right)
    while high - low > 1e-6:
        if at_left >= at_right:
            high, right, at_right = right, left, at_left
            left = high - _GOLDEN * (high - low)
            at_left = function(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + _GOLDEN * (high - low)
            at_right = function(right)
    return low if function(low) >= max(at_left, at_right) else (low + high) / 2


def _stretched_s(costs: SaveCosts, schedule: Schedule) -> float:
    """Give the interval that results when saves wait for earlier commits and uploads."""
    segment = max(schedule.interval_s, costs.commit_s)
    if schedule.back_pressure == "wait":
        segment = max(segment, costs.upload_s / schedule.upload_every)
    return segment


def _kept_share(rate_per_s: float, segment_s: float, latency_s: float) -> float:
    """Give the share of the computing that is not done again: r s exp(-r l) / (exp(r s) - 1)."""
    x = rate_per_s * segment_s
    if x > 700:
        return 0.0
    kept = 1 - x / 2 if x < 1e-9 else x / math.expm1(x)
    return kept * math.exp(-rate_per_s * latency_s)


def _restarts_s_per_s(rates: FailureRates, costs: SaveCosts) -> float:
    """Give the seconds of restarting per second of computing."""
    total = rates.total_per_s
    if total <= 0:
        return 0.0
    remote = costs.restart_s + costs.restore_remote_s
    preempted = remote + costs.preemption_wait_s
    if costs.survives_preemption:
        preempted += costs.commit_s + costs.upload_s
    mean = (
        rates.process_per_s * (costs.restart_s + costs.restore_local_s)
        + rates.node_per_s * remote
        + rates.preemption_per_s * preempted
    ) / total
    return math.expm1(min(total * mean, 700.0))
