"""Parts of a checkpoint: which records a selection needs, and the nest that is left of it."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

import torch

from gdsckpt.errors import StateMismatchError
from gdsckpt.tensors.naming import KeySelection, Path, beginnings_of, name_of, walk
from gdsckpt.tensors.pickling import pickle_state


def walk_leaves(root: Any) -> list[tuple[Path, Any]]:
    """List the leaves that a selection may name: modules are leaves, never entered."""
    return list(walk(root, enter_modules=False))


def walk_settable(root: Any) -> list[tuple[Path, Any]]:
    """List the leaves that ``into=`` fills or sets: as above, but tuples without tensors are whole.

    A tuple cannot be changed, but it can be replaced (``betas`` of an optimizer, states of random
    number generators).
    """
    return list(walk(root, enter_modules=False, is_leaf=_is_tuple_of_values))


def _is_tuple_of_values(node: Any) -> bool:
    return isinstance(node, tuple) and not any(
        isinstance(leaf, torch.Tensor) for _, leaf in walk(node, enter_modules=False)
    )


def require_matches(keys: KeySelection | None, names: Iterable[str]) -> None:
    """Refuse prefixes that select nothing.

    Raises:
        StateMismatchError: ``missing`` holds the prefixes without a match.
    """
    if keys is None or callable(keys):
        return
    prefixes = (keys,) if isinstance(keys, str) else tuple(keys)
    all_names = list(names)
    found = {beginning for name in all_names for beginning in beginnings_of(name)}
    missing = [prefix for prefix in prefixes if prefix.rstrip(".") not in found]
    if missing:
        some = sorted({name.split(".", 1)[0] for name in all_names})[:8]
        raise StateMismatchError(
            f"keys {missing} select nothing. The checkpoint holds {some}; 'gdsckpt inspect' lists "
            "all names.",
            missing=tuple(missing),
            unexpected=(),
            shapes={},
        )


def storages_of(leaf: Any) -> Iterable[int]:
    """Give the ``_cdata`` of every storage that a leaf of any kind refers to."""
    if type(leaf) in (int, float, str, bool, bytes, type(None)):
        return ()
    return pickle_state(leaf).key_of


@dataclass(frozen=True, slots=True)
class Selection:
    """Which leaves of a nest are kept.

    Attributes:
        kept: Paths of the leaves to keep, with all their beginnings.
        dropped: Paths of the others, with all their beginnings.
    """

    kept: frozenset[Path]
    dropped: frozenset[Path]


def prune(node: Any, selection: Selection, path: Path = ()) -> Any:
    """Keep the selected leaves of a nest.

    Mappings lose the keys that are not selected; lists and tuples keep their length, and hold None
    where an element is not selected. What is selected as a whole stays the object that it is.

    Args:
        node: The nest; shallow copies of its containers are changed, itself it is not.
        selection: What to keep.
        path: Where ``node`` stands.
    """
    if path not in selection.dropped:
        return node
    if path not in selection.kept:
        return None
    if isinstance(node, Mapping) and node:
        kept = {
            key: prune(value, selection, (*path, key))
            for key, value in node.items()
            if (*path, key) in selection.kept
        }
        return _like_mapping(node, kept)
    if isinstance(node, (list, tuple)) and node:
        items = [prune(value, selection, (*path, n)) for n, value in enumerate(node)]
        return _like_sequence(node, items)
    return node


def with_beginnings(paths: Iterable[Path]) -> frozenset[Path]:
    """Give the paths and all their beginnings, the root's empty path included."""
    found: set[Path] = {()}
    for path in paths:
        found.update(path[:length] for length in range(1, len(path) + 1))
    return frozenset(found)


def _like_mapping(node: Mapping[Any, Any], kept: dict[Any, Any]) -> Any:
    """Give a part of a mapping, of its own type where that can be changed, else a dict."""
    if type(node) is dict or not isinstance(node, MutableMapping):
        return kept
    pruned: Any = copy.copy(node)
    for key in list(pruned):
        if key in kept:
            pruned[key] = kept[key]
        else:
            del pruned[key]
    return pruned


def _like_sequence(node: list[Any] | tuple[Any, ...], items: list[Any]) -> Any:
    """Give a list or tuple with other items, of its own type where that can be made so."""
    if type(node) is list:
        return items
    if isinstance(node, list):
        pruned = copy.copy(node)
        pruned[:] = items
        return pruned
    try:
        return type(node)(*items) if hasattr(node, "_fields") else type(node)(items)
    except TypeError:  # a constructor of its own, or a type for numbers only (torch.Size)
        return tuple(items)


def describe(path: Path) -> str:
    """Name a path for messages; the root has no name of its own."""
    return name_of(path) or "the state itself"


def is_plain(leaf: Any) -> bool:
    """Tell whether a leaf is a strided tensor whose elements lie in its storage as they are."""
    return (
        isinstance(leaf, torch.Tensor)
        and not torch.nn.parameter.is_lazy(leaf)
        and type(leaf) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
        and leaf.layout == torch.strided
        and not leaf.is_nested
        and not leaf.is_quantized
        and not leaf.is_conj()
        and not leaf.is_neg()
        and torch._C._has_storage(leaf)
    )
