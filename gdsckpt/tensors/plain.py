"""Plain tensors of a state: gathered by number while it is pickled, rebuilt by native code."""

from __future__ import annotations

import functools
import pickle
import pickletools
from array import array
from typing import Any, NamedTuple, TypeAlias

import torch
from torch._utils import _rebuild_tensor_v2, _rebuild_tensor_v3

from gdsckpt import native
from gdsckpt.tensors.arrays import DeviceArray
from gdsckpt.tensors.naming import TensorFacts

PICKLE_PROTOCOL = 2
"""The protocol of ``torch.save`` and the one that its ``weights_only`` unpickler knows best."""

_NO_PIECE = 2**64 - 1
"""In a row: the dtype of the tensor is that of its storage."""

_Sizes: TypeAlias = tuple[int, ...]


class _Kind(NamedTuple):
    """What there is to know of a dtype.

    Attributes:
        name: As the chunk table has it.
        itemsize: Bytes of an element.
        pieces: Rebuild function, type of the storage, and no dtype, for a storage of this dtype.
    """

    name: str
    itemsize: int
    pieces: tuple[int, int, int]


_STORAGE_TYPES: dict[torch.dtype, str] = torch.storage._dtype_to_storage_type_map()
"""The dtypes that have a typed storage, and its name."""

_has_names = getattr(torch.Tensor, "has_names", None)
"""Tells of names of dimensions, which torch refuses to save; torch 2.13 has none."""


class _Form(NamedTuple):
    """What many tensors have in common.

    Attributes:
        pieces: Sizes and strides.
        shape: For the chunk table; so is the next.
        strides: In elements; None where contiguous.
    """

    pieces: tuple[int, int]
    shape: _Sizes
    strides: _Sizes | None


def is_plain(tensor: torch.Tensor) -> bool:
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
        and (_has_names is None or not _has_names(tensor))
        and torch._C._has_storage(tensor)
    )


class Storages:
    """The storages of a state, numbered in the order in which the pickler meets them.

    Attributes:
        met: Storage ``n`` is record ``data/<n>``.
        key_of: ``_cdata`` of a storage, or key of a device array, to its number.
    """

    def __init__(self) -> None:
        self.met: list[torch.UntypedStorage | DeviceArray] = []
        self.key_of: dict[int, int] = {}
        self._dtype_of: list[torch.dtype] = []

    def add(
        self, identity: int, storage: torch.UntypedStorage | DeviceArray, dtype: torch.dtype
    ) -> int:
        """Give the number of a storage; the dtype counts where it is a new one."""
        key = self.key_of.get(identity)
        if key is None:
            key = self.key_of[identity] = len(self.met)
            self.met.append(storage)
            self._dtype_of.append(dtype)
        return key

    def needs_own_dtype(self, identity: int, nbytes: int, dtype: torch.dtype) -> bool:
        """Tell whether the dtype of a storage would mislead the reader about a view of it.

        The reader gives every view the dtype that the storage had when it was first met.
        """
        if dtype not in _STORAGE_TYPES or nbytes % dtype.itemsize:
            return True  # a typed storage would lose the last bytes, which other views may need
        key = self.key_of.get(identity)
        return key is not None and self._dtype_of[key] != dtype


