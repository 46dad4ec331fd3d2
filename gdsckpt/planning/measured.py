"""What saves and uploads of a run really cost: its manifests, and the log of its reports."""

from __future__ import annotations

import datetime
import json
import math
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gdsckpt.errors import (
    CheckpointNotFoundError,
    FormatError,
    UnsupportedVersionError,
    storage_error_from,
)
from gdsckpt.format import manifest as manifests
from gdsckpt.format.manifest import MANIFEST_MAX_BYTES, MANIFEST_NAME, Manifest
from gdsckpt.planning.band import Band

# The names that a root has (gdsckpt.staging.root, gdsckpt.checkpointer.report_log); those layers
# are not imported here, since the log is a format that also other writers may follow.
LOG_PATH = Path(".gdsckpt") / "reports.jsonl"
_STEP_NAME = re.compile(r"step-[0-9]{8,64}")

SYNC = "sync"

LOG_MAX_BYTES = 16 << 20
"""Four times what a Checkpointer lets its log grow to; of a larger one the end is read."""

LOW_SHARE, HIGH_SHARE = 0.1, 0.9
"""Quantiles that bound the band of what was measured; its middle is the median."""


@dataclass(frozen=True, slots=True)
class _Save:
    """One save of the log; sizes in bytes of one rank's file, times in seconds."""

    time_s: float
    nbytes: float
    seconds: float
    stall_s: float
    mode: str


@dataclass(frozen=True, slots=True)
class _Upload:
    """One upload of the log."""

    time_s: float
    nbytes: float
    sent_bytes: float
    seconds: float
    num_parts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What was measured. A quantity is None where nothing tells it.

    The bands are the 10 % quantile, the median and the 90 % quantile.

    Attributes:
        root: The directory.
        num_saves: Saves that the log reports.
        num_uploads: Uploads that the log reports.
        num_manifests: Checkpoints whose manifest was read.
        num_skipped: Lines and manifests that could not be used.
        num_ranks: Ranks that wrote the newest checkpoint; 1 where reports but no manifest tell.
        mode: How most saves took the state: ``sync``, ``fence``, ``host`` or ``device``.
        checkpoint_bytes: Bytes of all shards of one checkpoint.
        rank_bytes: Bytes of the file of one rank.
        save_s: Seconds from the beginning of a save to its commit.
        stall_s: Seconds for which a save kept the training.
        save_bytes_per_s: Bytes per second that one rank wrote while it saved.
        interval_s: Seconds from one save to the next.
        upload_s: Seconds of an upload that sent something.
        upload_bytes_per_s: Bytes sent per second of an upload.
        sent_share: Bytes sent per byte of a checkpoint, at most 1: the rest was there already.
        part_bytes: Bytes per part of an upload.
        newest_s: Time of the newest save, seconds since 1970.
        kept_bytes: Bytes of all checkpoints that are there now.
    """

    root: str
    num_saves: int
    num_uploads: int
    num_manifests: int
    num_skipped: int
    num_ranks: int | None = None
    mode: str | None = None
    checkpoint_bytes: Band | None = None
    rank_bytes: Band | None = None
    save_s: Band | None = None
    stall_s: Band | None = None
    save_bytes_per_s: Band | None = None
    interval_s: Band | None = None
    upload_s: Band | None = None
    upload_bytes_per_s: Band | None = None
    sent_share: Band | None = None
    part_bytes: Band | None = None
    newest_s: float | None = None
    kept_bytes: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Give all of it as values that JSON has."""
        found = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {
            name: value.as_dict() if isinstance(value, Band) else value
            for name, value in found.items()
        }


def read(directory: str | os.PathLike[str], *, newest: int | None = None) -> Measured:
    """Read the manifests and the log of reports of a root, or of one checkpoint directory.

    Lines that are torn or of another kind, and manifests that cannot be trusted, are counted and
    left out.

    Args:
        directory: The root or the directory.
        newest: Of the reports only so many saves and uploads count, at least 2; None for all.

    Raises:
        CheckpointNotFoundError: There is neither a manifest nor a report.
        StorageError: The directory cannot be read.
    """
    root = Path(directory)
    found, num_bad = _manifests(root)
    saves, uploads, num_torn = parse_log(_log(root))
    if newest is not None:
        saves, uploads = saves[-newest:], uploads[-newest:]
    if not found and not saves and not uploads:
        raise CheckpointNotFoundError(
            f"no manifest of a checkpoint and no report of a save in {root}. "
            "Give the root of a Checkpointer, or plan without measurements.",
            path=str(root),
        )
    return _summed_up(root, found, (saves, uploads), num_bad + num_torn)


def parse_log(raw: bytes) -> tuple[list[_Save], list[_Upload], int]:
    """Parse a log of reports.

    Returns:
        Saves, uploads, both in the order of the log, and the number of lines left out.
    """
    saves: list[_Save] = []
    uploads: list[_Upload] = []
    num_skipped = 0
    for line in raw.splitlines():
        if not line.strip():
            continue
        try:
            document = json.loads(line)
            if document["kind"] == "save":
                saves.append(_save_of(document))
            elif document["kind"] == "upload":
                uploads.append(_upload_of(document))
            else:
                num_skipped += 1
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            num_skipped += 1
    return saves, uploads, num_skipped


