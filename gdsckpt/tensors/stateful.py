"""Objects with a state of their own, such as modules and optimizers, inside a nest."""

from __future__ import annotations

import abc
import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from gdsckpt.errors import ConfigError, GdsckptError
from gdsckpt.tensors.naming import Path, children_of, name_of

_LEAVES = frozenset(
    {str, int, float, bool, complex, bytes, type(None)}
    | {torch.Tensor, torch.nn.Parameter, torch.nn.Buffer}
)
"""Types of most leaves, of which there are 100,000: a look into a set is quick."""

_CONTAINERS = frozenset({dict, list, tuple})


class StatefulNest(abc.ABC):
    """A Stateful that is nothing but a nest of others, and is saved and loaded as that nest.

    So each part has its own name in errors, and all parts are compared with a checkpoint before
    the first one is changed.
    """

    @abc.abstractmethod
    def parts(self) -> dict[str, Any]:
        """Give the nest; containers that the user gave are in it as they are, not as copies."""

    def state_dict(self) -> Any:
        """Give the state of all parts; its tensors are the live ones, not copies.

        Raises:
            ConfigError: The state of a part cannot be had; the text names it.
        """
        return gathered(self)

    @abc.abstractmethod
    def load_state_dict(self, state_dict: Any, strict: bool = True) -> None:
        """Take over a state that :meth:`state_dict` gave."""


def is_stateful(node: object) -> bool:
    """Tell whether an object gives and takes its state: ``state_dict`` and ``load_state_dict``.

    Modules, optimizers, schedulers, GradScaler, dataloaders, the ``Stateful`` of DCP; not classes.
    """
    if type(node) in _CONTAINERS or type(node) in _LEAVES or isinstance(node, (type, torch.Tensor)):
        return False
    return callable(getattr(node, "state_dict", None)) and callable(
        getattr(node, "load_state_dict", None)
    )


def statefuls(root: Any) -> list[tuple[Path, Any]]:
    """List the Stateful objects of a nest of mappings, lists and tuples, in its order.

    Raises:
        ConfigError: A container that leads to one contains itself.
    """
    found: list[tuple[Path, Any]] = []
    closed: list[Path] = []
    stack: list[tuple[Path, Any, frozenset[int]]] = [((), root, frozenset())]
    while stack:
        path, node, parents = stack.pop()
        if is_stateful(node):
            found.append((path, node))
            continue
        children = children_of(node, enter_modules=False)
        if children is None:
            continue
        if id(node) in parents:
            closed.append(path)
            continue
        inside = parents | {id(node)}
        below = [
            ((*path, key), child, inside) for key, child in children if type(child) not in _LEAVES
        ]
        stack.extend(reversed(below))
    if found and closed:
        raise ConfigError(
            f"{name_of(closed[0])} in the state is a container that contains itself, beside "
            "objects with a state_dict(). Leave it out.",
            field="state",
        )
    return found


@dataclass(frozen=True, slots=True)
class Expansion:
    """A nest in which each :class:`StatefulNest` is replaced by its parts.

    Attributes:
        nest: The nest.
        statefuls: Its Stateful objects, with their paths.
        original_of: ``id`` of a container of ``nest`` to the user's own, where it is a copy.
    """

    nest: Any
    statefuls: list[tuple[Path, Any]]
    original_of: dict[int, Any]


def expanded(state: Any) -> Expansion:
    """Replace each :class:`StatefulNest` by its parts, at any depth."""
    original_of: dict[int, Any] = {}
    while True:
        found = statefuls(state)
        nests = [(path, node) for path, node in found if isinstance(node, StatefulNest)]
        if not nests:
            return Expansion(state, found, original_of)
        copies: dict[int, tuple[Any, Any]] = {}
        state = substituted(state, {path: node.parts() for path, node in nests}, copies)
        for original, copied in copies.values():
            original_of[id(copied)] = original_of.get(id(original), original)


def gathered(state: Any) -> Any:
    """Replace every Stateful object of a nest by its ``state_dict()``.

    What ``state_dict()`` gives is taken as it is. The same object at two places is asked once.

    Args:
        state: A nest of mappings, lists and tuples, or a Stateful object. It is never changed;
            containers without a Stateful object below are in the result as they are, others as
            copies of the same kind (mappings of foreign kinds as dicts).

    Returns:
        The nest. Its tensors are the live ones, not copies.

    Raises:
        ConfigError: A ``state_dict()`` failed; the text names its place.
    """
    expansion = expanded(state)
    part_of: dict[int, Any] = {}
    parts: dict[Path, Any] = {}
    for path, node in expansion.statefuls:
        if id(node) not in part_of:
            part_of[id(node)] = _state_of(path, node)
        parts[path] = part_of[id(node)]
    return substituted(expansion.nest, parts) if parts else expansion.nest


def _state_of(path: Path, node: Any) -> Any:
    try:
        return node.state_dict()
    except (GdsckptError, MemoryError) as error:
        error.add_note(f"in state_dict() of {labelled(path, node)}")
        raise
    except Exception as error:  # state_dict() is anybody's code
        raise ConfigError(
            f"state_dict() of {labelled(path, node)} failed: {type(error).__name__}: {error}. "
            "Nothing was saved.",
            field="state",
        ) from error


def labelled(path: Path, node: object) -> str:
    """Name an object for messages: its place and type."""
    return f"{name_of(path) or 'the state itself'} ({type(node).__name__})"


def substituted(
    root: Any, new_at: Mapping[Path, Any], copies: dict[int, tuple[Any, Any]] | None = None
) -> Any:
    """Give a nest with other values at some paths.

    Args:
        root: The nest; it is not changed.
        new_at: Path to new value; none of the paths is the beginning of another one.
        copies: Gets ``id`` of each container on the way to (container, its copy).
    """
    if () in new_at:
        return new_at[()]
    copies = {} if copies is None else copies
    if id(root) in copies:
        return copies[id(root)][1]
    below: dict[Any, dict[Path, Any]] = {}
    for path, value in new_at.items():
        below.setdefault(path[0], {})[path[1:]] = value
    changed = {key: substituted(root[key], inner, copies) for key, inner in below.items()}
    copied = _with_items(root, changed)
    copies[id(root)] = (root, copied)
    return copied


def _with_items(node: Any, changed: Mapping[Any, Any]) -> Any:
    """Copy a container, of its own kind where that is safe, with some items changed."""
    if isinstance(node, tuple):
        return _tuple_like(node, (changed.get(n, item) for n, item in enumerate(node)))
    if isinstance(node, Mapping) and not isinstance(node, dict):
        return {**node, **changed}  # copying a foreign mapping may share what it holds inside
    copied: Any = copy.copy(node)
    for key, value in changed.items():
        copied[key] = value
    return copied


def _tuple_like(node: tuple[Any, ...], items: Iterable[Any]) -> tuple[Any, ...]:
    kind = type(node)
    try:  # not by its constructor, which may take anything
        made: tuple[Any, ...] = tuple.__new__(kind, items)
    except TypeError:  # a sequence of C's, such as os.stat_result
        return tuple(items)
    if hasattr(node, "__dict__"):
        vars(made).update(vars(node))
    return made
