"""Everything that a training run has to save to go on as if nothing had happened."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any

import torch

from gdsckpt.checkpointer.applying import apply
from gdsckpt.checkpointer.random_state import RandomState
from gdsckpt.errors import ConfigError
from gdsckpt.tensors.arrays import is_device_array
from gdsckpt.tensors.naming import name_of, walk
from gdsckpt.tensors.stateful import StatefulNest, is_stateful

_OBJECTS = ("model", "optimizer", "scheduler", "scaler", "dataloader")


@dataclass(kw_only=True, eq=False)
class TrainingState(StatefulNest):
    """The state of a training run: pass it to ``save`` and to ``load(into=...)``.

    Each of the objects has ``state_dict`` and ``load_state_dict``, or is a list or dict of such
    objects, or None, which leaves it out. Pass the objects themselves, once; their state is asked
    for at each save.

    Attributes:
        model: Module.
        optimizer: Optimizer.
        scheduler: Of the learning rate.
        scaler: GradScaler.
        dataloader: Such as torchdata's ``StatefulDataLoader``; that of torch has no state.
        rng: Save the random number generators of python, numpy, torch and all GPUs. They are
            restored last, so that nothing draws from them any more.
        extra: What else there is, such as ``{"epoch": 3}``. Loading puts the values into this
            mapping. An entry without tensors is replaced whole, whatever its structure was;
            tensors are filled in place.
    """

    model: Any = None
    optimizer: Any = None
    scheduler: Any = None
    scaler: Any = None
    dataloader: Any = None
    rng: bool = True
    extra: MutableMapping[str, Any] | None = None

    def __post_init__(self) -> None:
        """Check the objects.

        Raises:
            ConfigError: One has no state; ``field`` says which.
        """
        for field in _OBJECTS:
            _require_stateful(field, getattr(self, field))
        if self.extra is not None and not isinstance(self.extra, MutableMapping):
            raise ConfigError(
                f"extra must be a mapping that can be changed, got {type(self.extra).__name__}. "
                "Pass a dict.",
                field="extra",
            )
        self._random = RandomState() if self.rng else None

    def parts(self) -> dict[str, Any]:
        """Give the nest of the objects, by field."""
        parts = {field: getattr(self, field) for field in _OBJECTS}
        parts["extra"] = None if self.extra is None else _entries(self.extra)
        parts["rng"] = self._random
        return {field: part for field, part in parts.items() if part is not None}

    def load_state_dict(self, state_dict: Any, strict: bool = True) -> None:
        """Take over a state that :meth:`state_dict` gave.

        Args:
            state_dict: The state.
            strict: Refuse what is on one side only; else both sides keep what the other lacks.

        Raises:
            StateMismatchError: The state does not fit.
        """
        apply(self, state_dict, strict)


class _Entry:
    """A plain value in the mapping of the user, as a Stateful object."""

    def __init__(self, mapping: MutableMapping[str, Any], key: str) -> None:
        self._mapping = mapping
        self._key = key

    def state_dict(self) -> Any:
        return self._mapping[self._key]

    def load_state_dict(self, value: Any) -> None:
        """Set the value; a list or dict stays the object that it is, and gets the new items."""
        own = self._mapping[self._key]
        if type(own) is list and type(value) is list:
            own[:] = value
        elif type(own) is dict and type(value) is dict:
            own.clear()
            own.update(value)
        else:
            self._mapping[self._key] = value


def _entries(extra: MutableMapping[str, Any]) -> dict[str, Any]:
    return {key: value if _has_parts(value) else _Entry(extra, key) for key, value in extra.items()}


def _has_parts(value: Any) -> bool:
    """Tell whether something in a value is filled or loaded where it is."""
    return any(
        is_stateful(leaf) or is_device_array(leaf) or _is_dense(leaf)
        for _, leaf in walk(value, enter_modules=False, is_leaf=is_stateful)
    )


def _is_dense(leaf: Any) -> bool:
    return (
        isinstance(leaf, torch.Tensor)
        and leaf.layout == torch.strided
        and not leaf.is_nested
        and not leaf.is_quantized
    )


def _require_stateful(field: str, value: Any) -> None:
    for path, leaf in walk(value, enter_modules=False, is_leaf=is_stateful):
        is_empty = isinstance(leaf, (dict, list, tuple)) and not leaf
        if leaf is None or is_empty or is_stateful(leaf):
            continue
        place = name_of((field, *path))
        advice = "Pass the object itself, not its state."
        if isinstance(leaf, torch.utils.data.DataLoader):
            advice = (
                "Pass a loader that has them, such as torchdata's StatefulDataLoader, or save in "
                "extra= how far the epoch is."
            )
        raise ConfigError(
            f"{place} is of type {type(leaf).__name__}, which has no state_dict() and "
            f"load_state_dict(). {advice}",
            field=field,
        )
