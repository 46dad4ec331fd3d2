"""From samples of transfers to rows and targets. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from bench.remote_clients.base import Method
from bench.remote_clients.registry import METHODS, OURS
from bench.remote_measure import RemoteSample
from bench.results import GB, Target

MB = 1e6

Table = Mapping[str, Sequence[RemoteSample]]


def rows(what: str, samples: Table, nbytes: int) -> list[dict[str, Any]]:
    """Summarize one table, a row per method that has samples.

    Args:
        what: ``upload``, ``download`` or ``memory``.
        samples: By method, in the order of the rounds.
        nbytes: Bytes of one transfer.

    Returns:
        Rows in the order of the registry. ``cpu_by_ours`` is the median over the rounds of the
        processor time by ours in the same round, None where ours is missing.
    """
    known = [method for method in METHODS if method.what == what and samples.get(method.name)]
    return [_row(method, samples, nbytes) for method in known]


def _row(method: Method, samples: Table, nbytes: int) -> dict[str, Any]:
    runs, ours = samples[method.name], samples.get(OURS)
    per_gb = [run.cpu_s / (nbytes / GB) for run in runs]
    return {
        "method": method.name,
        "settings": method.settings,
        "is_floor": method.is_floor,
        "cpu_s_per_gb": statistics.median(per_gb),
        "min_cpu_s_per_gb": min(per_gb),
        "max_cpu_s_per_gb": max(per_gb),
        "user_s_per_gb": statistics.median(run.user_s / (nbytes / GB) for run in runs),
        "cpu_by_ours": _ratio(runs, ours) if ours else None,
        "gb_per_s": statistics.median(_rates(runs, nbytes)) / GB,
        "private_mb": max(run.private_bytes for run in runs) / MB,
        "private_growth_mb": max(run.private_bytes - run.private_before_bytes for run in runs) / MB,
        "rss_mb": max(run.rss_bytes for run in runs) / MB,
        "samples": [_shown(run) for run in runs],
    }


def _shown(run: RemoteSample) -> dict[str, float]:
    return {
        "seconds": round(run.seconds, 4),
        "sync_s": round(run.sync_s, 4),
        "user_s": round(run.user_s, 4),
        "system_s": round(run.system_s, 4),
        "private_mb": round(run.private_bytes / MB, 1),
    }


def _ratio(theirs: Sequence[RemoteSample], ours: Sequence[RemoteSample]) -> float:
    pairs = zip(theirs, ours, strict=True)
    return statistics.median(their.cpu_s / our.cpu_s for their, our in pairs)


def _rates(runs: Sequence[RemoteSample], nbytes: int) -> list[float]:
    return [nbytes / (run.seconds + run.sync_s) for run in runs]


def targets(tables: Mapping[str, Table], nbytes: int) -> list[Target]:
    """Hold the results against what the project has to reach.

    Args:
        tables: Samples by name of the table, such as ``upload_plain``.
        nbytes: Bytes of one transfer.
    """
    found = []
    for table, bound, what in (
        ("upload_plain", 0.45, "upload, plain"),
        ("upload_tls", 0.8, "upload, TLS"),
        ("download_plain", 1.1, "verified download to the drive, plain"),
        ("memory_plain", 0.5, "verified download into memory, plain"),
    ):
        runs = tables.get(table, {}).get(OURS)
        if runs:
            cpu = statistics.median(run.cpu_s / (nbytes / GB) for run in runs)
            found.append(Target(what, cpu, bound, is_minimum=False, unit="CPU s/GB"))
    for table in ("upload_plain", "upload_tls"):
        runs = tables.get(table, {}).get(OURS)
        if runs:
            private = max(run.private_bytes for run in runs) / MB
            what = f"private memory, {table.replace('_', ', ')}"
            found.append(Target(what, private, 100, is_minimum=False, unit="MB"))
    fastest = rate_by_fastest(tables.get("download_plain", {}), nbytes)
    if fastest is not None:
        what = "verified download to the drive, plain: rate by that of the fastest other client"
        found.append(Target(what, fastest, 1.0, is_minimum=True))
    return found


def rate_by_fastest(samples: Table, nbytes: int) -> float | None:
    """Give the median over the rounds of our rate by that of the fastest other client.

    Args:
        samples: Of one table.
        nbytes: Bytes of one transfer.

    Returns:
        More than 1 where ours is faster; None where there is nobody to compare with.
    """
    ours = samples.get(OURS)
    others = [
        _rates(samples[method.name], nbytes)
        for method in METHODS
        if samples.get(method.name) and method.is_peer
    ]
    if not ours or not others:
        return None
    best = [max(of_round) for of_round in zip(*others, strict=True)]
    pairs = zip(_rates(ours, nbytes), best, strict=True)
    return statistics.median(our / other for our, other in pairs)
