"""Move the shards of a checkpoint between a directory and a store."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar

from gdsckpt.config import Config
from gdsckpt.engine import base
from gdsckpt.engine.base import Progress
from gdsckpt.format.manifest import Manifest, ShardEntry
from gdsckpt.remote.crew import Crew, Work
from gdsckpt.store.base import Store

T = TypeVar("T")


def move_shards(
    manifest: Manifest,
    move: Callable[[ShardEntry, Progress | None], T],
    *,
    store: Store,
    config: Config,
    progress: Progress | None,
) -> list[T]:
    """Move small shards many at a time, and large ones one by one, each by many requests.

    Args:
        manifest: Names the shards.
        move: Moves one, in any thread, and tells the progress of it.
        store: Is interrupted when one fails.
        config: Settings.
        progress: Told about the bytes of all.

    Returns:
        What ``move`` gave, in any order.
    """
    total = sum(entry.nbytes for entry in manifest.shards)
    limit = config.upload_part_bytes
    small = [entry for entry in manifest.shards if entry.nbytes <= limit]
    large = [entry for entry in manifest.shards if entry.nbytes > limit]
    done = sum(entry.nbytes for entry in small)
    moved: list[T] = []
    work = Work(done, store.interrupt, is_alone=True)

    def move_small(entry: ShardEntry) -> None:
        moved.append(move(entry, None))
        work.advance(entry.nbytes)

    with Crew(config.upload_concurrency) as crew:
        jobs = [functools.partial(move_small, entry) for entry in small]
        base.wait(crew.start(jobs, work), _shifted(progress, 0, total))
    for entry in large:
        moved.append(move(entry, _shifted(progress, done, total)))
        done += entry.nbytes
    return moved


def _shifted(progress: Progress | None, before: int, total: int) -> Progress | None:
    """Give what tells ``progress`` about some of ``total`` bytes, after those ``before``."""
    if progress is None:
        return None
    tell = progress  # for mypy: it stays what it is
    return lambda done, _total: tell(before + done, total)
