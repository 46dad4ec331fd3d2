"""Seconds of save and load, beside torch's on the same state; and of upload and fetch."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import gdsckpt
from gdsckpt.config import Config
from gdsckpt.demo.bucket import Bucket
from gdsckpt.report import FetchReport, UploadReport
from gdsckpt.staging.files import sync_directory

_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Timing:
    """One row of the table; ``seconds`` is the median."""

    what: str
    nbytes: int
    seconds: float

    @property
    def bytes_per_s(self) -> float:
        """File bytes per second."""
        return self.nbytes / self.seconds if self.seconds > 0 else 0.0


def measure(state: Any, directory: Path, config: Config) -> list[Timing]:
    """Save and load a state with both libraries, in turn.

    Saves are durable: file and directory are synced. The page cache of each file is dropped before
    it is loaded. ``gdsckpt.load`` verifies; stock torch has nothing to verify.

    Args:
        state: What to save.
        directory: Where; the files are removed.
        config: Settings.
    """
    ours, theirs = directory / "speed-gdsckpt.pt", directory / "speed-torch.pt"
    actions: dict[str, tuple[Path, Callable[[], object]]] = {
        "gdsckpt.save": (ours, lambda: gdsckpt.save(state, ours, config=config)),
        "torch.save + fsync": (theirs, lambda: _torch_save(state, theirs)),
        "gdsckpt.load, verified": (ours, lambda: gdsckpt.load(ours, config=config)),
        "torch.load": (theirs, lambda: torch.load(theirs, weights_only=True)),
    }
    seconds: dict[str, list[float]] = {what: [] for what in actions}
    sizes: dict[str, int] = {}
    for _ in range(_ROUNDS):
        for what, (path, action) in actions.items():
            if "load" in what:
                _drop_cache(path)
            started = time.perf_counter()
            action()
            seconds[what].append(time.perf_counter() - started)
            sizes[what] = path.stat().st_size
        ours.unlink()
        theirs.unlink()
    return [Timing(what, sizes[what], statistics.median(seconds[what])) for what in actions]


def measure_bucket(checkpoint: Path, directory: Path, bucket: Bucket) -> list[Timing]:
    """Upload a file and fetch it again, each time to a new object and into a new file.

    What is fetched is verified and durable. The page cache of the file is dropped before it is
    uploaded.

    Args:
        checkpoint: The file.
        directory: Where to fetch it to; removed again.
        bucket: Where to upload it to; removed again.
    """
    name, target = "speed.pt", directory / "speed-fetched.pt"
    url = bucket.url_of(name)
    uploads, fetches = [], []
    for _ in range(_ROUNDS):
        _drop_cache(checkpoint)
        uploads.append(gdsckpt.upload(checkpoint, url, config=bucket.config))
        fetches.append(gdsckpt.fetch(url, target, config=bucket.config))
        bucket.delete(name)
        target.unlink()
    return [
        Timing("gdsckpt.upload", uploads[0].sent_bytes, _median_s(uploads)),
        Timing("gdsckpt.fetch, verified", fetches[0].nbytes, _median_s(fetches)),
    ]


def _median_s(reports: Sequence[UploadReport | FetchReport]) -> float:
    return statistics.median(report.seconds for report in reports)


def _torch_save(state: Any, path: Path) -> None:
    with path.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    sync_directory(path.parent)


def _drop_cache(path: Path) -> None:
    """Drop the pages of a file that has been synced; on tmpfs this does nothing."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)
