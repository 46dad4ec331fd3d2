"""Where each complete step can be had: in the root, in the object store, or in both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gdsckpt.format.manifest import Manifest
from gdsckpt.remote.steps import RemoteSteps
from gdsckpt.staging import root as roots


@dataclass(frozen=True, slots=True)
class Copies:
    """The places of one complete step.

    Attributes:
        step: The step.
        local: Its directory, or None.
        url: Where it is in the store, or None.
    """

    step: int
    local: Path | None
    url: str | None

    @property
    def places(self) -> tuple[str, ...]:
        """Its places, the nearest first."""
        return tuple(str(place) for place in (self.local, self.url) if place is not None)


def find_copies(root: Path, remote: RemoteSteps | None) -> tuple[Copies, ...]:
    """List the complete steps of a root and its store, ascending.

    Steps that training left, by going back to an earlier one, are left out wherever they are.

    Raises:
        StorageError: The root cannot be listed.
        StoreError: The store cannot be asked.
    """
    entries = roots.scan(root)
    local = {entry.step: entry for entry in roots.complete(entries)}
    known = {entry.step: entry.manifest for entry in entries if entry.manifest is not None}
    in_store = remote.manifests() if remote is not None else {}
    left = _left(_latest_of(known, in_store))
    return tuple(
        Copies(
            step,
            local[step].path if step in local else None,
            remote.url_of(step) if remote is not None and step in in_store else None,
        )
        for step in sorted({*local, *in_store} - left)
    )


def _latest_of(*groups: Mapping[int, Manifest]) -> dict[int, int]:
    """Give the highest sequence of each step, wherever it is."""
    sequences: dict[int, int] = {}
    for group in groups:
        for step, manifest in group.items():
            sequences[step] = max(sequences.get(step, 0), manifest.sequence)
    return sequences


def _left(sequences: Mapping[int, int]) -> set[int]:
    """Give the steps after which an earlier one was saved; see ``gdsckpt.staging.root``."""
    left, latest = set(), 0
    for step in sorted(sequences):
        if 0 < sequences[step] < latest:
            left.add(step)
        latest = max(latest, sequences[step])
    return left
