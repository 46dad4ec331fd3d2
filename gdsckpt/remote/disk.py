"""Where received bytes go: temporary files, and files past the page cache where it can be."""

from __future__ import annotations

import errno
import os
import threading

from gdsckpt import native
from gdsckpt.errors import storage_error_from
from gdsckpt.staging import files

_REFUSALS = (errno.EINVAL, errno.EOPNOTSUPP)

_ALIGNMENT_MIN = 4096
"""No page may be written both ways: the page cache would put back what it read before."""


class PieceWriter:
    """Writes pieces of one file from page-aligned memory; for any thread.

    Args:
        fd: A new file, open for reading and writing; stays the caller's.
        path: For messages: what the file will be.
        direct_io: ``"auto"`` or ``"off"``.

    Attributes:
        refused: Why some of it goes through the page cache; empty where only ends of files do.
    """

    def __init__(self, fd: int, path: str, *, direct_io: str) -> None:
        self._fd = fd
        self._path = path
        self._direct_fd = -1
        self._alignment = 1
        self._lock = threading.Lock()
        self.refused = ""
        if direct_io == "off":
            self.refused = "switched off by the setting direct_io=off"
            return
        try:
            self._direct_fd = os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_DIRECT | os.O_CLOEXEC)
        except OSError as error:
            self.refused = f"open with O_DIRECT failed: {os.strerror(error.errno or 0)}"
            return
        alignment = native.direct_alignment(fd)
        if not alignment:
            self.refused = "the file system offers no direct I/O"
        self._alignment = max(_ALIGNMENT_MIN, alignment)

    def close(self) -> None:
        """Close what was opened here."""
        if self._direct_fd >= 0:
            os.close(self._direct_fd)
            self._direct_fd = -1

    def write(self, offset: int, view: memoryview) -> None:
        """Write a piece.

        Args:
            offset: Where in the file.
            view: Its bytes, in page-aligned memory where they are to go by direct I/O.

        Raises:
            StorageError: The file system refused, such as ENOSPC.
        """
        aligned = 0
        if not self.refused and offset % self._alignment == 0:
            aligned = view.nbytes // self._alignment * self._alignment
        done = 0
        try:
            while done < aligned and not self.refused:
                done += self._write_direct(offset + done, view[done:aligned])
            files.write_all(self._fd, view[done:], offset + done)
        except OSError as error:
            raise storage_error_from(
                error, op="pwrite", path=self._path, offset=offset + done, nbytes=view.nbytes - done
            ) from error

    def _write_direct(self, offset: int, view: memoryview) -> int:
        """Write by direct I/O; gives the bytes written, none where it is refused from now on."""
        try:
            written = os.pwrite(self._direct_fd, view, offset)
        except OSError as error:
            if error.errno not in _REFUSALS:
                raise
            self._refuse(f"a direct write was refused: {os.strerror(error.errno)}")
            return 0
        if written % self._alignment:
            # What is left cannot be sent directly: the rest of the piece goes the other way.
            written -= written % self._alignment
            if not written:
                self._refuse("a direct write was cut short")
        return written

    def _refuse(self, why: str) -> None:
        with self._lock:
            self.refused = self.refused or why
