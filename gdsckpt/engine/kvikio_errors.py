"""What KvikIO's exceptions mean: it tells everything by text, in a ``RuntimeError``."""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import re
from dataclasses import dataclass

from gdsckpt.errors import (
    CudaError,
    CuFileError,
    GdsckptError,
    ShortTransferError,
    StorageError,
    storage_error_from,
)

# Texts of CUfileOpError in cufile.h, as KvikIO has them in its messages.
CUFILE_CODES = {
    "nvidia-fs driver is not loaded. Set allow_compat_mode to true in cufile.json file to enable "
    "compatible mode": 5001,
    "invalid property": 5002,
    "property range error": 5003,
    "nvidia-fs driver version mismatch": 5004,
    "nvidia-fs driver version read error": 5005,
    "driver shutdown in progress": 5006,
    "GPUDirect Storage not supported on current platform": 5007,
    "GPUDirect Storage not supported on current file": 5008,
    "GPUDirect Storage not supported on current GPU": 5009,
    "nvidia-fs driver ioctl error": 5010,
    "CUDA Driver API error": 5011,
    "invalid device pointer": 5012,
    "invalid pointer memory type": 5013,
    "pointer range exceeds allocated address range": 5014,
    "cuda context mismatch": 5015,
    "access beyond maximum pinned size": 5016,
    "access beyond mapped size": 5017,
    "unsupported file type": 5018,
    "unsupported file open flags": 5019,
    "fd direct IO not set": 5020,
    "invalid arguments": 5022,
    "device pointer already registered": 5023,
    "device pointer lookup failure": 5024,
    "driver or file access error": 5025,
    "driver is already open": 5026,
    "file descriptor is not registered": 5027,
    "file descriptor is already registered": 5028,
    "GPU device not found": 5029,
    "internal error": 5030,
    "failed to obtain new file descriptor": 5031,
    "NVFS driver initialization error": 5033,
    "GPUDirect Storage disabled by config on current file": 5034,
    "failed to allocate pinned GPU Memory": 5036,
    "cufile no memory error - retry later": 5043,
    "cufile io error": 5044,
    "cufile buf registration error": 5045,
    "cufile hash operation error": 5046,
    "cufile invalid context error": 5047,
    "nvfs internal driver error": 5048,
    "compat mode off error": 5049,
}

_PLACE = re.compile(r"(?:KvikIO failure|CUDA error|cuFile error|.*call error) at: \S+?:\d+: ")
_CUDA_NAME = re.compile(r"\b(CUDA_ERROR_\w+)")
_HIGH_ERRNO = re.compile(r"Unknown error (50\d\d)\b")
_CUDA_CODES = range(1, 1000)


@dataclass(frozen=True, slots=True)
class Request:
    """A range of a file, and the device memory that it belongs to."""

    address: int
    nbytes: int
    file_offset: int

    def after(self, nbytes: int) -> Request:
        """Give what is left when ``nbytes`` are done."""
        return Request(self.address + nbytes, self.nbytes - nbytes, self.file_offset + nbytes)


def error_of(error: Exception, op: str, path: str, request: Request | None = None) -> GdsckptError:
    """Say what an exception of KvikIO means.

    Args:
        error: As KvikIO raised it.
        op: ``open``, ``pwrite`` or ``pread``.
        path: The file.
        request: What was to be moved; None where a file was to be opened.

    Returns:
        The narrowest error that its text tells of, not raised.
    """
    text = " ".join(str(error).split())
    if (name := _CUDA_NAME.search(text)) is not None:
        return _cuda_error(text, name.group(1), op, path, request)
    why = _PLACE.split(text)[-1].removeprefix("cuFile error:")
    if why.endswith("pread: EOF"):
        return short_transfer(op, path, request, None)
    code = _cufile_code(text, why)
    # A failed cuFileRead comes as strerror(1) whatever it was: KvikIO takes the -1 for the error.
    is_blurred = "cuFile error at" in text and why == os.strerror(errno.EPERM)
    number = None if is_blurred else _errno_of(why)
    if code is None and number is not None:
        return _storage_error(number, op, path, request)
    return _cufile_error(code, "KvikIO does not tell why" if is_blurred else why, op, path, request)


def short_transfer(
    op: str, path: str, request: Request | None, done_bytes: int | None
) -> ShortTransferError:
    """Give the error of a transfer that ended before its time; ``done_bytes`` None: unknown."""
    nbytes = None if request is None else request.nbytes
    far = "not all of them" if done_bytes is None else f"{done_bytes} of them"
    advice = (
        "The file is shorter than it should be: use another copy."
        if op == "pread"
        else "The file took no more bytes: free space on the file system or save elsewhere."
    )
    return ShortTransferError(
        f"{_what(op, path, request)} ended early: {far} were moved. {advice}",
        op=op,
        path=path,
        offset=None if request is None else request.file_offset,
        nbytes=nbytes,
        expected_bytes=nbytes,
        actual_bytes=done_bytes or 0,
    )


def _what(op: str, path: str, request: Request | None) -> str:
    if request is None:
        return f"{op} of {path} by KvikIO"
    return f"{op} of {request.nbytes} bytes at offset {request.file_offset} in {path} by KvikIO"


def _storage_error(number: int, op: str, path: str, request: Request | None) -> StorageError:
    return storage_error_from(
        OSError(number, os.strerror(number)),
        op=op,
        path=path,
        offset=None if request is None else request.file_offset,
        nbytes=None if request is None else request.nbytes,
    )


def _cufile_error(
    code: int | None, why: str, op: str, path: str, request: Request | None
) -> CuFileError:
    functions = {"pwrite": "cuFileWrite", "pread": "cuFileRead", "open": "cuFileHandleRegister"}
    shown = f"{why} ({code})" if code is not None else why
    return CuFileError(
        f"{_what(op, path, request)} failed: {shown}. Run 'gdsckpt probe' on the directory, set "
        "KVIKIO_COMPAT_MODE=ON, or take engine=pinned.",
        op=functions[op],
        path=path,
        offset=None if request is None else request.file_offset,
        nbytes=None if request is None else request.nbytes,
        code=code,
    )


def _cuda_error(text: str, name: str, op: str, path: str, request: Request | None) -> CudaError:
    why = text[text.index(name) :]
    return CudaError(
        f"{_what(op, path, request)} failed: {why}. Look at 'nvidia-smi' and the kernel log.",
        op=None,  # KvikIO does not name the function
        code=_cuda_code(name),
    )


def _cufile_code(text: str, why: str) -> int | None:
    # cuFile 1.20 puts its code into errno, and KvikIO asks strerror what that is.
    if (number := _HIGH_ERRNO.search(text)) is not None:
        return int(number.group(1))
    return CUFILE_CODES.get(why)


def _errno_of(why: str) -> int | None:
    """Give the error number whose text stands at the end, after ``why``'s own words."""
    tail = why.rpartition(": ")[2]
    return next((number for number in errno.errorcode if os.strerror(number) == tail), None)


@functools.cache
def _cuda_code(name: str) -> int | None:
    """Give the ``CUresult`` of a name, as the driver itself tells it."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")  # the loaded one: it is found by its SONAME
    except OSError:
        return None
    text = ctypes.c_char_p()
    for code in _CUDA_CODES:
        if driver.cuGetErrorName(code, ctypes.byref(text)) == 0 and text.value == name.encode():
            return code
    return None
