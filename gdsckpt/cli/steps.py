"""Paths that name a root of steps, where a command takes checkpoints."""

from __future__ import annotations

import os

from gdsckpt.errors import CheckpointNotFoundError
from gdsckpt.format.manifest import MANIFEST_NAME
from gdsckpt.staging import root as roots
from gdsckpt.staging.root import StepEntry
from gdsckpt.store import is_url


def steps_in(text: str) -> tuple[StepEntry, ...]:
    """Give the steps of a root, ascending; none for any other path.

    Raises:
        StorageError: It cannot be listed.
    """
    if is_url(text) or not os.path.isdir(text):  # noqa: PTH112 - Path.is_dir raises where it may not look
        return ()
    has_manifest = os.path.exists(os.path.join(text, MANIFEST_NAME))  # noqa: PTH110, PTH118
    return () if has_manifest else roots.scan(text)


def newest_in(text: str) -> StepEntry | None:
    """Give the newest complete step of a root; None for any other path.

    Raises:
        CheckpointNotFoundError: It is a root, and no step is complete.
    """
    steps = steps_in(text)
    newest = roots.newest(steps)
    if steps and newest is None:
        raise CheckpointNotFoundError(
            f"none of the {len(steps)} steps in {text} is complete. 'gdsckpt ls {text}' says why.",
            path=text,
        )
    return newest
