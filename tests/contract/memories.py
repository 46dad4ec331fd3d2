"""Memory of each kind for tests of engines, between guards that tell whether more was written."""

from __future__ import annotations

import ctypes
import mmap

from fake_cuda.stand_ins import FakeCuda

from gdsckpt import native

GUARD = 0xA5
"""What fills memory around that of a test."""


class HostMemory:
    """Host memory between guards; ``address`` is not aligned unless ``offset`` makes it so."""

    device = native.HOST
    guard_bytes = 4096

    def __init__(self, data: bytes, offset: int = 0) -> None:
        self.nbytes = len(data)
        self._room = mmap.mmap(-1, self.nbytes + offset + 2 * self.guard_bytes)
        self._begin = self.guard_bytes + offset
        self._room[:] = bytes([GUARD]) * len(self._room)
        self.fill(data)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._room)) + self._begin

    def fill(self, data: bytes) -> None:
        """Set the bytes."""
        self._room[self._begin : self._begin + len(data)] = data

    def data(self) -> bytes:
        """Give the bytes."""
        return self._room[self._begin : self._begin + self.nbytes]

    def is_guarded(self) -> bool:
        """Tell whether nothing was written around it."""
        before, after = self._room[: self._begin], self._room[self._begin + self.nbytes :]
        return set(before) | set(after) == {GUARD}


class FakeMemory:
    """Memory of a stand-in's device, between guards."""

    guard_bytes = 4096

    def __init__(self, cuda: FakeCuda, data: bytes, offset: int, device: int, kind: str) -> None:
        self._cuda = cuda
        self.device = device
        self.nbytes = len(data)
        self._room_bytes = self.nbytes + offset + 2 * self.guard_bytes
        self.base = cuda.alloc(self._room_bytes, device, kind)
        self._begin = self.guard_bytes + offset
        self.address = self.base + self._begin
        cuda.poke(self.base, bytes([GUARD]) * self._room_bytes)
        self.fill(data)

    def fill(self, data: bytes) -> None:
        """Set the bytes, behind the back of all streams."""
        self._cuda.poke(self.address, data)

    def data(self) -> bytes:
        """Give the bytes, behind the back of all streams."""
        return self._cuda.peek(self.address, self.nbytes)

    def is_guarded(self) -> bool:
        """Tell whether nothing was written around it."""
        room = self._cuda.peek(self.base, self._room_bytes)
        return set(room[: self._begin]) | set(room[self._begin + self.nbytes :]) == {GUARD}

    def free(self) -> None:
        """Give the memory back, whatever still uses it."""
        self._cuda.free(self.base)


class GpuMemory:
    """Memory of a real GPU, between guards."""

    guard_bytes = 4096

    def __init__(self, data: bytes, offset: int, device: int) -> None:
        self.device = device
        self.nbytes = len(data)
        self._begin = self.guard_bytes + offset
        self._room_bytes = self.nbytes + offset + 2 * self.guard_bytes
        self._memory = native.DeviceMemory(device, self._room_bytes)
        self.address = self._memory.address + self._begin
        self._put(self._memory.address, bytes([GUARD]) * self._room_bytes)
        self.fill(data)

    def _put(self, address: int, data: bytes) -> None:
        room = (ctypes.c_char * max(1, len(data))).from_buffer_copy(data or b"\0")
        if data:
            native.cuda_copy_to_device(self.device, address, ctypes.addressof(room), len(data))

    def _get(self, address: int, nbytes: int) -> bytes:
        return read_gpu(self.device, address, nbytes)

    def fill(self, data: bytes) -> None:
        """Set the bytes."""
        self._put(self.address, data)

    def data(self) -> bytes:
        """Give the bytes."""
        return self._get(self.address, self.nbytes)

    def is_guarded(self) -> bool:
        """Tell whether nothing was written around it."""
        room = self._get(self._memory.address, self._room_bytes)
        return set(room[: self._begin]) | set(room[self._begin + self.nbytes :]) == {GUARD}


def read_gpu(device: int, address: int, nbytes: int) -> bytes:
    """Give the bytes of a real GPU."""
    room = ctypes.create_string_buffer(max(1, nbytes))
    if nbytes:
        native.cuda_copy_to_host(ctypes.addressof(room), device, address, nbytes)
    return room.raw[:nbytes]
