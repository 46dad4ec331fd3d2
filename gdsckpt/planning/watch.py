"""Whether the cadence of a run still fits, from what its root tells now."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from typing import Any

from gdsckpt.errors import CheckpointNotFoundError, storage_error_from
from gdsckpt.planning import advice, building, measured
from gdsckpt.planning.advice import NOTE, WARNING, Advice
from gdsckpt.planning.bandwidth import Timeline
from gdsckpt.planning.measured import Measured
from gdsckpt.planning.scenario import Scenario
from gdsckpt.units import format_bytes, format_duration, format_share

NEWEST = 50
"""Saves and uploads that are looked at: what a run did long ago says nothing of it now."""

LATE_FACTOR = 3.0
"""Intervals without a save after which a run is late: one save may fail or be skipped."""

# What is said of capacities, prices and retention rests on assumptions about nodes, not on the run.
_TOPICS = frozenset({"overlap", "drain", "drives", "interval", "mtbf", "parts", "prefixes"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a look at a root found.

    Attributes:
        root: The root.
        fits: Whether there is no warning; None where nothing was saved yet.
        summary: One line.
        advice: What to do, warnings first.
        measured: What it rests on; None where nothing was saved yet.
    """

    root: str
    fits: bool | None
    summary: str
    advice: tuple[Advice, ...] = ()
    measured: Measured | None = None

    def as_dict(self) -> dict[str, Any]:
        """Give all of it as values that JSON has."""
        return {
            "root": self.root,
            "fits": self.fits,
            "summary": self.summary,
            "advice": [each.as_dict() for each in self.advice],
            "measured": None if self.measured is None else self.measured.as_dict(),
        }


def look(
    root: str | os.PathLike[str], base: Scenario, flags: dict[str, dict[str, Any]], *, now_s: float
) -> Verdict:
    """Look at a root once.

    Args:
        root: The root of a Checkpointer, which may be saving meanwhile.
        base: What is assumed where nothing was measured.
        flags: What the user gave; it wins over what was measured.
        now_s: The time, seconds since 1970.

    Raises:
        ConfigError: The inputs contradict each other.
        StorageError: The root cannot be read.
    """
    try:
        found = measured.read(root, newest=NEWEST)
    except CheckpointNotFoundError:
        return Verdict(root=str(root), fits=None, summary="nothing was saved yet")
    scenario = building.adopt(base, found).with_values(flags, is_flags=True)
    facts = building.facts_of(scenario, found)
    said = [each for each in advice.advice_on(scenario, facts) if each.topic in _TOPICS]
    said += [*_on_silence(found, scenario.saves.interval_s, now_s), *_on_space(root, found)]
    said.sort(key=lambda each: each.level != WARNING)
    return Verdict(
        root=str(root),
        fits=all(each.level != WARNING for each in said),
        summary=_summary(found, facts.timeline, scenario.saves.interval_s),
        advice=tuple(said),
        measured=found,
    )


def _on_silence(found: Measured, interval_s: float, now_s: float) -> list[Advice]:
    if found.newest_s is None or found.interval_s is None:
        return []
    silent_s = now_s - found.newest_s
    usual_s = max(interval_s, found.interval_s.high)
    if silent_s <= LATE_FACTOR * usual_s:
        return []
    return [
        Advice(
            WARNING,
            "silence",
            f"nothing was saved for {format_duration(silent_s)}, and saves come every "
            f"{format_duration(usual_s)}: has training ended, or do saves fail?",
        )
    ]


def _on_space(root: str | os.PathLike[str], found: Measured) -> list[Advice]:
    if found.checkpoint_bytes is None:
        return []
    try:
        free_bytes = shutil.disk_usage(root).free
    except OSError as error:
        raise storage_error_from(error, op="statvfs", path=root) from error
    size_bytes = found.checkpoint_bytes.high
    if free_bytes >= 2 * size_bytes:
        return []
    return [
        Advice(
            WARNING if free_bytes < size_bytes else NOTE,
            "space",
            f"{format_bytes(free_bytes)} are free, and a checkpoint takes "
            f"{format_bytes(size_bytes)}: keep fewer steps (keep_local).",
        )
    ]


def _summary(found: Measured, timeline: Timeline, interval_s: float) -> str:
    size = "" if found.checkpoint_bytes is None else format_bytes(found.checkpoint_bytes.mid) + " "
    assumed = " (assumed)" if found.interval_s is None else ""
    parts = [f"{size}every {format_duration(interval_s)}{assumed}"]
    if found.stall_s is not None:
        share = format_share(timeline.overlap_share.mid)
        parts.append(f"stall {format_duration(found.stall_s.mid)} ({share})")
    if found.upload_s is not None:
        share = format_share(timeline.drain_share.mid)
        parts.append(f"upload {format_duration(found.upload_s.mid)} ({share} of the time)")
    return f"{found.num_saves} saves, {found.num_uploads} uploads: {', '.join(parts)}"
