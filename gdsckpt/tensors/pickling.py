"""Pickle a state the way torch does, and collect the storages it refers to."""

from __future__ import annotations

import io
import pickle
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any, NamedTuple, TypeAlias

import torch
from torch._utils import _rebuild_tensor_v2, _rebuild_tensor_v3

from gdsckpt.errors import ConfigError, GdsckptError
from gdsckpt.tensors.arrays import DeviceArray, device_array, is_device_array
from gdsckpt.tensors.naming import Path, TensorFacts, children_of
from gdsckpt.tensors.stateful import labelled

PICKLE_PROTOCOL = 2
"""The protocol of ``torch.save`` and the one that its ``weights_only`` unpickler knows best."""


class _Kind(NamedTuple):
    """What there is to know of a dtype."""

    name: str
    itemsize: int
    storage_type: Any


_KINDS = {
    dtype: _Kind(str(dtype).removeprefix("torch."), dtype.itemsize, getattr(torch, name))
    for dtype, name in torch.storage._dtype_to_storage_type_map().items()
}
"""The dtypes that have a typed storage, which torch's older rebuild function needs."""

_Sizes: TypeAlias = tuple[int, ...]
_Form: TypeAlias = tuple[_Sizes, _Sizes, _Sizes | None]
"""Size, stride, and the stride as the chunk table has it."""


_NO_STORAGES = frozenset(
    {str, int, float, bool, type(None), tuple, list, dict, OrderedDict}
    | {type, FunctionType, torch.Tensor}
)
"""What the pickler asks about most often; a look into a set is quicker than three type checks."""


@dataclass(frozen=True, slots=True)
class PickledState:
    """A state as pickle bytes and storages.

    Attributes:
        pickle: Content of ``data.pkl``.
        storages: Storage ``n`` is record ``data/<n>``; the references keep their memory alive.
        key_of: ``_cdata`` of a storage, or key of a device array, to its key ``n``.
        facts: What was found of plain tensors, by their ``id``.
    """

    pickle: bytes
    storages: list[torch.UntypedStorage | DeviceArray]
    key_of: dict[int, int]
    facts: dict[int, TensorFacts]


def pickle_state(obj: object) -> PickledState:
    """Pickle ``obj`` with torch's persistent ids for its storages.

    Raises:
        ConfigError: Something in ``obj`` cannot be pickled; the text names its place.
    """
    buffer = io.BytesIO()
    pickler = _StatePickler(buffer)
    try:
        pickler.dump(obj)
    except (GdsckptError, MemoryError):
        raise
    except Exception as error:  # __reduce__ is anybody's code
        raise ConfigError(
            f"the state cannot be pickled: {_what_failed(obj, error)}: {type(error).__name__}: "
            f"{error}. Leave it out, or save what is needed to rebuild it.",
            field="obj",
        ) from error
    return PickledState(buffer.getvalue(), pickler.storages, pickler.key_of, pickler.facts)


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
    try:
        _StatePickler(_Nowhere()).dump(node)
    except Exception:  # noqa: BLE001 - __reduce__ is anybody's code
        return False
    return True


class _Nowhere(io.BytesIO):
    """Forgets what is written to it."""

    def write(self, raw: Any, /) -> int:
        return len(raw)


class _StorageId:
    """A persistent id that is known before the pickler asks for it.

    What ``torch.storage.TypedStorage`` would say to it, in a tenth of the time.
    """

    __slots__ = ("persistent_id",)

    def __init__(self, persistent_id: tuple[object, ...]) -> None:
        self.persistent_id = persistent_id


def _is_plain(tensor: torch.Tensor) -> bool:
    """Tell whether a storage, sizes and strides are all that makes a tensor."""
    return (
        type(tensor) is torch.Tensor
        and tensor.layout == torch.strided
        and (tensor.is_cpu or tensor.is_cuda)
        and not tensor.is_quantized
        and not tensor.is_nested
        and not tensor._backward_hooks  # torch warns of them
        and not torch._C._get_tensor_metadata(tensor)  # type: ignore[attr-defined]
        and not tensor.__dict__
        and torch._C._has_storage(tensor)
    )


