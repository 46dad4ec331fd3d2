"""Parts of a checkpoint: which records a selection needs, and the nest that is left of it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from gdsckpt.errors import StateMismatchError
from gdsckpt.tensors.naming import KeySelection, Path, name_of, walk
from gdsckpt.tensors.pickling import pickle_state


def walk_leaves(root: Any) -> list[tuple[Path, Any]]:
    """List the leaves that a selection may name: modules are leaves, never entered."""
    return list(walk(root, enter_modules=False))


def require_matches(
    keys: KeySelection | None, names: Iterable[str], is_selected: Callable[[str], bool]
) -> None:
    """Refuse prefixes that select nothing.

    Raises:
        StateMismatchError: ``missing`` holds the prefixes without a match.
    """
    if keys is None or callable(keys):
        return
    prefixes = (keys,) if isinstance(keys, str) else tuple(keys)
    all_names = list(names)
    missing = [
        prefix
        for prefix in prefixes
        if not any(f"{name}.".startswith(f"{prefix.rstrip('.')}.") for name in all_names)
    ]
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


def prune(node: Any, selected: frozenset[Path], path: Path = ()) -> Any:
    """Keep the selected leaves of a nest.

    Mappings lose the keys that are not selected; lists and tuples keep their length, and hold None
    where an element is not selected.

    Args:
        node: The nest; shallow copies of its containers are changed, itself it is not.
        selected: Paths of the leaves to keep, with all their beginnings.
        path: Where ``node`` stands.
    """
    if path not in selected:
        return None
    if isinstance(node, Mapping) and node:
        kept = {
            key: prune(value, selected, (*path, key))
            for key, value in node.items()
            if (*path, key) in selected
        }
        return _like_mapping(node, kept)
    if isinstance(node, (list, tuple)) and node:
        items = [prune(value, selected, (*path, n)) for n, value in enumerate(node)]
        return _like_sequence(node, items)
    return node


def with_beginnings(paths: Iterable[Path]) -> frozenset[Path]:
    """Give the paths and all their beginnings, the root's empty path included."""
    found: set[Path] = {()}
    for path in paths:
        found.update(path[:length] for length in range(1, len(path) + 1))
    return frozenset(found)


def _like_mapping(node: Mapping[Any, Any], kept: dict[Any, Any]) -> Any:
    if type(node) is dict:
        return kept
    pruned: Any = copy.copy(node)
    for key in list(pruned):
        if key in kept:
            pruned[key] = kept[key]
        else:
            del pruned[key]
    return pruned


def _like_sequence(node: list[Any] | tuple[Any, ...], items: list[Any]) -> Any:
    if isinstance(node, list):
        return items
    return type(node)(*items) if hasattr(node, "_fields") else type(node)(items)


def describe(path: Path) -> str:
    """Name a path for messages; the root has no name of its own."""
    return name_of(path) or "the state itself"


def is_plain(leaf: Any) -> bool:
    """Tell whether a leaf is a strided tensor whose elements lie in its storage as they are."""
    return (
        isinstance(leaf, torch.Tensor)
        and type(leaf) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
        and leaf.layout == torch.strided
        and not leaf.is_nested
        and not leaf.is_quantized
        and not leaf.is_conj()
        and not leaf.is_neg()
        and torch._C._has_storage(leaf)
    )
