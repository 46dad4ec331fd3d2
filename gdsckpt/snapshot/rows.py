"""Rows of numbers for native code."""

from __future__ import annotations

from array import array
from collections.abc import Sequence


def packed(*columns: Sequence[int]) -> array[int]:
    """Give the rows of columns of equal length, one after the other, as uint64."""
    rows = array("Q", bytes(8 * len(columns) * len(columns[0])))
    for n, column in enumerate(columns):
        rows[n :: len(columns)] = array("Q", column)
    return rows
