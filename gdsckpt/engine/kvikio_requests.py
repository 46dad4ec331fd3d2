"""Requests to KvikIO's threads: begun several at a time, awaited in order, continued when short."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Callable
from typing import Any

from gdsckpt.engine.kvikio_errors import Request, error_of, short_transfer
from gdsckpt.engine.kvikio_library import KvikioLibrary
from gdsckpt.errors import ConfigError, storage_error_from


class _Bytes:
    """Device memory, as KvikIO wants it described."""

    def __init__(self, request: Request) -> None:
        self.__cuda_array_interface__ = {
            "shape": (request.nbytes,),
            "typestr": "|u1",
            "data": (request.address, False),
            "version": 3,
        }


class KvikioRequests:
    """What goes between devices and one file by KvikIO. One thread at a time uses it.

    Each request is one task of KvikIO's pool. Of several, it would report the first failure while
    others still use the memory.

    Attributes:
        done_bytes: Bytes of the requests that have ended well.
    """

    def __init__(self, library: KvikioLibrary, fd: int, path: str, op: str) -> None:
        """Open the file of a descriptor once more, by KvikIO.

        Args:
            library: KvikIO.
            fd: The file; not kept. Whatever it was renamed to, it is the same file.
            path: For messages.
            op: ``pwrite`` or ``pread``.

        Raises:
            StorageError: The file cannot be opened.
            CuFileError: cuFile does not take it, and KvikIO may not do without.
            CudaError: CUDA refused.
        """
        self._path = path
        self._op = op
        self._task_bytes = library.task_bytes
        self._under_way: deque[tuple[Request, Any]] = deque()
        self.done_bytes = 0
        try:
            # "w" would truncate it.
            self._file = library.open(f"/proc/self/fd/{fd}", "r+" if op == "pwrite" else "r")
        except Exception as error:  # noqa: BLE001 - KvikIO's errors have no class of their own
            raise error_of(error, "open", path) from None
        self._begin_task: Callable[..., Any] = getattr(self._file, op)

    def start(self, request: Request) -> int:
        """Begin a request, cut into tasks; gives their number. Raises as ``finish``."""
        num_tasks = 0
        while request.nbytes > 0:
            nbytes = min(request.nbytes, self._task_bytes)
            self._under_way.append(
                self._begin(Request(request.address, nbytes, request.file_offset))
            )
            request = request.after(nbytes)
            num_tasks += 1
        return num_tasks

    def finish(self, num_tasks: int) -> None:
        """Wait for the tasks that were begun first; what they left undone is begun again.

        Raises:
            StorageError: The operating system refused.
            ShortTransferError: The file ended, or took no more bytes.
            CuFileError: cuFile refused.
            CudaError: CUDA refused.
        """
        for _ in range(num_tasks):
            request, future = self._under_way.popleft()
            while True:
                nbytes = self._result(request, future)
                self.done_bytes += nbytes
                request = request.after(nbytes)
                if request.nbytes == 0:
                    break
                if nbytes == 0:
                    raise short_transfer(self._op, self._path, request, 0)
                request, future = self._begin(request)

    def fill_slot(self, file_offset: int, data: bytes) -> None:
        """Put bytes in the place of zeros of the file, through the page cache.

        Raises:
            ConfigError: There are no zeros.
            StorageError: The operating system refused.
        """
        fd = self._file.fileno()
        try:
            found = os.pread(fd, len(data), file_offset)
            if any(found):
                raise ConfigError(
                    f"the CRC slot at offset {file_offset} is in use: its {len(data)} source bytes "
                    "are not zero. Reserve it with zeros.",
                    field="extents",
                )
            done = 0
            while done < len(data):
                done += os.pwrite(fd, data[done:], file_offset + done)
        except OSError as error:
            raise storage_error_from(
                error, op="pwrite", path=self._path, offset=file_offset, nbytes=len(data)
            ) from error

    def close(self) -> None:
        """Wait for the end of all that was begun, and close KvikIO's descriptors."""
        while self._under_way:
            _, future = self._under_way.popleft()
            # There is an error already, or nobody to be told.
            with contextlib.suppress(Exception):
                future.get()
        self._file.close()

    def _begin(self, request: Request) -> tuple[Request, Any]:
        try:
            return request, self._begin_task(
                _Bytes(request),
                size=request.nbytes,
                file_offset=request.file_offset,
                task_size=self._task_bytes,
            )
        except Exception as error:  # noqa: BLE001 - as above
            raise error_of(error, self._op, self._path, request) from None

    def _result(self, request: Request, future: Any) -> int:
        try:
            return int(future.get())
        except Exception as error:  # noqa: BLE001 - as above
            raise error_of(error, self._op, self._path, request) from None
