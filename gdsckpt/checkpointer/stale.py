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
    # Each of the few dtypes and shapes is looked at once, not for each of 100,000 tensors.
    dtypes = {dtype for dtype in {entry.dtype for entry in tensors} if dtype.startswith(_FLOATING)}
    shapes = {shape for shape in {entry.shape for entry in tensors} if any(n > 1 for n in shape)}
    trained = {entry.record for entry in tensors if entry.dtype in dtypes and entry.shape in shapes}
    records = array("Q", sorted(trained) or range(len(storage_crcs)))
    return Fingerprint(records, array("I", map(storage_crcs.__getitem__, records)))
