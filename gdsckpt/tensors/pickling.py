"""Pickle a state the way torch does, and collect the storages it refers to."""

from __future__ import annotations

import io
import pickle
from dataclasses import dataclass
from typing import Any

import torch
from torch._utils import _rebuild_tensor_v2, _rebuild_tensor_v3

from gdsckpt.errors import ConfigError, GdsckptError

PICKLE_PROTOCOL = 2
"""The protocol of ``torch.save`` and the one that its ``weights_only`` unpickler knows best."""


_TYPED_STORAGE_DTYPES = frozenset(torch.storage._dtype_to_storage_type_map())
"""dtypes that have a typed storage, which torch's older rebuild function needs."""


@dataclass(frozen=True, slots=True)
class PickledState:
    """A state as pickle bytes and storages.

    Attributes:
        pickle: Content of ``data.pkl``.
        storages: Storage ``n`` is record ``data/<n>``; the references keep their memory alive.
        key_of: ``_cdata`` of a storage to its key ``n``.
    """

    pickle: bytes
    storages: list[torch.UntypedStorage]
    key_of: dict[int, int]


def pickle_state(obj: object) -> PickledState:
    """Pickle ``obj`` with torch's persistent ids for its storages.

    Raises:
        ConfigError: Something in ``obj`` cannot be pickled.
    """
    buffer = io.BytesIO()
    pickler = _StatePickler(buffer)
    try:
        pickler.dump(obj)
    except (GdsckptError, MemoryError):
        raise
    except Exception as error:  # __reduce__ is anybody's code
        raise ConfigError(
            f"the state cannot be pickled: {type(error).__name__}: {error}. Leave the object out, "
            "or save what is needed to rebuild it.",
            field="obj",
        ) from error
    return PickledState(buffer.getvalue(), pickler.storages, pickler.key_of)


class _StatePickler(pickle.Pickler):
    """torch's pickler, plus storages that are viewed under several dtypes.

    Stock ``torch.save`` refuses those, because the reader gives every view the dtype that the
    storage had when it was first met. ``_rebuild_tensor_v3`` names the dtype of the view
    itself, and stock ``torch.load`` knows it (in ``weights_only`` mode too), so later views of
    another dtype are written with it.
    """

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=PICKLE_PROTOCOL)
        self.storages: list[torch.UntypedStorage] = []
        self.key_of: dict[int, int] = {}
        self._dtype_of: dict[int, torch.dtype] = {}

    def persistent_id(self, obj: Any) -> tuple[object, ...] | None:
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
        cdata = storage._cdata
        if cdata not in self.key_of:
            self.key_of[cdata] = len(self.storages)
            self._dtype_of[cdata] = dtype
            self.storages.append(storage)
        location = torch.serialization.location_tag(storage)
        return ("storage", storage_type, str(self.key_of[cdata]), location, numel)

    def reducer_override(self, obj: Any) -> Any:
        if not isinstance(obj, torch.Tensor) or not self._needs_own_dtype(obj):
            return NotImplemented
        return _with_own_dtype(obj.__reduce_ex__(PICKLE_PROTOCOL), obj.dtype)

    def _needs_own_dtype(self, tensor: torch.Tensor) -> bool:
        """Tell whether the storage's own dtype would mislead the reader about this view."""
        if tensor.layout != torch.strided or not torch._C._has_storage(tensor):
            return False
        if tensor.dtype not in _TYPED_STORAGE_DTYPES:
            return True
        storage = tensor.untyped_storage()
        if storage.nbytes() % tensor.dtype.itemsize:
            return True  # a typed storage would lose the last bytes, which other views may need
        known = self._dtype_of.get(storage._cdata)
        return known is not None and known != tensor.dtype


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
