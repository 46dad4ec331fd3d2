"""Tell by their checksums whether two saves have the same trained values."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from gdsckpt.format.table import TensorEntry

_FLOATING = ("float", "bfloat", "complex")


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What was trained, by its checksums.

    Attributes:
        records: Storages that hold floating-point tensors of more than one element; all storages
            where there are none.
        crcs: CRC-32 of each.
    """

    records: array[int]
    crcs: array[int]

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to compare."""
        return not self.records


def fingerprint(tensors: Sequence[TensorEntry], storage_crcs: array[int]) -> Fingerprint:
    """Take the fingerprint of a save.

    Counters of steps and the state of random generators change whether or not anything was
    trained; they are whole numbers or single ones, and are left out.

    Args:
        tensors: The named tensors.
        storage_crcs: CRC-32 of each storage.
    """
    trained = {
        entry.record
        for entry in tensors
        if entry.dtype.startswith(_FLOATING) and any(n > 1 for n in entry.shape)
    }
    records = array("Q", sorted(trained) or range(len(storage_crcs)))
    return Fingerprint(records, array("I", (storage_crcs[record] for record in records)))
