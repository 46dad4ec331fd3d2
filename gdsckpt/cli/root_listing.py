"""What a root holds beside its steps: superseded ones, those set aside, and who saves into it."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path

from gdsckpt.cli import listing
from gdsckpt.cli.listing import Row
from gdsckpt.errors import GdsckptError
from gdsckpt.format.manifest import MANIFEST_NAME
from gdsckpt.staging import pruning, quarantine
from gdsckpt.staging import root as roots
from gdsckpt.staging.quarantine import SetAside
from gdsckpt.staging.root import StepEntry
from gdsckpt.staging.root_lock import holder_of

SUPERSEDED = "superseded"
SET_ASIDE = "set aside"

_PRUNED = "it was pruned, and its deletion did not come to its end, or is under way"
_WHY_ASIDE = {
    roots.TORN: "torn: no save into it was completed; the next Checkpointer deletes it",
    roots.DAMAGED: "damaged; 'gdsckpt prune --quarantine' deletes it",
    roots.SUPERSEDED: "superseded: training went back to before it and saved again",
}


def with_steps(path: Path, rows: list[Row]) -> list[Row]:
    """Add to the rows of a directory what it has as a root.

    Args:
        path: The directory; any other path adds nothing.
        rows: As :func:`gdsckpt.cli.listing.rows_of` gives them.

    Raises:
        StorageError: It cannot be listed.
    """
    if not path.is_dir() or (path / MANIFEST_NAME).exists():
        return rows
    steps = {str(entry.path): entry for entry in roots.scan(path)}
    marked = [_marked(row, steps.pop(row.path, None)) for row in rows]
    # Of a save that was killed before its first file, a directory is all there is.
    empty = [
        listing.bare_row(entry.path, "checkpoint", listing.NO_MANIFEST, entry.reason)
        for entry in steps.values()
        if entry.state == roots.TORN
    ]
    return [
        *marked,
        *empty,
        *(_aside_row(entry) for entry in quarantine.entries(path)),
        *(_pruned_row(each) for each in pruning.pruned(path)),
    ]


def holder(path: Path) -> str | None:
    """Say who saves into a root; None for nobody, no root, or where it cannot be told."""
    with contextlib.suppress(GdsckptError):
        return holder_of(path)
    return None


def _marked(row: Row, entry: StepEntry | None) -> Row:
    if entry is None or entry.state != roots.SUPERSEDED or row.state != listing.COMPLETE:
        return row
    return dataclasses.replace(row, state=SUPERSEDED, reason=entry.reason)


def _aside_row(entry: SetAside) -> Row:
    if entry.manifest is None:
        row = listing.bare_row(entry.path, "checkpoint", SET_ASIDE, "")
    else:
        row = listing.manifest_row(str(entry.path), entry.manifest)
    return dataclasses.replace(
        row,
        state=SET_ASIDE,
        step=entry.step,
        reason=f"{entry.path.name}: {_WHY_ASIDE[entry.kind]}",
        nbytes=entry.nbytes,
        modified_s=listing.modified_s(entry.path),
    )


def _pruned_row(path: Path) -> Row:
    row = listing.bare_row(path, "checkpoint", listing.LEFTOVER, _PRUNED)
    return dataclasses.replace(row, nbytes=roots.bytes_below(path))