class _StatePickler(pickle.Pickler):
    """torch's pickler, plus storages that are viewed under several dtypes.

    Stock ``torch.save`` refuses those, because the reader gives every view the dtype that the
    storage had when it was first met. ``_rebuild_tensor_v3`` names the dtype of the view
    itself, and stock ``torch.load`` knows it (in ``weights_only`` mode too), so later views of
    another dtype are written with it.
    """

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=PICKLE_PROTOCOL)
        self.storages: list[torch.UntypedStorage | DeviceArray] = []
        self.key_of: dict[int, int] = {}
        self.facts: dict[int, TensorFacts] = {}
        self._location_of: dict[torch.device, str] = {}
        self._dtype_of: dict[int, torch.dtype] = {}
        self._tuple_of: dict[_Sizes, _Sizes] = {}
        self._form_of: dict[tuple[_Sizes, _Sizes], _Form] = {}

    def persistent_id(self, obj: Any) -> tuple[object, ...] | None:
        if type(obj) in _NO_STORAGES:
            return None
        if type(obj) is _StorageId:
            return obj.persistent_id
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
        key = self.key_of.get(identity)
        return str(self._add(identity, storage, dtype) if key is None else key)

    def _add(
        self, identity: int, storage: torch.UntypedStorage | DeviceArray, dtype: torch.dtype
    ) -> int:
        key = self.key_of[identity] = len(self.storages)
        self._dtype_of[identity] = dtype
        self.storages.append(storage)
        return key

    def reducer_override(self, obj: Any) -> Any:
        if not isinstance(obj, torch.Tensor):
            return _reduce_array(device_array(obj)) if is_device_array(obj) else NotImplemented
        if _is_plain(obj):
            return self._reduce_plain(obj)
        if torch.nn.parameter.is_lazy(obj):
            return NotImplemented
        if obj.layout != torch.strided or not torch._C._has_storage(obj):
            return NotImplemented
        storage = obj.untyped_storage()
        if self._needs_own_dtype(storage._cdata, storage.nbytes(), obj.dtype):
            return _with_own_dtype(obj.__reduce_ex__(PICKLE_PROTOCOL), obj.dtype)
        return NotImplemented

    def _reduce_plain(self, tensor: torch.Tensor) -> Any:
        """Reduce as ``Tensor.__reduce_ex__`` does, to less: states have 100,000 tensors.

        Equal sizes and strides are one tuple, which the pickle holds once; and None stands for the
        empty dictionary of hooks, as in a tensor that never had one.
        """
        storage, dtype = tensor.untyped_storage(), tensor.dtype
        identity, nbytes = storage._cdata, storage.nbytes()
        kind = _KINDS.get(dtype)
        if kind is None or self._needs_own_dtype(identity, nbytes, dtype):
            return _with_own_dtype(tensor.__reduce_ex__(PICKLE_PROTOCOL), dtype)
        key = self.key_of.get(identity)
        if key is None:
            key = self._add(identity, storage, dtype)
        device = storage.device
        location = self._location_of.get(device)
        if location is None:
            location = self._location_of[device] = torch.serialization.location_tag(storage)
        offset = int(tensor.storage_offset())
        form = (tuple(tensor.shape), tensor.stride())
        known = self._form_of.get(form)
        if known is None:
            known = self._form_of[form] = self._form(form, is_contiguous=tensor.is_contiguous())
        size, stride, listed_stride = known
        self.facts[id(tensor)] = TensorFacts(
            tensor, kind.name, size, listed_stride, key, offset * kind.itemsize
        )
        numel = nbytes // kind.itemsize
        stored = _StorageId(("storage", kind.storage_type, str(key), location, numel))
        return (_rebuild_tensor_v2, (stored, offset, size, stride, tensor.requires_grad, None))

    def _form(self, form: tuple[_Sizes, _Sizes], *, is_contiguous: bool) -> _Form:
        size, stride = (self._tuple_of.setdefault(each, each) for each in form)
        return size, stride, None if is_contiguous else stride

    def _needs_own_dtype(self, identity: int, nbytes: int, dtype: torch.dtype) -> bool:
        """Tell whether the dtype of a storage would mislead the reader about a view of it."""
        kind = _KINDS.get(dtype)
        if kind is None or nbytes % kind.itemsize:
            return True  # a typed storage would lose the last bytes, which other views may need
        return self._dtype_of.get(identity, dtype) != dtype


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
        return (_rebuild_tensor_v3, (*view, *metadata), *rest)
    if function is torch._tensor._rebuild_from_type_v2:
        inner, cls, inner_arguments, state = arguments
        inner, inner_arguments = _with_own_dtype((inner, inner_arguments), dtype)
        return (function, (inner, cls, inner_arguments, state), *rest)
    return reduced
