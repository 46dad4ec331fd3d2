"""One simulated run after the other, compiled by numba; :mod:`gdsckpt.planning.simulate` calls it.

The state of a run is an array of float64, so that each function below stays small and is inlined;
the names of its places come first. Time and work are in seconds. A run is a sequence of phases
(train, wait, stall, restart), each cut off by the next failure or by the end of the run. What
happens beside the training, commits and uploads, is caught up with (:func:`_settle`) whenever the
training looks.

Without failures a run soon repeats itself, so most of it need not be gone through: where it is
in a state that it was in before, but for the time and the work, whole periods are jumped over
(:func:`_jump`). A run then costs as much as it has failures, not saves.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numba import njit

_Function = TypeVar("_Function", bound=Callable[..., Any])


def _fast(function: _Function) -> _Function:
    """Compile a function, and keep the machine code where numba finds a directory for it."""
    try:
        compiled: _Function = njit(nogil=True, error_model="numpy", cache=True)(function)
    except RuntimeError:  # "no locator available": neither the package nor a home can be written
        compiled = njit(nogil=True, error_model="numpy")(function)
    return compiled


# What a run gives back, a row of the result; the first five add up to its duration.
USEFUL, STALL, WAIT, LOST, RESTART = 0, 1, 2, 3, 4
NUM_PROCESS, NUM_NODE, NUM_PREEMPTED, NUM_SAVES, NUM_UPLOADS, NUM_SKIPPED = 5, 6, 7, 8, 9, 10
NUM_RESULTS = 11
# What else there is to know of it.
NOW, NEXT_FAILURE, LOCAL, REMOTE = 11, 12, 13, 14
COMMIT_WORK, COMMIT_AT, COMMIT_UPLOADED, SINCE_UPLOAD, NUM_QUEUED = 15, 16, 17, 18, 19
NUM_STATES = 20

# What it is given.
RUN, INTERVAL, EVERY, CAPACITY, SKIPS = 0, 1, 2, 3, 4
SAVE_STALL, SAVE_COMMIT, UPLOAD = 5, 6, 7
AFTER_PROCESS, AFTER_NODE, AFTER_PREEMPTION, SURVIVES_PREEMPTION = 8, 9, 10, 11
RATE_PROCESS, RATE_NODE, RATE_PREEMPTION = 12, 13, 14
NUM_GIVEN = 15

# What must be the same for the run to repeat itself follows what then grows by the same.
GROWING = (NOW, USEFUL, STALL, WAIT, NUM_SAVES, NUM_UPLOADS, NUM_SKIPPED)
NUM_GROWING = 7
SAME_S = 1e-7

_u64 = np.uint64


@_fast
def _uniform(random: Any) -> Any:
    """Give a number in [0, 1) from 53 bits of splitmix64.

    Source: S. Vigna, "splitmix64.c", prng.di.unimi.it (public domain).
    """
    random[0] += _u64(0x9E3779B97F4A7C15)
    z = random[0]
    z = (z ^ (z >> _u64(30))) * _u64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> _u64(27))) * _u64(0x94D049BB133111EB)
    z = z ^ (z >> _u64(31))
    return float(z >> _u64(11)) * 2.0**-53


@_fast
def _draw_failure(state: Any, given: Any, random: Any) -> None:
    total = given[RATE_PROCESS] + given[RATE_NODE] + given[RATE_PREEMPTION]
    state[NEXT_FAILURE] = math.inf
    if total > 0:
        state[NEXT_FAILURE] = state[NOW] - math.log1p(-_uniform(random)) / total


@_fast
def _pass_until(state: Any, given: Any, end: Any, column: Any) -> Any:
    """Let time pass, and say whether the end was reached; a failure or the end of the run cuts."""
    stop = min(end, state[NEXT_FAILURE], given[RUN])
    state[column] += stop - state[NOW]
    state[NOW] = stop
    return stop == end


@_fast
def _finish_uploads(state: Any, queue: Any, until: Any) -> None:
    while state[NUM_QUEUED] > 0 and queue[0, 1] <= until:
        state[REMOTE] = queue[0, 0]
        state[NUM_UPLOADS] += 1
        state[NUM_QUEUED] -= 1
        for n in range(int(state[NUM_QUEUED])):
            queue[n, 0] = queue[n + 1, 0]
            queue[n, 1] = queue[n + 1, 1]


@_fast
def _begin_upload(state: Any, given: Any, queue: Any) -> None:
    """Queue the save that was committed just now; where the queue is full, the newest gives way."""
    count = int(state[NUM_QUEUED])
    if count < int(given[CAPACITY]):
        begin = max(state[COMMIT_AT], queue[count - 1, 1]) if count else state[COMMIT_AT]
        queue[count, 0] = state[COMMIT_WORK]
        queue[count, 1] = begin + given[UPLOAD]
        state[NUM_QUEUED] += 1
        return
    state[NUM_SKIPPED] += 1
    if count > 1:  # the first is under way
        queue[count - 1, 0] = state[COMMIT_WORK]


@_fast
def _settle(state: Any, given: Any, queue: Any) -> None:
    """Catch up with what was committed and uploaded until now, in the order of its time."""
    if state[COMMIT_AT] <= state[NOW]:
        _finish_uploads(state, queue, state[COMMIT_AT])
        state[LOCAL] = state[COMMIT_WORK]
        if state[COMMIT_UPLOADED] > 0:
            _begin_upload(state, given, queue)
        state[COMMIT_AT] = math.inf
    _finish_uploads(state, queue, state[NOW])


@_fast
def _save(state: Any, given: Any, queue: Any) -> Any:
    """Save once, after waiting for the earlier commit and for room; say whether it got through."""
    if state[COMMIT_AT] < math.inf and not _pass_until(
        state, given, max(state[COMMIT_AT], state[NOW]), WAIT
    ):
        return False
    _settle(state, given, queue)
    is_uploaded = state[SINCE_UPLOAD] + 1 >= given[EVERY]
    while is_uploaded and given[SKIPS] == 0 and state[NUM_QUEUED] >= given[CAPACITY]:
        if not _pass_until(state, given, max(queue[0, 1], state[NOW]), WAIT):
            return False
        _settle(state, given, queue)
    state[COMMIT_WORK] = state[USEFUL]
    state[COMMIT_AT] = state[NOW] + given[SAVE_COMMIT]
    state[COMMIT_UPLOADED] = 1.0 if is_uploaded else 0.0
    state[SINCE_UPLOAD] = 0.0 if is_uploaded else state[SINCE_UPLOAD] + 1
    state[NUM_SAVES] += 1
    return _pass_until(state, given, state[NOW] + given[SAVE_STALL], STALL)


@_fast
def _drop_commit(state: Any, given: Any) -> None:
    """Forget the save that had not been committed, as its process is gone."""
    if state[COMMIT_AT] < math.inf:
        state[SINCE_UPLOAD] = (
            given[EVERY] if state[COMMIT_UPLOADED] > 0 else state[SINCE_UPLOAD]
        ) - 1
        state[COMMIT_AT] = math.inf


@_fast
def _go_back(state: Any, work: Any) -> None:
    state[LOST] += state[USEFUL] - work
    state[USEFUL] = work


@_fast
def _fail(state: Any, given: Any, queue: Any, random: Any) -> Any:
    """Let the failure happen that is due, and give the seconds that the restart takes."""
    _settle(state, given, queue)
    total = given[RATE_PROCESS] + given[RATE_NODE] + given[RATE_PREEMPTION]
    kind = _uniform(random) * total
    _draw_failure(state, given, random)
    if kind < given[RATE_PROCESS]:
        state[NUM_PROCESS] += 1
        _drop_commit(state, given)
        _go_back(state, state[LOCAL])
        return given[AFTER_PROCESS]
    is_node = kind < given[RATE_PROCESS] + given[RATE_NODE]
    state[NUM_NODE if is_node else NUM_PREEMPTED] += 1
    if is_node or given[SURVIVES_PREEMPTION] == 0:
        _go_back(state, state[REMOTE])
    state[LOCAL] = state[USEFUL]
    state[REMOTE] = state[USEFUL]
    state[COMMIT_AT] = math.inf
    state[NUM_QUEUED] = 0
    state[SINCE_UPLOAD] = 0
    return given[AFTER_NODE] if is_node else given[AFTER_PREEMPTION]


@_fast
def _mark(state: Any, queue: Any, mark: Any) -> None:
    """Write down what grows, and the state relative to now and to the work done."""
    for n in range(NUM_GROWING):
        mark[n] = state[GROWING[n]]
    mark[7] = state[COMMIT_AT] - state[NOW]
    mark[8] = state[LOCAL] - state[USEFUL]
    mark[9] = state[REMOTE] - state[USEFUL]
    mark[10] = state[NUM_QUEUED]
    for n in range(int(state[NUM_QUEUED])):
        mark[11 + 2 * n] = queue[n, 0] - state[USEFUL]
        mark[12 + 2 * n] = queue[n, 1] - state[NOW]


@_fast
def _is_like(state: Any, queue: Any, mark: Any) -> Any:
    """Say whether the state is that of the mark, but for the time and the work."""
    if state[NUM_QUEUED] != mark[10] or not (
        abs(state[REMOTE] - state[USEFUL] - mark[9]) < SAME_S
        and abs(state[LOCAL] - state[USEFUL] - mark[8]) < SAME_S
        and abs(state[COMMIT_AT] - state[NOW] - mark[7]) < SAME_S
    ):
        return False
    for n in range(int(state[NUM_QUEUED])):
        if not (
            abs(queue[n, 0] - state[USEFUL] - mark[11 + 2 * n]) < SAME_S
            and abs(queue[n, 1] - state[NOW] - mark[12 + 2 * n]) < SAME_S
        ):
            return False
    return True


@_fast
def _jump(state: Any, given: Any, queue: Any, mark: Any, search: Any) -> None:
    """Jump over whole periods up to the next failure, if the run is as it was at the mark.

    A period may take several uploads, so the mark stays for 1, 2, 4, .. of them (R. P. Brent, "An
    improved Monte Carlo factorization algorithm", BIT 20, 1980); ``search`` has how many of how
    many have passed.
    """
    if search[1] > 0 and _is_like(state, queue, mark):
        period = state[NOW] - mark[0]
        left = min(state[NEXT_FAILURE], given[RUN]) - state[NOW]
        times = math.floor(left / period) - 1
        if times > 0:
            work = times * (state[USEFUL] - mark[1])
            for n in range(NUM_GROWING):
                state[GROWING[n]] += times * (state[GROWING[n]] - mark[n])
            state[COMMIT_AT] += times * period
            state[COMMIT_WORK] += work
            state[LOCAL] += work
            state[REMOTE] += work
            for n in range(int(state[NUM_QUEUED])):
                queue[n, 0] += work
                queue[n, 1] += times * period
            search[1] = 0
    search[0] += 1
    if search[0] >= search[1]:
        _mark(state, queue, mark)
        search[0] = 0
        search[1] = max(2 * search[1], 1)


@_fast
def _run(state: Any, given: Any, queue: Any, random: Any, mark: Any) -> None:
    state[:] = 0.0
    state[COMMIT_AT] = math.inf
    search = np.zeros(2)
    _draw_failure(state, given, random)
    work = given[INTERVAL] - given[SAVE_STALL]
    while state[NOW] < given[RUN]:
        if _pass_until(state, given, state[NOW] + work, USEFUL) and _save(state, given, queue):
            if state[SINCE_UPLOAD] == 0:
                _jump(state, given, queue, mark, search)
            continue
        search[:] = 0.0
        while state[NOW] < given[RUN]:
            pause = _fail(state, given, queue, random)
            if _pass_until(state, given, state[NOW] + pause, RESTART):
                break


@_fast
def simulate_runs(given: Any, seed: Any, first: Any, results: Any) -> None:
    """Simulate runs ``first`` to ``first + len(results)``, a row of ``results`` each.

    A run depends on the seed and its number only, so any cut of the runs gives the same.
    """
    state = np.zeros(NUM_STATES)
    queue = np.zeros((int(given[CAPACITY]) + 1, 2))
    random = np.zeros(1, dtype=np.uint64)
    mark = np.zeros(11 + 2 * queue.shape[0])
    for n in range(results.shape[0]):
        random[0] = (_u64(seed) << _u64(32)) ^ _u64(first + n)
        random[0] = _u64(_uniform(random) * 2.0**53) << _u64(11)
        _run(state, given, queue, random, mark)
        for column in range(NUM_RESULTS):
            results[n, column] = state[column]
