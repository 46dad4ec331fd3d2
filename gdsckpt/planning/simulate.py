"""A Monte-Carlo simulation of runs: failures, saves, uploads, restores and back-pressure.

What the closed form of :mod:`gdsckpt.planning.cadence` leaves out is here: saves that wait for
earlier commits and for room on the drives, uploads that are skipped, copies that were on their way
when a node was lost, failures while a restart is under way, and the spread between runs.
"""

from __future__ import annotations

import dataclasses
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gdsckpt.errors import ConfigError
from gdsckpt.planning.band import Band
from gdsckpt.planning.cadence import SaveCosts, Schedule
from gdsckpt.planning.failures import DAY_S, FailureRates, require_number

if TYPE_CHECKING:
    import numpy as np

NUM_SAVES_MAX = 2e9
"""More saves over all runs are refused: they would take minutes."""

_LOW, _HIGH = 5.0, 95.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationSettings:
    """How much is simulated.

    Attributes:
        run_s: Wall time of one run in seconds.
        num_runs: How many runs, 1 to 1,000,000.
        seed: Equal seeds give equal results; 0 to 2**31 - 1.

    Raises:
        ConfigError: A value is out of its bounds.
    """

    run_s: float = 30 * DAY_S
    num_runs: int = 10_000
    seed: int = 1

    def __post_init__(self) -> None:
        """Check the values."""
        require_number("run_s", self.run_s, minimum=1.0, maximum=3650 * DAY_S)
        require_number("num_runs", self.num_runs, minimum=1, maximum=1_000_000)
        require_number("seed", self.seed, minimum=0, maximum=2**31 - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """What the runs came to. Bands are the 5 % quantile, the median and the 95 % quantile of runs.

    Attributes:
        settings: How much was simulated.
        goodput: Share of the wall time whose training was kept.
        goodput_mean: Its mean over the runs.
        goodput_error: Standard error of that mean.
        stall_share: Mean share for which the training stood still for saves.
        wait_share: Mean share for which saves waited for earlier commits and uploads.
        lost_share: Mean share of training that was done again.
        restart_share: Mean share from failures until the training went on. The five mean shares
            add up to 1.
        lost_s: Training that was lost in a run, in seconds.
        num_failures: Interruptions of a run, of all kinds.
        num_saves: Mean saves of a run.
        num_uploads: Mean uploads of a run that were completed.
        num_skipped: Mean uploads that were left out, as the ones before were not done.
    """

    settings: SimulationSettings
    goodput: Band
    goodput_mean: float
    goodput_error: float
    stall_share: float
    wait_share: float
    lost_share: float
    restart_share: float
    lost_s: Band
    num_failures: Band
    num_saves: float
    num_uploads: float
    num_skipped: float

    def as_dict(self) -> dict[str, Any]:
        """Give the fields as values that JSON has."""
        return dataclasses.asdict(self)


def simulate(
    rates: FailureRates,
    costs: SaveCosts,
    schedule: Schedule,
    *,
    settings: SimulationSettings | None = None,
) -> Simulation:
    """Simulate runs of a job.

    A run begins with a copy in both places. After each failure the training goes on from the
    newest copy that the failure left, trains a whole interval and saves. Uploads go on while the
    trainer restarts (they have a process of their own) but not when a node is lost, as its part of
    the checkpoint is gone.

    Args:
        rates: Failures of the job.
        costs: What a save takes; its stall is less than the interval.
        schedule: When saves and uploads are made.
        settings: How much; the default is 10,000 runs of 30 days.

    Raises:
        ConfigError: numba is missing, the stall is as long as the interval, or it would be more
            than ``NUM_SAVES_MAX`` saves.
    """
    settings = settings or SimulationSettings()
    if costs.stall_s >= schedule.interval_s:
        raise ConfigError(
            f"interval_s is {schedule.interval_s:g}, not longer than the stall of "
            f"{costs.stall_s:g} s: nothing would ever be trained.",
            field="interval_s",
        )
    num_saves = settings.num_runs * settings.run_s / schedule.interval_s
    if num_saves > NUM_SAVES_MAX:
        raise ConfigError(
            f"num_runs is {settings.num_runs}: these are {num_saves:.2g} saves, more than "
            f"{NUM_SAVES_MAX:.2g}. Simulate fewer or shorter runs.",
            field="num_runs",
        )
    return _summary(_rows(rates, costs, schedule, settings), settings)


def _rows(
    rates: FailureRates, costs: SaveCosts, schedule: Schedule, settings: SimulationSettings
) -> np.ndarray[Any, Any]:
    """Simulate on all cores; a row per run, columns as in the kernel."""
    try:
        import numpy as np

        from gdsckpt.planning import simulate_kernel as kernel
    except ImportError as error:
        if (error.name or "").partition(".")[0] == "gdsckpt":
            raise
        raise ConfigError(
            f"--simulate needs numba, which cannot be imported ({error}). Install it with: "
            "pip install 'gdsckpt[plan]'; the closed form works without it.",
            field="simulate",
        ) from error
    after_node_s = costs.restart_s + costs.restore_remote_s
    emergency_s = costs.commit_s + costs.upload_s if costs.survives_preemption else 0.0
    given = np.zeros(kernel.NUM_GIVEN)
    for place, value in (
        (kernel.RUN, settings.run_s),
        (kernel.INTERVAL, schedule.interval_s),
        (kernel.EVERY, schedule.upload_every),
        (kernel.CAPACITY, schedule.max_in_flight),
        (kernel.SKIPS, schedule.back_pressure == "skip"),
        (kernel.SAVE_STALL, costs.stall_s),
        (kernel.SAVE_COMMIT, costs.commit_s),
        (kernel.UPLOAD, costs.upload_s),
        (kernel.AFTER_PROCESS, costs.restart_s + costs.restore_local_s),
        (kernel.AFTER_NODE, after_node_s),
        (kernel.AFTER_PREEMPTION, after_node_s + costs.preemption_wait_s + emergency_s),
        (kernel.SURVIVES_PREEMPTION, costs.survives_preemption),
        (kernel.RATE_PROCESS, rates.process_per_s),
        (kernel.RATE_NODE, rates.node_per_s),
        (kernel.RATE_PREEMPTION, rates.preemption_per_s),
    ):
        given[place] = value
    rows = np.zeros((settings.num_runs, kernel.NUM_RESULTS))
    num_threads = min(len(os.sched_getaffinity(0)), 16)
    pieces = np.array_split(rows, min(num_threads, settings.num_runs))
    firsts = np.cumsum([0, *(len(piece) for piece in pieces[:-1])])
    kernel.simulate_runs(given, settings.seed, 0, rows[:0])  # compile it once, not in each thread
    with ThreadPoolExecutor(num_threads) as threads:
        jobs = [
            threads.submit(kernel.simulate_runs, given, settings.seed, int(first), piece)
            for first, piece in zip(firsts, pieces, strict=True)
        ]
        for job in jobs:
            job.result()
    return rows


def _summary(rows: np.ndarray[Any, Any], settings: SimulationSettings) -> Simulation:
    import numpy as np

    from gdsckpt.planning import simulate_kernel as kernel

    def band(values: Any) -> Band:
        low, mid, high = np.percentile(values, [_LOW, 50.0, _HIGH])
        return Band(float(low), float(mid), float(high))

    shares = rows / settings.run_s
    means = rows.mean(axis=0)
    useful = shares[:, kernel.USEFUL]
    spread = float(useful.std(ddof=1)) if len(rows) > 1 else 0.0
    failures = rows[:, [kernel.NUM_PROCESS, kernel.NUM_NODE, kernel.NUM_PREEMPTED]].sum(axis=1)
    return Simulation(
        settings=settings,
        goodput=band(useful),
        goodput_mean=float(useful.mean()),
        goodput_error=spread / len(rows) ** 0.5,
        stall_share=float(shares[:, kernel.STALL].mean()),
        wait_share=float(shares[:, kernel.WAIT].mean()),
        lost_share=float(shares[:, kernel.LOST].mean()),
        restart_share=float(shares[:, kernel.RESTART].mean()),
        lost_s=band(rows[:, kernel.LOST]),
        num_failures=band(failures),
        num_saves=float(means[kernel.NUM_SAVES]),
        num_uploads=float(means[kernel.NUM_UPLOADS]),
        num_skipped=float(means[kernel.NUM_SKIPPED]),
    )
