"""From samples to what is reported: medians, spreads, ratios, targets. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.measure import Sample

GB = 1e9

OURS = "gdsckpt"
LIMITS = ("fio", "naive direct")


@dataclass(frozen=True, slots=True)
class Target:
    """One thing that has to be reached.

    Attributes:
        what: In words.
        measured: The value.
        bound: What it is held against.
        is_minimum: The value must be at least the bound; otherwise at most.
        unit: Of both.
    """

    what: str
    measured: float
    bound: float
    is_minimum: bool
    unit: str = ""

    @property
    def is_met(self) -> bool:
        """Whether the value is on the right side of the bound."""
        if self.is_minimum:
            return self.measured >= self.bound
        return self.measured <= self.bound

    def as_dict(self) -> dict[str, Any]:
        """Give all of it as values that JSON has."""
        return {
            "what": self.what,
            "measured": round(self.measured, 4),
            "bound": self.bound,
            "is_minimum": self.is_minimum,
            "unit": self.unit,
            "is_met": self.is_met,
        }


def rates(samples: Sequence[Sample]) -> list[float]:
    """Give bytes per second of each sample."""
    return [sample.nbytes / sample.seconds for sample in samples]


def rate_ratio(ours: Sequence[Sample], theirs: Sequence[Sample]) -> float:
    """Give the median over the rounds of our rate by theirs in the same round.

    Runs of one round follow each other closely, so what slows the machine down for a while slows
    both; a ratio of medians would not cancel that.
    """
    pairs = zip(rates(ours), rates(theirs), strict=True)
    return statistics.median(our_rate / their_rate for our_rate, their_rate in pairs)


def find_limit(names: Sequence[str]) -> str | None:
    """Give the name of the method that stands for the drive, if it took part."""
    return next((name for name in names if name.startswith(LIMITS) and "beside" not in name), None)


def summarize(samples: Mapping[str, Sequence[Sample]]) -> list[dict[str, Any]]:
    """Summarize one scenario, a row per method, in the order given.

    Returns:
        Rows with ``method``, ``median_s``, ``min_s``, ``max_s``, ``gb_per_s`` (median),
        ``cpu_s_per_gb``, ``ratio_to_limit`` and ``ratio_to_torch`` (of rates; None where there is
        nothing to compare with), ``samples_s`` and ``stages`` (medians, of those that have them).
    """
    limit = find_limit(list(samples))
    stock = next((name for name in samples if name.startswith("torch.") and "mmap" not in name), "")
    beside = next((name for name in samples if "beside" in name), None)
    rows = []
    for name, runs in samples.items():
        seconds = [run.seconds for run in runs]
        own_limit = beside if beside and ("into=" in name) else limit
        comparable = "into=" not in name  # ran in rounds of its own
        rows.append(
            {
                "method": name,
                "median_s": statistics.median(seconds),
                "min_s": min(seconds),
                "max_s": max(seconds),
                "gb_per_s": statistics.median(rates(runs)) / GB,
                "cpu_s_per_gb": statistics.median(run.cpu_s / (run.nbytes / GB) for run in runs),
                "ratio_to_limit": rate_ratio(runs, samples[own_limit]) if own_limit else None,
                "ratio_to_torch": rate_ratio(runs, samples[stock])
                if stock and comparable
                else None,
                "samples_s": seconds,
                "stages": _stage_medians(runs),
            }
        )
    return rows


def _stage_medians(runs: Sequence[Sample]) -> dict[str, float]:
    names = runs[0].detail if runs else {}
    return {name: statistics.median(run.detail[name] for run in runs) for name in names}


def targets(results: Mapping[str, Any]) -> list[Target]:
    """Hold the results against what the project has to reach.

    Args:
        results: Scenario to rows, as :func:`summarize` gives them.
    """
    found: list[Target] = []
    for scenario, rules in _RATE_RULES.items():
        rows = {row["method"]: row for row in results.get(scenario, [])}
        for method, field, bound, what in rules:
            value = rows.get(method, {}).get(field)
            if value is not None:
                found.append(Target(what, value, bound, is_minimum=True))
    found += _memory_targets(results.get("memory", []))
    found += _file_size_targets(results.get("file_size", []))
    return found


_SAVE, _LOAD, _INTO = "gdsckpt.save", "gdsckpt.load", "gdsckpt.load(into=)"
_TO_LIMIT, _TO_TORCH = "ratio_to_limit", "ratio_to_torch"
_RATE_RULES: dict[str, list[tuple[str, str, float, str]]] = {
    "save": [
        (_SAVE, _TO_LIMIT, 0.85, "durable save, rate by that of the drive"),
        (_SAVE, _TO_TORCH, 3.0, "durable save, rate by that of torch.save + fsync"),
    ],
    "load_cold": [
        (_LOAD, _TO_LIMIT, 0.85, "cold verified load, rate by that of the drive"),
        (_INTO, _TO_LIMIT, 0.85, "cold verified load into=, rate by that of the drive"),
    ],
    "load_warm": [(_LOAD, _TO_TORCH, 1.0, "warm verified load, rate by that of torch.load")],
    "small_save": [(_SAVE, _TO_TORCH, 1.0, "save of small tensors, rate by that of torch.save")],
    **{
        f"small_load_{cache}_{mode}": [
            (
                _LOAD,
                _TO_TORCH,
                1.0,
                f"{cache} load of small tensors, weights_only={mode == 'safe'}, rate by that of "
                "torch.load",
            )
        ]
        for cache in ("cold", "warm")
        for mode in ("safe", "full")
    },
}

MEMORY_MAX_MIB = 512
FILE_SIZE_MAX_SHARE = 0.01
FILE_SIZE_FROM_BYTES = 64 << 10


def _memory_targets(rows: Sequence[Mapping[str, Any]]) -> list[Target]:
    ours = [row for row in rows if row["library"] == OURS]
    return [
        Target(
            f"memory beyond the state while a {what} of {row['state_bytes'] / 2**30:g} GiB runs",
            row[f"{what}_extra_bytes"] / 2**20,
            MEMORY_MAX_MIB,
            is_minimum=False,
            unit="MiB",
        )
        for row in ours
        for what in ("save", "load")
    ]


def _file_size_targets(rows: Sequence[Mapping[str, Any]]) -> list[Target]:
    found = []
    for row in rows:
        size = f"{row['tensor_bytes'] // 1024} KiB"
        if row["tensor_bytes"] >= FILE_SIZE_FROM_BYTES:
            over, what = row["gdsckpt_bytes"] / row["payload_bytes"] - 1, "payload"
        else:
            over, what = row["gdsckpt_bytes"] / row["torch_bytes"] - 1, "file of torch.save"
        name = f"file size over {what}, tensors of {size}"
        found.append(Target(name, over * 100, FILE_SIZE_MAX_SHARE * 100, False, "%"))
    return found
