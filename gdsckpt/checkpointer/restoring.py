"""Load a checkpoint into a state that may hold modules, optimizers and the like."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from gdsckpt.checkpointer.applying import EVERYTHING, Selected, Share, apply, leaves_of
from gdsckpt.config import Config
from gdsckpt.loading import load, select
from gdsckpt.loading.restore import MapLocation
from gdsckpt.tensors.naming import (
    KeySelection,
    beginnings_of,
    checked_keys,
    name_of,
    selector,
)
from gdsckpt.tensors.stateful import expanded, statefuls


def load_into(  # noqa: PLR0913 - the arguments of gdsckpt.load by keyword only, and strict
    source: str | os.PathLike[str],
    into: Any,
    *,
    map_location: MapLocation = None,
    weights_only: bool = True,
    keys: KeySelection | None = None,
    strict: bool = True,
    config: Config | Mapping[str, Any] | None = None,
) -> Any:
    """Load a checkpoint, as :func:`gdsckpt.load` does, also into Stateful objects.

    A state without Stateful objects is filled in place, with no second copy of it. For one with
    them, the checkpoint is loaded to the host first; then each object gets its part.

    Args:
        source: Path or URL of a checkpoint directory or file.
        into: None, a nest of tensors and plain values, or one with objects that have
            ``state_dict`` and ``load_state_dict``.
        map_location: As for :func:`gdsckpt.load`; only without ``into``.
        weights_only: As for :func:`gdsckpt.load`.
        keys: As for :func:`gdsckpt.load`. Of a module any part may be selected; other objects
            take their state as a whole.
        strict: Refuse what only the checkpoint or only ``into`` has. Else what both have is loaded
            and the rest stays as it is; only the bytes of that part are read.
        config: As for :func:`gdsckpt.load`.

    Returns:
        ``into``, or without it what was saved.

    Raises:
        StateMismatchError: ``into`` or ``keys`` do not fit the checkpoint.
        GdsckptError: Others, as of :func:`gdsckpt.load`.
    """
    if into is None or map_location is not None:
        return load(
            source, map_location, weights_only=weights_only, into=into, keys=keys, config=config
        )
    if strict and not statefuls(into):
        return load(source, weights_only=weights_only, into=into, keys=keys, config=config)
    if strict and keys is None:
        apply(into, load(source, "cpu", weights_only=weights_only, config=config))
        return into
    choice = _Choice(checked_keys(keys), into, strict)
    loaded = load(source, "cpu", weights_only=weights_only, keys=choice.pick, config=config)
    apply(into, loaded, strict, selected=choice.selected())
    return into


class _Choice:
    """Which leaves of a checkpoint are loaded; remembers what was there.

    Args:
        keys: The caller's selection.
        into: What the leaves are loaded into.
        strict: Load also what has no place there.
    """

    def __init__(self, keys: KeySelection | None, into: Any, strict: bool) -> None:
        self._keys = keys
        self._holds = selector(keys)
        self._strict = strict
        leaves = [(name_of(path), leaf) for path, leaf in leaves_of(expanded(into).nest)]
        self._places = frozenset(name for name, _ in leaves)
        self._tuples = frozenset(name for name, leaf in leaves if isinstance(leaf, tuple))
        self._names: dict[str, bool] = {}

    def pick(self, name: str) -> bool:
        """Decide about a leaf."""
        is_selected = self._holds(self._place_of(name))
        self._names[name] = is_selected
        return is_selected and (self._strict or self._has_place(name))

    def _place_of(self, name: str) -> str:
        """Give the name by which a leaf is selected: tuples of values are selected as a whole."""
        return next((each for each in beginnings_of(name) if each in self._tuples), name)

    def _has_place(self, name: str) -> bool:
        return "" in self._places or not self._places.isdisjoint(beginnings_of(name))

    def selected(self) -> Selected:
        """Tell what was selected, after the load.

        Raises:
            StateMismatchError: A prefix selected nothing.
        """
        if self._keys is None:
            return EVERYTHING
        select.require_matches(self._keys, self._names)
        some: set[str] = set()
        others: set[str] = set()
        for name, is_selected in self._names.items():
            (some if is_selected else others).update(beginnings_of(name))

        def share_of(name: str) -> Share:
            if name not in some and (name in others or not self._holds(name)):
                return Share.NOTHING
            return Share.SOME if name in others else Share.EVERYTHING

        return Selected(self._holds, share_of)
