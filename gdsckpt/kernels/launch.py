"""Launches of the checksum kernel: tables to the device, CRCs back, streams in order.

Imports numba; only ``crc32`` imports it, at the first call.
"""

from __future__ import annotations

import ctypes
import functools
import re
import threading
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numba
import numpy as np
from numba import cuda

from gdsckpt.errors import CudaError, EngineUnavailableError, GdsckptError
from gdsckpt.kernels.crc32 import HOST, Pieces, Tuning
from gdsckpt.kernels.crc32_kernel import make_kernel
from gdsckpt.kernels.strips import Plan, plan_strips

SIMULATED = bool(numba.config.ENABLE_CUDASIM)
BLOCKS_PER_MULTIPROCESSOR = 8
# numba warns about smaller grids; the blocks beyond the strips end at once.
NUM_BLOCKS_MIN = 1 if SIMULATED else 128

_lock = threading.Lock()
_workspaces: dict[int, _Workspace] = {}


class _Span:
    """A range of device memory, described as numba wants it."""

    def __init__(self, address: int, num_items: int, typestr: str) -> None:
        self.__cuda_array_interface__ = {
            "shape": (num_items,),
            "typestr": typestr,
            "data": (address, False),
            "version": 3,
        }


class _Workspace:
    """Stream, event and tables of one device; made and used in its context."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stream = _side_stream()
        self._written = None if SIMULATED else cuda.event(timing=False)
        self.num_blocks = BLOCKS_PER_MULTIPROCESSOR * _num_multiprocessors()
        self._reserve(1024)

    def _reserve(self, num_pieces: int) -> None:
        device_rows = cuda.device_array((num_pieces, 3), np.int64)
        device_crcs = cuda.device_array(num_pieces, np.uint32)
        rows = cuda.pinned_array((num_pieces, 3), np.int64)
        crcs = cuda.pinned_array(num_pieces, np.uint32)
        self._device_tables, self._tables = (device_rows, device_crcs), (rows, crcs)

    def run(self, plan: Plan, stream: int | None, threads: int) -> array[int]:
        """Launch for a plan, after the work so far in a stream, and wait for the end."""
        with self._lock:
            # An interrupted call may have left copies under way.
            self._stream.synchronize()
            num_pieces = len(plan.rows)
            if num_pieces > len(self._tables[0]):
                self._reserve(2 * num_pieces)
            rows, crcs = (table[:num_pieces] for table in self._tables)
            device_rows, device_crcs = (table[:num_pieces] for table in self._device_tables)
            rows[:], crcs[:] = plan.rows, plan.empty_crcs
            device_rows.copy_to_device(rows, stream=self._stream)
            device_crcs.copy_to_device(crcs, stream=self._stream)
            self._wait_for(stream)
            num_blocks = max(plan.num_strips, NUM_BLOCKS_MIN)
            _kernel(threads)[num_blocks, threads, self._stream](
                *_views(plan), device_rows, plan.strip_bytes, device_crcs
            )
            device_crcs.copy_to_host(crcs, stream=self._stream)
            self._stream.synchronize()
            return array("I", crcs.tobytes())

    def _wait_for(self, stream: int | None) -> None:
        """Let the kernel begin when the work so far in a stream of this device has ended."""
        if stream is not None and self._written is not None:
            self._written.record(cuda.external_stream(stream))
            self._written.wait(self._stream)

    def own_address(self) -> int:
        """Give the address of some memory of the device."""
        return int(self._device_tables[0].device_ctypes_pointer.value)


def crc32_pieces(pieces: Pieces, device: int, stream: int | None, tuning: Tuning) -> array[int]:
    """Compute CRCs; see :func:`gdsckpt.kernels.crc32.crc32_pieces`."""
    with _in_context(device) as workspace:
        plan = plan_strips(pieces, workspace.num_blocks, tuning.strip_bytes)
        if plan.num_strips == 0:
            return array("I", plan.empty_crcs.tobytes())
        return workspace.run(plan, stream, tuning.threads)


def warm_up(device: int, tuning: Tuning) -> None:
    """Compile and load; see :func:`gdsckpt.kernels.crc32.warm_up`."""
    with _in_context(device) as workspace:
        workspace.run(plan_strips([(workspace.own_address(), 1)], 1), None, tuning.threads)


@contextmanager
def _in_context(device: int) -> Iterator[_Workspace]:
    """Make a device's primary context current; its errors come out as this package's."""
    _check_device(device)
    try:
        if device == HOST:
            yield _workspace(device)
        else:
            with cuda.gpus[device]:
                yield _workspace(device)
    except (GdsckptError, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001 numba, cuda-core and libNVVM raise classes of their own
        raise _translated(error, device) from error


def _check_device(device: int) -> None:
    if (device == HOST) == SIMULATED and device >= HOST:
        return
    if SIMULATED:
        why = "numba simulates the device here: unset NUMBA_ENABLE_CUDASIM"
    elif device == HOST:
        why = "host memory needs numba's simulator (NUMBA_ENABLE_CUDASIM=1)"
    else:
        why = "devices are numbered from 0"
    raise EngineUnavailableError(
        f"The checksum kernels cannot be used on device {device}: {why}.", reasons=[why]
    )


def _translated(error: Exception, device: int) -> GdsckptError:
    """Give the error of this package that says what one of numba's or CUDA's means."""
    text = " ".join(str(error).split()) or type(error).__name__
    # ImportError: the parent of numba's errors for a missing driver, libNVVM or NVRTC.
    missing = isinstance(error, (ImportError, IndexError)) or "before forking" in text
    if missing:
        return EngineUnavailableError(
            f"The checksum kernels cannot be used on device {device}: {text}. Check with "
            "'gdsckpt probe', or save with engine='pinned'.",
            reasons=[text],
        )
    op = re.search(r"\bcu[A-Z]\w+", text)
    code = getattr(error, "code", None)
    return CudaError(
        f"The checksum kernels failed on device {device}: {type(error).__name__}: {text}.",
        op=op[0] if op else None,
        code=None if code is None else int(code),
    )


def _workspace(device: int) -> _Workspace:
    with _lock:
        if device not in _workspaces:
            _workspaces[device] = _Workspace()
        return _workspaces[device]


@functools.cache
def _kernel(threads: int) -> Any:
    return make_kernel(threads)


def _side_stream() -> Any:
    """Make a stream that neither waits for CUDA's default stream nor makes it wait."""
    if SIMULATED:
        return cuda.stream()
    from cuda.bindings import driver

    status, handle = driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING)
    if status != driver.CUresult.CUDA_SUCCESS:
        raise CudaError(
            f"cuStreamCreate failed: {status.name}.", op="cuStreamCreate", code=int(status)
        )
    return cuda.external_stream(int(handle))


def _num_multiprocessors() -> int:
    return 1 if SIMULATED else int(cuda.get_current_device().MULTIPROCESSOR_COUNT)


def _views(plan: Plan) -> tuple[Any, Any]:
    """Give the memory from a plan's base on as uint8 and as whole uint32."""
    num_words = plan.span_bytes // 4
    if SIMULATED:
        octets = np.ctypeslib.as_array((ctypes.c_uint8 * plan.span_bytes).from_address(plan.base))
        return octets, octets[: 4 * num_words].view(np.uint32)
    return (
        cuda.as_cuda_array(_Span(plan.base, plan.span_bytes, "|u1")),
        cuda.as_cuda_array(_Span(plan.base, num_words, "<u4")),
    )
