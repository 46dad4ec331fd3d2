"""The tensors in a nest, and the storages behind them: in columns, as there are 100,000 of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch

from gdsckpt.tensors.naming import PLAIN_VALUES, children_of, strided_parts

_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})


class Leaves(NamedTuple):
    """Tensors and their storages, one by one.

    Attributes:
        tensors: As they stand in the nest; one that is made of several stands here several times.
        parts: What they are made of: as a rule, themselves.
        storages: ``_cdata`` of the storage of each part.
    """

    tensors: list[torch.Tensor]
    parts: list[torch.Tensor]
    storages: list[int]


def leaves_of(root: Any) -> Leaves:
    """Give the tensors of a nest, in any order; what is inside other objects is left out."""
    tensors = _tensors(root)
    if _PLAIN.issuperset(map(type, tensors)):
        return _as_they_are(tensors)
    plain = _as_they_are([tensor for tensor in tensors if type(tensor) in _PLAIN])
    others = _taken_apart([tensor for tensor in tensors if type(tensor) not in _PLAIN])
    return Leaves(
        plain.tensors + others.tensors,
        plain.parts + others.parts,
        plain.storages + others.storages,
    )


def _tensors(root: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    stack = [root]
    entered: set[int] = set()
    while stack:
        node = stack.pop()
        if isinstance(node, torch.Tensor):
            found.append(node)
        elif id(node) not in entered:
            entered.add(id(node))
            for child in _children(node):
                if isinstance(child, torch.Tensor):
                    found.append(child)
                elif type(child) not in PLAIN_VALUES:
                    stack.append(child)
    return found


def _children(node: Any) -> Iterable[Any]:
    if type(node) is dict:
        return node.values()
    children = children_of(node)
    return () if children is None else [child for _, child in children]


def _as_they_are(tensors: list[torch.Tensor]) -> Leaves:
    try:
        storages = [tensor.untyped_storage()._cdata for tensor in tensors]
    except RuntimeError:  # one is sparse, and has no storage of its own
        return _taken_apart(tensors)
    return Leaves(tensors, tensors, storages)


def _taken_apart(tensors: list[torch.Tensor]) -> Leaves:
    rows = [
        (tensor, part)
        for tensor in tensors
        for _, part in strided_parts((), tensor)
        if torch._C._has_storage(part) and not torch.nn.parameter.is_lazy(part)
    ]
    parts = [part for _, part in rows]
    storages = [part.untyped_storage()._cdata for part in parts]
    return Leaves([tensor for tensor, _ in rows], parts, storages)
