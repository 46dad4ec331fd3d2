"""From what was measured of saves behind a training to rows and targets. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from bench.behind import COPY, DCP, FENCE, HOST, SAVE
from bench.behind_rounds import FIO, NOTHING, Beside, SmallSave, Stall
from bench.results import GB, Target

_T = TypeVar("_T")

CALL_MAX_SHARE = 0.02
CALL_MAX_MS_PER_GIB = 10.0
CALL_MIN_TIMES_LESS = 20.0
COPY_MAX_TIMES = 1.6
STEP_MAX_TIMES = 1.10
SMALL_MAX_S = 2.0


def stall_rows(stalls: Mapping[str, Sequence[Stall]]) -> list[dict[str, Any]]:
    """Summarize the stalls, a row per way.

    Returns:
        Rows with ``method``; ``call_s``, ``min_call_s`` and ``max_call_s``; ``wait_s`` of the
        optimizer; ``stall_s``, both together; ``by_copy``, the call by the plain copy in the same
        round; all samples. Times are medians.
    """
    copies = stalls[COPY]
    rows = []
    for name, found in stalls.items():
        calls = [each.call_s for each in found]
        rows.append(
            {
                "method": name,
                "call_s": statistics.median(calls),
                "min_call_s": min(calls),
                "max_call_s": max(calls),
                "wait_s": statistics.median(each.wait_s for each in found),
                "stall_s": statistics.median(each.call_s + each.wait_s for each in found),
                "by_copy": _ratio(found, copies, lambda each: each.call_s),
                "calls_s": calls,
                "waits_s": [each.wait_s for each in found],
            }
        )
    return rows


def beside_rows(found: Mapping[str, Sequence[Beside]]) -> list[dict[str, Any]]:
    """Summarize the steps of the training, a row per thing that went on beside it.

    Returns:
        Rows with ``method``; ``step_s``, ``min_step_s`` and ``max_step_s`` with the number of
        steps; ``forward_backward_s``; each ``by_fio`` and ``by_nothing``: ratios of the medians of
        one round, of which the median is taken; ``gb_per_s`` that was written meanwhile. None where
        no step was whole, or where there is nothing to compare with.
    """
    rows = []
    for name, rounds in found.items():
        steps = [seconds for each in rounds for seconds in each.step_s]
        parts = [seconds for each in rounds for seconds in each.forward_backward_s]
        rates = [rate for each in rounds for rate in each.bytes_per_s]
        rows.append(
            {
                "method": name,
                "num_steps": len(steps),
                "step_s": _median(steps),
                "min_step_s": min(steps, default=None),
                "max_step_s": max(steps, default=None),
                "forward_backward_s": _median(parts),
                "step_by_fio": _round_ratio(rounds, found.get(FIO, ()), _step),
                "step_by_nothing": _round_ratio(rounds, found.get(NOTHING, ()), _step),
                "forward_backward_by_fio": _round_ratio(rounds, found.get(FIO, ()), _part),
                "gb_per_s": None if not rates else statistics.median(rates) / GB,
                "steps_s": [each.step_s for each in rounds],
                "forwards_backwards_s": [each.forward_backward_s for each in rounds],
            }
        )
    return rows


def small_rows(saves: Mapping[str, Sequence[SmallSave]]) -> list[dict[str, Any]]:
    """Summarize the saves of many small tensors, a row per way; times are medians."""
    rows = []
    for name, found in saves.items():
        beyond = [each.many_s - each.few_s for each in found]
        rows.append(
            {
                "method": name,
                "call_s": statistics.median(each.call_s for each in found),
                "many_s": statistics.median(each.many_s for each in found),
                "few_s": statistics.median(each.few_s for each in found),
                "beyond_s": statistics.median(beyond),
                "min_beyond_s": min(beyond),
                "max_beyond_s": max(beyond),
            }
        )
    return rows


def targets(results: Mapping[str, Sequence[Mapping[str, Any]]], nbytes: int) -> list[Target]:
    """Hold the results against what the project has to reach.

    Args:
        results: ``stall``, ``beside`` and ``small`` to their rows, as far as they were measured.
        nbytes: Size of the state.
    """
    found = _stall_targets({row["method"]: row for row in results.get("stall", ())}, nbytes)
    beside = {row["method"]: row for row in results.get("beside", ())}
    for method, field, what in (
        (HOST, "step_by_fio", "step while a save of snapshot=host is written"),
        (FENCE, "forward_backward_by_fio", "forward and backward while a fenced save is written"),
    ):
        value = beside.get(method, {}).get(field)
        if value is not None:
            name = f"{what}, time by that beside fio at the same rate"
            found.append(Target(name, value, STEP_MAX_TIMES, is_minimum=False))
    for row in results.get("small", ()):
        name = f"{row['method']} of many small tensors, time beyond that of few"
        found.append(Target(name, row["beyond_s"], SMALL_MAX_S, is_minimum=False, unit="s"))
    return found


def _stall_targets(rows: Mapping[str, Mapping[str, Any]], nbytes: int) -> list[Target]:
    if not rows:
        return []
    bound_ms = max(
        CALL_MAX_SHARE * rows[SAVE]["call_s"] * 1000, CALL_MAX_MS_PER_GIB * nbytes / 2**30
    )
    ratios = [
        theirs / ours
        for theirs, ours in zip(rows[DCP]["calls_s"], rows[FENCE]["calls_s"], strict=True)
    ]
    return [
        Target(
            "call of a fenced save, bound by 2 % of gdsckpt save or 10 ms/GiB",
            rows[FENCE]["call_s"] * 1000,
            bound_ms,
            is_minimum=False,
            unit="ms",
        ),
        Target(
            "call of DCP async_save by that of a fenced save",
            statistics.median(ratios),
            CALL_MIN_TIMES_LESS,
            is_minimum=True,
        ),
        Target(
            "call with snapshot=host by a copy into touched memory (aim 1.2)",
            rows[HOST]["by_copy"],
            COPY_MAX_TIMES,
            is_minimum=False,
        ),
    ]


def _ratio(ours: Sequence[_T], theirs: Sequence[_T], value: Callable[[_T], float]) -> float:
    """Give the median over the rounds of the ratio in one round."""
    return statistics.median(value(a) / value(b) for a, b in zip(ours, theirs, strict=True))


def _round_ratio(
    ours: Sequence[Beside],
    theirs: Sequence[Beside],
    seconds: Callable[[Beside], Sequence[float]],
) -> float | None:
    """Give the median over the rounds of the ratio of the medians in one round."""
    ratios = [
        statistics.median(seconds(a)) / statistics.median(seconds(b))
        for a, b in zip(ours, theirs, strict=bool(theirs))
        if seconds(a) and seconds(b)
    ]
    return _median(ratios)


def _step(beside: Beside) -> Sequence[float]:
    return beside.step_s


def _part(beside: Beside) -> Sequence[float]:
    return beside.forward_backward_s


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None
