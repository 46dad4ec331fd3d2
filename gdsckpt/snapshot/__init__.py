"""Snapshots: what an asynchronous save does to the memory of a training that goes on."""

from gdsckpt.snapshot.modes import Snapshot, SnapshotOptions, take
from gdsckpt.snapshot.slots import Slots

__all__ = ["Slots", "Snapshot", "SnapshotOptions", "take"]
