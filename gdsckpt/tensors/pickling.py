"""Pickle a state the way torch does, and collect the storages it refers to."""

from __future__ import annotations

import io
import pickle
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch._utils import _rebuild_tensor_v2, _rebuild_tensor_v3

from gdsckpt.errors import ConfigError, GdsckptError
from gdsckpt.tensors.arrays import DeviceArray, device_array, is_device_array
from gdsckpt.tensors.naming import Path, TensorFacts, children_of
from gdsckpt.tensors.plain import PICKLE_PROTOCOL, PlainTensors, Storages, is_plain
from gdsckpt.tensors.stateful import labelled

_NO_STORAGES = frozenset(
    {str, int, float, bool, type(None), tuple, list, dict, OrderedDict} | {type, FunctionType}
)
"""What the pickler asks about most often; a look into a set is quicker than four type checks."""


@dataclass(frozen=True, slots=True)
class PickledState:
    """A state as pickle bytes and storages.

    Attributes:
        pickle: Content of ``data.pkl``.
        storages: Storage ``n`` is record ``data/<n>``; the references keep their memory alive.
        key_of: ``_cdata`` of a storage, or key of a device array, to its key ``n``.
        facts: What was found of plain tensors, by their ``id``.
        tensors: Those tensors, some of which nobody else may keep: no other gets their ``id``.
    """

    pickle: bytes
    storages: list[torch.UntypedStorage | DeviceArray]
    key_of: dict[int, int]
    facts: dict[int, TensorFacts]
    tensors: list[torch.Tensor]


def pickle_state(obj: object) -> PickledState:
    """Pickle ``obj`` with torch's persistent ids for its storages.

    Raises:
        ConfigError: Something in ``obj`` cannot be pickled; the text names its place.
    """
    buffer = io.BytesIO()
    pickler = _StatePickler(buffer)
    try:
        pickler.dump(obj)
        pickler.tensors.settle()
    except (GdsckptError, MemoryError):
        raise
    except Exception as error:  # __reduce__ is anybody's code
        raise ConfigError(
            f"the state cannot be pickled: {_what_failed(obj, error)}: {type(error).__name__}: "
            f"{error}. Leave it out, or save what is needed to rebuild it.",
            field="obj",
        ) from error
    tensors, storages = pickler.tensors, pickler.storages
    pickled = tensors.spliced(buffer.getvalue())
    facts = tensors.facts()
    return PickledState(pickled, storages.met, storages.key_of, facts, tensors.met)


def _what_failed(obj: object, error: Exception) -> str:
    """Name the innermost part of an object that cannot be pickled by itself.

    Each part is tried, one level after the other: slow, but this save is lost anyway.
    """
    path: Path = ()
    seen = {id(obj)}
    is_found = isinstance(error, RecursionError)  # of the whole: any part may be the one too many
    while not is_found:
        for key, child in _parts_of(obj):
            if id(child) not in seen and not _is_picklable(child):
                path, obj = (*path, key), child
                seen.add(id(child))
                break
        else:
            is_found = True
    return labelled(path, obj)


def _parts_of(node: Any) -> Iterable[tuple[Any, Any]]:
    """Give what pickle would go into: items of containers, and attributes of plain objects."""
    children = children_of(node, enter_modules=False)
    if children is not None:
        return children
    kind: Any = type(node)
    if isinstance(node, (type, ModuleType)) or kind.__reduce_ex__ is not object.__reduce_ex__:
        return ()
    attributes: dict[str, Any] = getattr(node, "__dict__", {})
    return list(attributes.items())


def _is_picklable(node: object) -> bool:
    pickler = _StatePickler(_Nowhere())
    try:
        pickler.dump(node)
        pickler.tensors.settle()
    except Exception:  # noqa: BLE001 - __reduce__ is anybody's code
        return False
    return True


class _Nowhere(io.BytesIO):
    """Forgets what is written to it."""

    def write(self, raw: Any, /) -> int:
        return len(raw)


