"""Device arrays of CuPy, Numba and others, as torch would see them, without a copy."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from gdsckpt import native
from gdsckpt.engine.driver import cuda_unusable
from gdsckpt.errors import ConfigError, EngineUnavailableError

_KDL_CUDA = 2  # DLDeviceType of dlpack.h

_ADDRESSES_END = 2**63
"""Behind what addresses and sizes can be; file offsets end there too."""

_DTYPE_OF = {
    "b1": torch.bool,
    "i1": torch.int8,
    "i2": torch.int16,
    "i4": torch.int32,
    "i8": torch.int64,
    "u1": torch.uint8,
    "u2": torch.uint16,
    "u4": torch.uint32,
    "u8": torch.uint64,
    "f2": torch.float16,
    "f4": torch.float32,
    "f8": torch.float64,
    "c8": torch.complex64,
    "c16": torch.complex128,
}
"""By the type string of ``__cuda_array_interface__``, without its byte order."""


@dataclass(frozen=True, slots=True)
class DeviceArray:
    """The memory of a device array.

    Attributes:
        address: First byte that an element uses; 0 where there is none.
        nbytes: Bytes from there to the end of the last element.
        device: CUDA's number of the GPU.
        dtype: torch's name of the element type.
        shape: Sizes.
        strides: In elements, none negative.
        stream: CUDA stream that makes the contents, 0 for the default one; None: they are there.
        owner: The array, which keeps the memory alive.
        is_read_only: It says that nothing may be written to it.
    """

    address: int
    nbytes: int
    device: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    stream: int | None
    owner: object
    is_read_only: bool = False

    @property
    def key(self) -> int:
        """A number of this memory's own; no torch storage has it, as those have positive ones."""
        return -(((self.address or id(self.owner)) << 64) + self.nbytes)

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements stand in the order of C without gaps."""
        return self.strides == _c_strides(self.shape)

    def copy_(self, values: torch.Tensor) -> None:
        """Fill the array, which is contiguous, with a tensor of the same shape, as torch would.

        After what is queued on its stream now.
        """
        if not self.nbytes:
            return
        ready = values.detach().to("cpu", self.dtype).contiguous()
        native.cuda_copy_to_device(
            self.device,
            self.address,
            ready.data_ptr(),
            self.nbytes,
            streams=array_streams([self]),
        )


def is_device_array(obj: object) -> bool:
    """Tell whether an object that is no torch tensor is an array on a GPU."""
    cls = type(obj)
    if isinstance(obj, torch.Tensor) or cls is type:
        return False
    # JAX's arrays have it in their class, and raise AttributeError where they are not on a GPU.
    if hasattr(cls, "__cuda_array_interface__") and hasattr(obj, "__cuda_array_interface__"):
        return True
    if not (hasattr(cls, "__dlpack__") and hasattr(cls, "__dlpack_device__")):
        return False
    try:
        device: tuple[int, int] = obj.__dlpack_device__()  # type: ignore[attr-defined]
        return int(device[0]) == _KDL_CUDA
    except Exception:  # noqa: BLE001 - of several devices, deleted: it is pickled as any object
        return False


def device_array(obj: Any) -> DeviceArray:
    """Describe an array on a GPU.

    Raises:
        ConfigError: It has elements or strides that torch does not know, or a mask.
        EngineUnavailableError: CUDA cannot be used.

    Source: Numba documentation, "CUDA Array Interface (Version 3)"; DLPack through torch.
    """
    if not hasattr(type(obj), "__cuda_array_interface__"):
        return _of_tensor(torch.utils.dlpack.from_dlpack(obj), obj)
    interface = obj.__cuda_array_interface__
    try:
        shape = tuple(int(n) for n in interface["shape"])
        typestr = str(interface["typestr"])
        begin, is_read_only = interface["data"]
    except (KeyError, TypeError, ValueError) as error:
        why = f"its __cuda_array_interface__ is incomplete: {error!r}"
        raise _refused(obj, why, "Copy it") from error
    dtype = _dtype_of(obj, typestr)
    strides = _element_strides(obj, interface.get("strides"), shape, dtype.itemsize)
    if interface.get("mask") is not None:
        raise _refused(obj, "it has a mask", "Save its data and its mask")
    nbytes = _span_elements(shape, strides) * dtype.itemsize
    address = int(begin) if nbytes else 0
    stream = _stream_of(interface.get("stream"))
    is_sound = min(shape, default=0) >= 0 and 0 <= (stream or 0) < _ADDRESSES_END
    if not is_sound or address < 0 or address + nbytes > _ADDRESSES_END:
        raise _refused(obj, f"no memory is as it describes itself ({interface})", "Copy it")
    why = cuda_unusable()
    if why:
        raise EngineUnavailableError(
            f"a {_name(obj)} cannot be saved or filled: {why}. Copy it to the host.",
            engine="pinned",
            reasons=(why,),
        )
    device = native.cuda_device_of(address) if nbytes else 0
    return DeviceArray(
        address, nbytes, device, dtype, shape, strides, stream, obj, bool(is_read_only)
    )


def array_streams(storages: Iterable[object]) -> array[int]:
    """Give the streams that make the contents of the arrays among ``storages``.

    Returns:
        Rows of (device, CUDA stream), each once.
    """
    rows = {
        (storage.device, storage.stream)
        for storage in storages
        if isinstance(storage, DeviceArray) and storage.stream is not None
    }
    return array("Q", [number for row in sorted(rows) for number in row])


def _of_tensor(tensor: torch.Tensor, owner: object) -> DeviceArray:
    nbytes = _span_elements(tuple(tensor.shape), tensor.stride()) * tensor.dtype.itemsize
    return DeviceArray(
        address=tensor.data_ptr() if nbytes else 0,
        nbytes=nbytes,
        device=tensor.device.index or 0,
        dtype=tensor.dtype,
        shape=tuple(tensor.shape),
        strides=tensor.stride(),
        stream=torch.cuda.current_stream(tensor.device).cuda_stream,
        owner=(owner, tensor),
    )


def _stream_of(stream: object) -> int | None:
    """Read the interface's stream: None for "no order needed", 1 and 2 for the default ones."""
    if stream is None:
        return None
    number = int(stream)  # type: ignore[call-overload]
    # CU_STREAM_LEGACY is 1 and CU_STREAM_PER_THREAD is 2, and handles to the driver (cuda.h).
    return 0 if number == 1 else int(number)


def _dtype_of(obj: object, typestr: str) -> torch.dtype:
    dtype = _DTYPE_OF.get(typestr[1:])
    if dtype is None or typestr[0] not in "<|=":
        raise _refused(obj, f"torch has no type for its elements ({typestr})", "Convert them")
    return dtype


def _element_strides(
    obj: object, strides: Any, shape: tuple[int, ...], item_bytes: int
) -> tuple[int, ...]:
    if strides is None:
        return _c_strides(shape)
    wrong = any(int(stride) < 0 or int(stride) % item_bytes for stride in strides)
    if wrong or len(strides) != len(shape):
        raise _refused(obj, f"torch has no such strides ({strides} bytes)", "Make it contiguous")
    return tuple(int(stride) // item_bytes for stride in strides)


def _c_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(max(1, n) for n in shape[at + 1 :]) for at in range(len(shape)))


def _span_elements(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    if 0 in shape:
        return 0
    return 1 + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))


def _refused(obj: object, why: str, what: str) -> ConfigError:
    return ConfigError(
        f"a {_name(obj)} cannot be saved or filled: {why}. {what} first.", field="obj"
    )


def _name(obj: object) -> str:
    return f"{type(obj).__module__}.{type(obj).__qualname__}"
