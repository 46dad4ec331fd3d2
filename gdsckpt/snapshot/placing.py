"""Which storages of a state are read where they are, and which are copied first: decided here."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

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
    fenced = _fenced(source, owned)
    others = [number for number in order if number not in fenced and number not in cloned]
    taken = 0
    first_copied = len(others)
    while first_copied > 0:
        taken += room_for(sizes[others[first_copied - 1]])
        if taken > room_bytes:
            break
        first_copied -= 1
    return Placing(
        tuple([number for number in order if number in fenced]),
        tuple(others[:first_copied]),
        tuple(others[first_copied:]),
    )


def room_for(nbytes: int) -> int:
    """Give the room that a copy takes in a slot."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _fenced(source: Source, owned: Mapping[int, Sequence[torch.Tensor]]) -> set[int]:
    """Find the storages of which the state shows only what the optimizer changes.

    A storage may hold more: buffers of a module beside its parameters, in one flat tensor.
    """
    fenced: set[int] = set()
    partly: dict[int, list[tuple[int, int]]] = {}
    for number, identity in enumerate(source.identities):
        tensors = owned.get(identity)
        if tensors is None:
            continue
        fenced.add(number)
        nbytes = source.content.storages[number].nbytes
        if not _covers(tensors[0], nbytes) and not any(_covers(each, nbytes) for each in tensors):
            partly[number] = _merged([_span_of_tensor(tensor) for tensor in tensors])
    for entry in source.content.tensors if partly else ():
        spans = partly.get(entry.record, [])
        begin, end = _span_of_entry(entry)
        if spans and begin < end and not any(a <= begin and end <= b for a, b in spans):
            fenced.discard(entry.record)
    return fenced


def _covers(tensor: torch.Tensor, nbytes: int) -> bool:
    return tensor.nbytes == nbytes and tensor.is_contiguous()


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
