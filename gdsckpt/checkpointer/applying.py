"""Hand a loaded state to the objects and tensors that it belongs to."""

from __future__ import annotations

import enum
import inspect
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from gdsckpt.checkpointer.random_state import RandomState
from gdsckpt.checkpointer.structure import comparable_groups, comparable_tensors
from gdsckpt.errors import ConfigError, GdsckptError, StateMismatchError
from gdsckpt.loading import into as filling
from gdsckpt.tensors.naming import Path, name_of, walk
from gdsckpt.tensors.stateful import (
    Expansion,
    expanded,
    is_stateful,
    labelled,
    substituted,
)

logger = logging.getLogger(__name__)

_TAKEN = object()
"""Stands in a loaded state for the part of an object."""

_ABSENT = object()


class Share(enum.Enum):
    """How much of what stands below a name was selected and loaded."""

    NOTHING = enum.auto()
    SOME = enum.auto()
    EVERYTHING = enum.auto()


@dataclass(frozen=True, slots=True)
class Selected:
    """Which part of a checkpoint was loaded.

    Attributes:
        holds: Tells of the name of a leaf whether it was to be loaded.
        share_of: Gives how much was loaded of what stands below a name.
    """

    holds: Callable[[str], bool]
    share_of: Callable[[str], Share]


EVERYTHING = Selected(lambda name: True, lambda name: Share.EVERYTHING)
"""All of a checkpoint."""


def apply(state: Any, loaded: Any, strict: bool = True, *, selected: Selected = EVERYTHING) -> None:
    """Give each Stateful object its part of a loaded state, and fill or replace the other leaves.

    Dense tensors are filled in place, on whatever device they are; other leaves are replaced in
    the mappings and lists that hold them. The structure is compared first, including the tensors
    of modules and the groups of optimizers, as far as no code of theirs has a say in it. Random
    number generators are set last.

    Args:
        state: A nest of mappings, lists, tuples and Stateful objects. It is changed.
        loaded: What ``gathered(state)`` was saved as. Objects may keep tensors of it.
        strict: Refuse what is on one side only, also in modules; else it stays as it is. Other
            shapes and other groups are always refused.
        selected: What of the checkpoint ``loaded`` has.

    Raises:
        StateMismatchError: The state does not fit, and nothing was changed; or an object refused
            its part, and those before it have theirs already.
        ConfigError: A part of the state of an object was selected that takes it only as a whole.
    """
    expansion = expanded(state)
    parts = [
        _Part(path, node, _at(loaded, path), selected.share_of(name_of(path)))
        for path, node in expansion.statefuls
    ]
    _require_whole(parts)
    there = [part for part in parts if part.loaded is not _ABSENT]
    sides = _Sides(
        _plain_leaves(substituted(loaded, {part.path: _TAKEN for part in there})),
        _plain_leaves(expansion.nest),
        expansion.nest,
    )
    given = [part for part in there if part.share is not Share.NOTHING]
    sides.own.update({part.path: part.node for part in parts if part.loaded is _ABSENT})
    sides.add_tensors(given)
    sides.keep(selected.holds)
    if not strict:
        sides.drop_lonely()
    sides.add_groups(given)
    targets, values = filling.match(sides.saved, sides.own, sides.root)
    _load([part for part in given if not isinstance(part.node, RandomState)], strict)
    targets = [target for target in targets if target.path not in sides.inside]
    filling.copy_rest(filling.FillPlan({}, targets, []), sides.saved, None)
    for path in values:
        if path not in sides.inside:
            _set(expansion, path, sides)
    _load([part for part in given if isinstance(part.node, RandomState)], strict)


@dataclass(frozen=True, slots=True)
class _Part:
    """A Stateful object and what was loaded for it."""

    path: Path
    node: Any
    loaded: Any
    share: Share


class _Sides:
    """Leaves of the checkpoint and of the caller's state that have to agree.

    Attributes:
        saved: Path to leaf of the checkpoint.
        own: Path to leaf of the caller's state.
        root: The caller's state, with containers where objects are whose inside is compared.
        inside: Paths of what is inside of objects: compared here, but set by them.
    """

    def __init__(self, saved: dict[Path, Any], own: dict[Path, Any], root: Any) -> None:
        self.saved = saved
        self.own = own
        self.root = root
        self.inside: set[Path] = set()

    def add_tensors(self, parts: list[_Part]) -> None:
        """Add the tensors of modules."""
        outlines: dict[Path, Any] = {}
        for part in parts:
            compared = comparable_tensors(part.node, part.loaded)
            if compared is not None:
                tensors, values = compared
                outlines[part.path] = tensors
                self._add(part.path, {(name,): value for name, value in values.items()}, self.saved)
                self._add(part.path, {(name,): value for name, value in tensors.items()}, self.own)
        self.root = substituted(self.root, outlines) if outlines else self.root

    def add_groups(self, parts: list[_Part]) -> None:
        """Add the parameter groups of optimizers."""
        outlines: dict[Path, Any] = {}
        for part in parts:
            compared = comparable_groups(part.node, part.loaded)
            if compared is not None:
                own, saved = compared
                outlines[part.path] = {"param_groups": [{"params": [*range(n)]} for n in own]}
                self._add(part.path, _places(saved), self.saved)
                self._add(part.path, _places(own), self.own)
        self.root = substituted(self.root, outlines) if outlines else self.root

    def _add(self, path: Path, leaves: Mapping[Path, Any], side: dict[Path, Any]) -> None:
        for inner, leaf in leaves.items():
            side[(*path, *inner)] = leaf
            self.inside.add((*path, *inner))

    def keep(self, holds: Callable[[str], bool]) -> None:
        """Drop what is not selected, and empty containers that are not empty on the other side."""
        saved = {path: leaf for path, leaf in self.saved.items() if holds(name_of(path))}
        own = {path: leaf for path, leaf in self.own.items() if holds(name_of(path))}
        self.saved, self.own = _without_empty(saved, own), _without_empty(own, saved)

    def drop_lonely(self) -> None:
        """Drop what is on one side only, and log it."""
        missing = [path for path in self.own if path not in self.saved]
        unexpected = [path for path in self.saved if path not in self.own]
        for path in missing:
            del self.own[path]
        for path in unexpected:
            del self.saved[path]
        if missing or unexpected:
            logger.info(
                "loaded what both have: not in the checkpoint=%s only in the checkpoint=%s",
                [name_of(path) for path in missing],
                [name_of(path) for path in unexpected],
            )