def band_of(values: Iterable[float]) -> Band | None:
    """Give the 10 % quantile, the median and the 90 % quantile; None for no values."""
    ordered = sorted(values)
    if not ordered:
        return None
    return Band(
        _quantile(ordered, LOW_SHARE), _quantile(ordered, 0.5), _quantile(ordered, HIGH_SHARE)
    )


def _quantile(ordered: Sequence[float], share: float) -> float:
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    # This form never leaves the two, whatever is rounded.
    return min(ordered[below] + (place - below) * (ordered[above] - ordered[below]), ordered[above])


def _save_of(document: dict[str, Any]) -> _Save:
    report = document["report"]
    seconds = _number(report["seconds"])
    snapshot = report.get("snapshot", "")
    if not isinstance(snapshot, str):
        raise TypeError(f"{snapshot!r} is no text")
    return _Save(
        time_s=_time(document["time"]),
        nbytes=_number(report["nbytes"]),
        seconds=seconds,
        # Of a save that is not behind the training the whole call keeps it.
        stall_s=_number(report.get("stall_s", 0.0)) if snapshot else seconds,
        mode=snapshot or SYNC,
    )


def _upload_of(document: dict[str, Any]) -> _Upload:
    report = document["report"]
    return _Upload(
        time_s=_time(document["time"]),
        nbytes=_number(report["nbytes"]),
        sent_bytes=_number(report["sent_bytes"]),
        seconds=_number(report["seconds"]),
        num_parts=int(_number(report["num_parts"])),
    )


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is no number")
    number = float(value)
    if not math.isfinite(number) or number < 0:
        raise ValueError(f"{value!r} is not a number of at least 0")
    return number


def _time(text: object) -> float:
    if not isinstance(text, str):
        raise TypeError(f"{text!r} is no time")
    time = datetime.datetime.fromisoformat(text)
    # A time without a zone is UTC, as manifests and logs of ours are.
    return (time if time.tzinfo else time.replace(tzinfo=datetime.UTC)).timestamp()


def _log(root: Path) -> bytes:
    path = root / LOG_PATH
    try:
        with path.open("rb") as file:
            nbytes = file.seek(0, os.SEEK_END)
            file.seek(max(0, nbytes - LOG_MAX_BYTES))
            raw = file.read(LOG_MAX_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return b""
    except OSError as error:
        raise storage_error_from(error, op="read", path=path) from error
    # What was cut off is half a line, and no fault of the log.
    return raw.partition(b"\n")[2] if nbytes > LOG_MAX_BYTES else raw


def _manifests(root: Path) -> tuple[list[Manifest], int]:
    """Give the manifests in order of their saves, and the number of those left out."""
    try:
        names = sorted(path.name for path in root.iterdir())
    except OSError as error:
        raise storage_error_from(error, op="list", path=root) from error
    paths = [root / name / MANIFEST_NAME for name in names if _STEP_NAME.fullmatch(name)]
    if MANIFEST_NAME in names:
        paths.append(root / MANIFEST_NAME)
    found = []
    num_bad = 0
    for path in paths:
        try:
            with path.open("rb") as file:
                found.append(manifests.decode(file.read(MANIFEST_MAX_BYTES), str(path)))
        except FileNotFoundError:
            continue  # a save that is under way, or was killed
        except (OSError, FormatError, UnsupportedVersionError):
            num_bad += 1
    return sorted(found, key=lambda each: (each.sequence, each.step)), num_bad


def _summed_up(
    root: Path,
    found: list[Manifest],
    log: tuple[list[_Save], list[_Upload]],
    num_skipped: int,
) -> Measured:
    saves, uploads = log
    sizes = [sum(shard.nbytes for shard in each.shards) for each in found]
    times = _manifest_times(found)
    sent = [each for each in uploads if each.sent_bytes > 0 and each.seconds > 0]
    save_times = [each.time_s for each in saves]
    modes = [each.mode for each in saves]
    return Measured(
        root=str(root),
        num_saves=len(saves),
        num_uploads=len(uploads),
        num_manifests=len(found),
        num_skipped=num_skipped,
        num_ranks=found[-1].world_size if found else 1 if saves else None,
        mode=max(modes, key=modes.count, default=None),
        checkpoint_bytes=band_of(sizes or [each.nbytes for each in saves]),
        rank_bytes=band_of(each.nbytes for each in saves),
        save_s=band_of(each.seconds for each in saves),
        stall_s=band_of(each.stall_s for each in saves),
        save_bytes_per_s=band_of(e.nbytes / e.seconds for e in saves if e.seconds and e.nbytes),
        interval_s=band_of(_gaps(save_times) or _gaps(times)),
        upload_s=band_of(each.seconds for each in sent),
        upload_bytes_per_s=band_of(each.sent_bytes / each.seconds for each in sent),
        sent_share=band_of(min(1.0, e.sent_bytes / e.nbytes) for e in uploads if e.nbytes),
        part_bytes=band_of(e.sent_bytes / e.num_parts for e in sent if e.num_parts),
        newest_s=max([*save_times, *times], default=None),
        kept_bytes=sum(sizes),
    )


def _manifest_times(found: Iterable[Manifest]) -> list[float]:
    times = []
    for each in found:
        try:
            times.append(_time(each.wall_time))
        except (ValueError, OverflowError):
            continue  # it says when for people only; nothing depends on it
    return times


def _gaps(times: Sequence[float]) -> list[float]:
    ordered = sorted(times)
    gaps = [after - before for before, after in zip(ordered, ordered[1:], strict=False)]
    return [gap for gap in gaps if gap > 0]
