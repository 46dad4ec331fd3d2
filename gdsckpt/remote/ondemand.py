"""A file of an object's size that has only those bytes that somebody has read."""

from __future__ import annotations

import bisect
import functools
import logging
import os
import tempfile
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from gdsckpt.engine import base
from gdsckpt.errors import FormatError, StorageError, storage_error_from
from gdsckpt.remote.chunks import PIECE_BYTES, RECEIVES_MAX
from gdsckpt.remote.crew import Crew, Work
from gdsckpt.remote.objects import Buffers, RemoteObject
from gdsckpt.staging import files

logger = logging.getLogger(__name__)

T = TypeVar("T")

BLOCK_BYTES = 64 << 10
"""Bytes are received in whole blocks of this size."""

END_BYTES = 1 << 20
"""What is received of an object's end at once: table and directory of most files."""


class OnDemandFile:
    """An unnamed temporary file: sparse, and filled by ranged reads of an object.

    For any thread; close it at the end.

    Args:
        source: The object.
        crew: Receives what is large.

    Raises:
        StorageError: The file cannot be made in the temporary directory.
    """

    def __init__(self, source: RemoteObject, crew: Crew) -> None:
        self._source = source
        self._crew = crew
        self._buffers = Buffers(PIECE_BYTES)
        self._lock = threading.Lock()
        self._begins: list[int] = []
        self._ends: list[int] = []
        self._directory = files.temporary_directory()
        try:
            self._file = tempfile.TemporaryFile(  # noqa: SIM115 - closed by close()
                prefix=files.TEMPORARY_PREFIX, buffering=0, dir=self._directory
            )
        except OSError as error:
            raise storage_error_from(error, op="open", path=self._directory) from error
        try:
            os.truncate(self._file.fileno(), source.nbytes)
        except OSError as error:
            self._file.close()
            raise self._storage_error(error, "truncate", source.nbytes) from error

    @property
    def fd(self) -> int:
        """Its descriptor; ends with the file."""
        return self._file.fileno()

    def close(self) -> None:
        """Let the file go."""
        self._file.close()

    def provide(self, offset: int, nbytes: int) -> None:
        """Have some bytes there.

        Args:
            offset: The first one.
            nbytes: How many; beyond the object's end there are none.

        Raises:
            StoreError: They could not be received.
            StorageError: The temporary directory has no room for them.
        """
        with self._lock:
            gaps = self.missing(*self._rounded(offset, offset + nbytes))
            if sum(end - begin for begin, end in gaps) <= PIECE_BYTES:
                for begin, end in gaps:
                    self._receive(begin, end)
                    self._note(begin, end)
            else:
                self._receive_all(gaps, None)

    def provide_blocks(self, offsets: Iterable[int]) -> None:
        """Have the blocks there that some bytes lie in; raises as :meth:`provide`."""
        with self._lock:
            blocks = sorted({offset // BLOCK_BYTES * BLOCK_BYTES for offset in offsets})
            gaps: list[tuple[int, int]] = []
            for begin in blocks:
                end = min(begin + BLOCK_BYTES, self._source.nbytes)
                if gaps and gaps[-1][1] == begin:
                    gaps[-1] = (gaps[-1][0], end)
                elif self.missing(begin, end):
                    gaps.append((begin, end))
            self._receive_all(gaps, None)

    def read_checked(self, read: Callable[[], T]) -> T:
        """Do what reads and checks bytes; where they are wrong, again with bytes received anew.

        Raises:
            FormatError: They are wrong each time.
        """
        for _ in range(RECEIVES_MAX - 1):
            try:
                return read()
            except FormatError as error:  # they may have been flipped on the way
                logger.info("receiving %s again: %s", self._source.url, error)
                self.forget()
        return read()

    def forget(self) -> None:
        """Receive again what was received, when it is asked for again."""
        with self._lock:
            self._begins.clear()
            self._ends.clear()

    def provide_all(self, progress: base.Progress | None = None) -> None:
        """Have the whole object there; raises as :meth:`provide`."""
        with self._lock:
            self._receive_all(self.missing(0, self._source.nbytes), progress)

    def _receive_all(self, gaps: Sequence[tuple[int, int]], progress: base.Progress | None) -> None:
        base.wait(self._start(gaps), progress)
        for begin, end in gaps:
            self._note(begin, end)

    def missing(self, begin: int, end: int) -> list[tuple[int, int]]:
        """List what of a range is not there yet, as (begin, end)."""
        gaps = []
        n = bisect.bisect_right(self._ends, begin)
        while begin < end:
            if n == len(self._begins) or self._begins[n] >= end:
                gaps.append((begin, end))
                break
            if self._begins[n] > begin:
                gaps.append((begin, self._begins[n]))
            begin = self._ends[n]
            n += 1
        return gaps

    def _rounded(self, begin: int, end: int) -> tuple[int, int]:
        """Widen a range to whole blocks, and at the end of the object to ``END_BYTES``."""
        nbytes = self._source.nbytes
        if nbytes - begin <= END_BYTES:
            return max(0, nbytes - END_BYTES), nbytes
        return begin // BLOCK_BYTES * BLOCK_BYTES, min(nbytes, -(-end // BLOCK_BYTES) * BLOCK_BYTES)

    def _start(self, gaps: Sequence[tuple[int, int]]) -> Work:
        pieces = [
            (at, min(at + PIECE_BYTES, end))
            for begin, end in gaps
            for at in range(begin, end, PIECE_BYTES)
        ]
        work = Work(sum(end - begin for begin, end in pieces), self._source.store.interrupt)

        def receive(begin: int, end: int) -> None:
            self._receive(begin, end)
            work.advance(end - begin)

        return self._crew.start([functools.partial(receive, *piece) for piece in pieces], work)

    def _receive(self, begin: int, end: int) -> None:
        buffer = self._buffers.take()
        try:
            view = buffer[: end - begin]
            self._source.read(begin, view)
            try:
                files.write_all(self.fd, view, begin)
            except OSError as error:
                raise self._storage_error(error, "pwrite", end - begin) from error
        finally:
            self._buffers.give(buffer)

    def _note(self, begin: int, end: int) -> None:
        """Remember that a range is there; ranges that touch become one."""
        first = bisect.bisect_left(self._ends, begin)
        last = bisect.bisect_right(self._begins, end)
        begin = min([begin, *self._begins[first:last]])
        end = max([end, *self._ends[first:last]])
        self._begins[first:last] = [begin]
        self._ends[first:last] = [end]

    def _storage_error(self, error: OSError, op: str, nbytes: int) -> StorageError:
        found = storage_error_from(error, op=op, path=self._directory, nbytes=nbytes)
        found.add_note(f"It was for a temporary copy of {self._source.url}; TMPDIR moves it.")
        return found