def _places(num_params: list[int]) -> dict[Path, int]:
    return {
        ("param_groups", group, "params", n): n
        for group, count in enumerate(num_params)
        for n in range(count)
    }


def _without_empty(side: dict[Path, Any], other: dict[Path, Any]) -> dict[Path, Any]:
    """Drop the empty containers of one side that have something inside on the other one."""
    empty = [p for p, leaf in side.items() if isinstance(leaf, (Mapping, list)) and p not in other]
    if not empty:
        return side
    filled = {path[:length] for path in other for length in range(len(path))}
    dropped = filled.intersection(empty)
    return {path: leaf for path, leaf in side.items() if path not in dropped}


def _at(root: Any, path: Path) -> Any:
    """Look up a path in a loaded nest; ``_ABSENT`` where there is nothing."""
    for key in path:
        if isinstance(root, Mapping):
            if key not in root:
                return _ABSENT
        elif not isinstance(root, (list, tuple)) or type(key) is not int or key >= len(root):
            return _ABSENT
        root = root[key]
    return root


def leaves_of(root: Any) -> Iterator[tuple[Path, Any]]:
    """Give what is filled, replaced or loaded as one: objects and tuples of values are leaves."""
    return walk(root, enter_modules=False, is_leaf=lambda n: is_stateful(n) or _is_value(n))


def _plain_leaves(root: Any) -> dict[Path, Any]:
    """Give the leaves that are neither objects nor stand for their parts."""
    leaves = leaves_of(root)
    return {path: leaf for path, leaf in leaves if not is_stateful(leaf) and leaf is not _TAKEN}


def _is_value(node: Any) -> bool:
    """Tell whether a node is a tuple that is replaced as a whole."""
    return isinstance(node, tuple) and not any(
        isinstance(leaf, torch.Tensor) or leaf is _TAKEN or is_stateful(leaf)
        for _, leaf in walk(node, enter_modules=False, is_leaf=is_stateful)
    )


def _require_whole(parts: list[_Part]) -> None:
    for part in parts:
        if part.share is Share.SOME and not isinstance(part.node, torch.nn.Module):
            raise ConfigError(
                f"keys= selects a part of {labelled(part.path, part.node)}, which takes its state "
                "only as a whole. Select all of it, or nothing.",
                field="keys",
            )


def _load(parts: list[_Part], strict: bool) -> None:
    seen: set[tuple[int, int]] = set()
    for part in parts:
        pair = (id(part.node), id(part.loaded))
        if pair not in seen:  # the same object at two places
            _load_one(part, strict and part.share is Share.EVERYTHING)
        seen.add(pair)


def _load_one(part: _Part, strict: bool) -> None:
    try:
        if _takes_strict(part.node):
            part.node.load_state_dict(part.loaded, strict=strict)
        else:
            part.node.load_state_dict(part.loaded)
    except (GdsckptError, MemoryError) as error:
        error.add_note(f"in load_state_dict() of {labelled(part.path, part.node)}")
        raise
    except Exception as error:  # load_state_dict() is anybody's code
        raise StateMismatchError(
            f"load_state_dict() of {labelled(part.path, part.node)} failed: "
            f"{type(error).__name__}: {error}. The given state is loaded in part.",
            unexpected=(name_of(part.path),),
        ) from error


def _takes_strict(node: Any) -> bool:
    try:
        return "strict" in inspect.signature(node.load_state_dict).parameters
    except (TypeError, ValueError):  # no signature to look at, as of a function of C
        return False


def _set(expansion: Expansion, path: Path, sides: _Sides) -> None:
    container = expansion.nest
    for key in path[:-1]:
        container = container[key]
    value, old = sides.saved[path], sides.own[path]
    if isinstance(value, torch.Tensor) and isinstance(old, torch.Tensor):
        value = value.to(old.device)  # sparse and nested ones, which are not filled
    expansion.original_of.get(id(container), container)[path[-1]] = value