class PlainTensors:
    """Plain tensors, each with a number that stands for it in the pickle until it is spliced.

    A tensor costs the pickler a dozen calls of Python, and states have 100,000: so it gets a number
    as the persistent id of each, and what rebuilds them is put in by native code. That does what
    ``Tensor.__reduce_ex__`` would, to less: equal sizes and strides are one tuple, which the pickle
    holds once; and None stands for the empty dictionary of hooks, as in a tensor that never had
    one. Storages that are viewed under several dtypes, which stock ``torch.save`` refuses, are
    rebuilt with ``_rebuild_tensor_v3``: it names the dtype of the view itself, and stock
    ``torch.load`` knows it, in ``weights_only`` mode too.

    Args:
        storages: Get the tensors' storages.

    Attributes:
        met: The tensors, in the order of their numbers.
    """

    def __init__(self, storages: Storages) -> None:
        self._storages = storages
        self._number_of: dict[int, int] = {}
        self.met: list[torch.Tensor] = []
        self._facts: list[TensorFacts] = []
        self._rows = array("Q")
        self._pieces: list[bytes] = []
        self._piece_of: dict[Any, int] = {}
        self._form_of: dict[tuple[_Sizes, _Sizes], _Form] = {}
        self._kind_of: dict[torch.dtype, _Kind] = {}
        self._location_of: dict[torch.device, int] = {}

    def number_of(self, tensor: torch.Tensor) -> int:
        """Give the number of a plain tensor, which is kept alive: the same one for the same."""
        number = self._number_of.get(id(tensor))
        if number is None:
            number = self._number_of[id(tensor)] = len(self.met)
            self.met.append(tensor)
        return number

    def settle(self) -> None:
        """Number the storages of the tensors so far, before those of what comes next."""
        for tensor in self.met[len(self._facts) :]:
            self._settle(tensor)

    def facts(self) -> dict[int, TensorFacts]:
        """Give what was found of each, by its ``id``."""
        return dict(zip(self._number_of, self._facts, strict=True))

    def spliced(self, pickled: bytes) -> bytes:
        """Give a pickle in which the tensors stand in the place of their numbers."""
        return native.splice_pickle(pickled, self._rows, self._pieces) if self._rows else pickled

    def _settle(self, tensor: torch.Tensor) -> None:
        storage, dtype = tensor.untyped_storage(), tensor.dtype
        identity, nbytes = storage._cdata, storage.nbytes()
        kind = self._kind_of.get(dtype) or self._add_kind(dtype)
        pieces, numel = kind.pieces, nbytes // kind.itemsize
        if self._storages.needs_own_dtype(identity, nbytes, dtype):
            pieces, numel, dtype = self._own_dtype_pieces(dtype), nbytes, torch.uint8
        key = self._storages.add(identity, storage, dtype)
        device = storage.device
        location = self._location_of.get(device)
        if location is None:
            tag = torch.serialization.location_tag(storage)
            location = self._location_of[device] = self._piece(tag)
        offset = int(tensor.storage_offset())
        form = self._form_of.get((tensor.shape, tensor.stride())) or self._add_form(tensor)
        self._rows.extend(
            (*pieces, key, location, numel, offset, *form.pieces, tensor.requires_grad)
        )
        facts = (kind.name, form.shape, form.strides, key, offset * kind.itemsize)
        self._facts.append(TensorFacts._make(facts))

    def _add_kind(self, dtype: torch.dtype) -> _Kind:
        name = str(dtype).removeprefix("torch.")
        storage_type = getattr(torch, _STORAGE_TYPES.get(dtype, "UntypedStorage"))
        pieces = (self._piece(_rebuild_tensor_v2), self._piece(storage_type), _NO_PIECE)
        kind = self._kind_of[dtype] = _Kind(name, dtype.itemsize, pieces)
        return kind

    def _own_dtype_pieces(self, dtype: torch.dtype) -> tuple[int, int, int]:
        untyped = self._piece(torch.UntypedStorage)
        return (self._piece(_rebuild_tensor_v3), untyped, self._piece(dtype))

    def _add_form(self, tensor: torch.Tensor) -> _Form:
        shape, stride = tuple(tensor.shape), tensor.stride()
        pieces = (self._piece(shape), self._piece(stride))
        strides = None if tensor.is_contiguous() else stride
        form = self._form_of[shape, stride] = _Form(pieces, shape, strides)
        return form

    def _piece(self, value: Any) -> int:
        """Give the index of the opcodes that push a value."""
        index = self._piece_of.get(value)
        if index is None:
            index = self._piece_of[value] = len(self._pieces)
            self._pieces.append(_opcodes_of(value))
        return index


@functools.lru_cache(maxsize=4096)  # the next state has the same ones, and pickletools is slow
def _opcodes_of(value: Any) -> bytes:
    """Give the opcodes that push a value, and put nothing into the memo."""
    whole = pickletools.optimize(pickle.dumps(value, protocol=PICKLE_PROTOCOL))
    return whole[2:-1]  # without those of begin and end
