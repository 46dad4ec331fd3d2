"""Arrays in the memory of a stand-in's GPU, for tests that run without one."""

from __future__ import annotations

import math


class FakeArray:
    """What CuPy and Numba arrays show of themselves, over memory of ``FakeCuda``.

    Args:
        cuda: The stand-in.
        data: Contents, of ``shape`` and ``typestr``.
        shape: Sizes.
        typestr: As of NumPy, such as ``"<f4"``.
        device: Which GPU.
        offset: Bytes between the allocation and the first element.
        stream: CUDA stream that makes the contents.
        strides: In bytes; None for those of C.
        kind: How the memory was made; see ``FakeCuda.alloc``.
    """

    def __init__(
        self,
        cuda,
        data,
        shape=None,
        typestr="|u1",
        *,
        device=0,
        offset=0,
        stream=None,
        strides=None,
        kind="device",
    ):
        self.cuda = cuda
        self.shape = (len(data),) if shape is None else shape
        self.typestr = typestr
        self.stream = stream
        self.strides = strides
        self.nbytes = len(data)
        assert strides is not None or math.prod(self.shape) * int(typestr[2:]) == len(data)
        self.base = cuda.alloc(max(1, offset + len(data)), device, kind)
        self.address = self.base + offset
        if data:
            cuda.poke(self.address, data)

    @property
    def __cuda_array_interface__(self):
        return {
            "shape": self.shape,
            "typestr": self.typestr,
            "data": (self.address, False),
            "strides": self.strides,
            "version": 3,
            "stream": self.stream,
        }

    def read(self):
        """Give the bytes that the array holds now."""
        return self.cuda.peek(self.address, self.nbytes)
