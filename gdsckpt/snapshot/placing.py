"""Which storages of a state are read where they are, and which are copied first: decided here."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch

from gdsckpt.format.layout import payload_order
from gdsckpt.format.table import TensorEntry
from gdsckpt.snapshot.source import Source

ALIGNMENT = 64
"""Of each copy in a slot: a cache line."""


@dataclass(frozen=True, slots=True)
class Placing:
    """Numbers of storages, each in the order of the file.

    Attributes:
        fenced: Read live; only the optimizer changes them, and it waits.
        waited: Read live, as there is no room for copies: the caller waits.
        copied: Copied to a slot.
    """

    fenced: tuple[int, ...]
    waited: tuple[int, ...]
    copied: tuple[int, ...]


def place(
    source: Source,
    owned: Mapping[int, Sequence[torch.Tensor]],
    room_bytes: int,
    *,
    cloned: Collection[int] = (),
) -> Placing:
    """Decide for each storage of a state.

    Args:
        source: The state.
        owned: Tensors that an optimizer changes and nobody else, by ``_cdata`` of their storages.
        room_bytes: What all copies may take; where it is too little, the last ones of the file are
            copied.
        cloned: Storages that are copied elsewhere, and are none of the three.
    """
    sizes = [buffer.nbytes for buffer in source.content.storages]
    order = payload_order(sizes)
    fenced = _fenced(source, owned) if owned else set()
    others = order
    if fenced or cloned:
        others = [number for number in order if number not in fenced and number not in cloned]
    taken = accumulate(rooms_for([sizes[number] for number in reversed(others)]))
    first_copied = len(others) - bisect_right(list(taken), room_bytes)
    return Placing(
        tuple([number for number in order if number in fenced]) if fenced else (),
        tuple(others[:first_copied]),
        tuple(others[first_copied:]),
    )


def rooms_for(sizes: Iterable[int]) -> list[int]:
    """Give the room that each copy takes in a slot."""
    return [-(-nbytes // ALIGNMENT) * ALIGNMENT for nbytes in sizes]


def _fenced(source: Source, owned: Mapping[int, Sequence[torch.Tensor]]) -> set[int]:
    """Find the storages of which the state shows only what the optimizer changes.

    A storage may hold more: buffers of a module beside its parameters, in one flat tensor.
    """
    storages = source.content.storages
    owned_at = [owned.get(identity) for identity in source.identities]
    fenced = {number for number, tensors in enumerate(owned_at) if tensors}
    partly = {
        number: _merged([_span_of_tensor(tensor) for tensor in tensors])
        for number, tensors in enumerate(owned_at)
        if tensors and not _is_covered(storages[number].nbytes, tensors)
    }
    for entry in source.content.tensors if partly else ():
        spans = partly.get(entry.record, [])
        begin, end = _span_of_entry(entry)
        if spans and begin < end and not any(a <= begin and end <= b for a, b in spans):
            fenced.discard(entry.record)
    return fenced


def _is_covered(nbytes: int, tensors: Sequence[torch.Tensor]) -> bool:
    """Tell whether one of the tensors is all of a storage."""
    for tensor in tensors:  # noqa: SIM110 - any() takes as long as both questions
        if tensor.nbytes == nbytes and tensor.is_contiguous():
            return True
    return False


def _span_of_tensor(tensor: torch.Tensor) -> tuple[int, int]:
    begin = int(tensor.storage_offset()) * tensor.dtype.itemsize
    return begin, begin + _span_numel(tensor.shape, tensor.stride()) * tensor.dtype.itemsize


def _span_of_entry(entry: TensorEntry) -> tuple[int, int]:
    if entry.strides is None:
        numel = math.prod(entry.shape)
    else:
        numel = _span_numel(entry.shape, entry.strides)
    dtype: torch.dtype = getattr(torch, entry.dtype)
    return entry.byte_offset, entry.byte_offset + numel * dtype.itemsize


def _span_numel(shape: Sequence[int], strides: Sequence[int]) -> int:
    if 0 in shape:
        return 0
    return 1 + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))


def _merged(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((begin, end))
    return merged
