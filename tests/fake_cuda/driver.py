"""Libcuda's functions by ctypes, for tests: what a user of CUDA, such as torch, would do."""

from __future__ import annotations

import ctypes
from contextlib import contextmanager

from fake_cuda.stand_ins import FakeCuda

NON_BLOCKING = 1
DISABLE_TIMING = 2


class CudaFailure(Exception):
    """A function gave a code."""

    def __init__(self, function: str, code: int) -> None:
        super().__init__(f"{function} gave {code}")
        self.code = code


class Driver:
    """Calls functions of the driver that a stand-in is."""

    def __init__(self, cuda: FakeCuda) -> None:
        self._library = cuda.library
        self._made: list[tuple[str, int]] = []
        self.check("cuInit", 0)

    def code(self, function: str, *arguments: object) -> int:
        """Call a function; gives its code. Integers are passed as 64 bits."""
        passed = [
            ctypes.c_uint64(argument & (2**64 - 1)) if isinstance(argument, int) else argument
            for argument in arguments
        ]
        return getattr(self._library, function)(*passed)

    def check(self, function: str, *arguments: object) -> None:
        """Call a function that has to succeed."""
        code = self.code(function, *arguments)
        if code != 0:
            raise CudaFailure(function, code)

    def get(self, function: str, *arguments: object) -> int:
        """Call a function that gives a number or handle through its first argument."""
        value = ctypes.c_uint64(0)
        self.check(function, ctypes.byref(value), *arguments)
        return value.value

    def retain(self, device: int = 0) -> int:
        """Retain a device's primary context."""
        return self.get("cuDevicePrimaryCtxRetain", device)

    @contextmanager
    def on(self, device: int = 0):
        """Make a device's primary context current."""
        self.check("cuCtxPushCurrent_v2", self.retain(device))
        try:
            yield
        finally:
            self.code("cuCtxPopCurrent_v2", None)
            self.code("cuDevicePrimaryCtxRelease_v2", device)

    def stream(self) -> int:
        """Make a stream that does not wait for the default stream."""
        return self._make("cuStreamDestroy_v2", self.get("cuStreamCreate", NON_BLOCKING))

    def event(self) -> int:
        """Make an event."""
        return self._make("cuEventDestroy_v2", self.get("cuEventCreate", DISABLE_TIMING))

    def _make(self, destroy: str, handle: int) -> int:
        self._made.append((destroy, handle))
        return handle

    def destroy(self) -> None:
        """Destroy the streams and events that were made here."""
        while self._made:
            self.code(*self._made.pop())