class _StatePickler(pickle.Pickler):
    """torch's pickler, plus storages that are viewed under several dtypes.

    Plain tensors get a number only: what it writes has to be spliced by its ``tensors``.
    """

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=PICKLE_PROTOCOL)
        self.storages = Storages()
        self.tensors = PlainTensors(self.storages)

    def persistent_id(self, obj: Any) -> int | tuple[object, ...] | None:
        if type(obj) in _NO_STORAGES:
            return None
        if type(obj) is torch.Tensor and is_plain(obj):
            if obj.requires_grad and self._needs_own_dtype(obj):
                return None  # to be rebuilt in two steps; see _with_own_dtype
            return self.tensors.number_of(obj)
        if isinstance(obj, DeviceArray):
            key = self._key_of(obj.key, obj, torch.uint8)
            return ("storage", torch.UntypedStorage, key, f"cuda:{obj.device}", obj.nbytes)
        if not isinstance(obj, (torch.storage.TypedStorage, torch.UntypedStorage)):
            return None
        if isinstance(obj, torch.storage.TypedStorage):
            storage = obj._untyped_storage
            dtype = obj.dtype
            storage_type = getattr(torch, obj._pickle_storage_type())
            numel = obj._size()
        else:
            storage = obj
            dtype = torch.uint8
            storage_type = torch.UntypedStorage
            numel = obj.nbytes()
        key = self._key_of(storage._cdata, storage, dtype)
        location = torch.serialization.location_tag(storage)
        return ("storage", storage_type, key, location, numel)

    def _key_of(
        self, identity: int, storage: torch.UntypedStorage | DeviceArray, dtype: torch.dtype
    ) -> str:
        self.tensors.settle()
        return str(self.storages.add(identity, storage, dtype))

    def reducer_override(self, obj: Any) -> Any:
        if not isinstance(obj, torch.Tensor):
            return _reduce_array(device_array(obj)) if is_device_array(obj) else NotImplemented
        if torch.nn.parameter.is_lazy(obj):
            return NotImplemented
        if obj.layout != torch.strided or not torch._C._has_storage(obj):
            return NotImplemented
        if self._needs_own_dtype(obj):
            return _with_own_dtype(obj.__reduce_ex__(PICKLE_PROTOCOL), obj.dtype)
        return NotImplemented

    def _needs_own_dtype(self, tensor: torch.Tensor) -> bool:
        storage = tensor.untyped_storage()
        self.tensors.settle()
        return self.storages.needs_own_dtype(storage._cdata, storage.nbytes(), tensor.dtype)


def _reduce_array(array: DeviceArray) -> tuple[Any, tuple[Any, ...]]:
    """Reduce a device array to the torch tensor that it would be."""
    view = (array, 0, array.shape, array.strides, False, None, array.dtype)
    return (_rebuild_tensor_v3, view)


def _with_own_dtype(reduced: Any, dtype: torch.dtype) -> Any:
    """Rewrite what ``Tensor.__reduce_ex__`` gave so that the view names its dtype itself."""
    function, arguments, *rest = reduced
    if function is _rebuild_tensor_v2:
        storage, offset, size, stride, requires_grad, hooks, *metadata = arguments
        view = (storage._untyped_storage, offset, size, stride, requires_grad, hooks, dtype)
        return _with_own_dtype((_rebuild_tensor_v3, (*view, *metadata), *rest), dtype)
    if function is _rebuild_tensor_v3 and arguments[4]:  # it cannot make what requires gradients
        view = (*arguments[:4], False, *arguments[5:])
        state = {"requires_grad": True}
        typed = (_rebuild_tensor_v3, torch.Tensor, view, state)
        return (torch._tensor._rebuild_from_type_v2, typed, *rest)
    if function is torch._tensor._rebuild_from_type_v2:
        inner, cls, inner_arguments, state = arguments
        inner, inner_arguments = _with_own_dtype((inner, inner_arguments), dtype)
        return (function, (inner, cls, inner_arguments, state), *rest)
    return reduced
