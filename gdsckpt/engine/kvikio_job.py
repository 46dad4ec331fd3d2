"""The work of the transfers of the ``kvikio`` engine."""

from __future__ import annotations

import atexit
import contextlib
import copy
import errno
import os
import threading
from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from gdsckpt import native, tracing
from gdsckpt.engine import base, kvikio_plan
from gdsckpt.engine.kvikio_errors import Request
from gdsckpt.engine.kvikio_plan import CRC_BYTES, Piece, Plan
from gdsckpt.engine.kvikio_requests import KvikioRequests
from gdsckpt.errors import (
    ConfigError,
    CudaError,
    EngineUnavailableError,
    GdsckptError,
    StorageError,
    storage_error_from,
)

BATCH_BYTES = 64 * 1024 * 1024
"""Bytes of one round of requests; two rounds are under way at a time."""

_running: set[Job] = set()
"""Jobs that have not ended. In a forked child they stay as they are: all of it is the parent's."""


@dataclass(frozen=True, slots=True)
class Means:
    """What a job moves bytes with.

    Attributes:
        engine: Whose job it is.
        checksums: For what KvikIO moves.
        requests: KvikIO, with the file open; the job closes it.
        fence: Contents and use of the memory wait for it; None: for nothing.
    """

    engine: object
    checksums: base.DeviceChecksums
    requests: KvikioRequests
    fence: native.StreamFence | None


class Job(ABC):
    """The work of a transfer. Its thread holds it, not the transfer, which so can be let go.

    The first failure wins; it and ``cancel`` drop what has not been started. A job ends when
    neither KvikIO nor the pinned engine uses the memory any more. Any thread may call the functions
    of ``base.Transfer``.

    Attributes:
        parts: Transfers of the pinned engine, one for each run of the plan; to be filled in before
            the begin.
    """

    op: Literal["write", "read"]
    prefix_bytes = 0
    """Nobody knows: KvikIO's threads take the pieces in any order."""

    def __init__(self, means: Means, path: str, plan: Plan, span: tuple[int, int]) -> None:
        """Make a job.

        Args:
            means: The job's own.
            path: Of the file, for messages.
            plan: What to move.
            span: File offset and number of bytes, for messages and progress.
        """
        self.means = means
        self.path = path
        self.plan = plan
        self.offset, self.total_bytes = span
        self.parts: list[base.Transfer] = []
        self._num_checked = 0
        self._piece_crcs: dict[int, int] = {}
        self._results: tuple[bytes, bytes | None] = b"", None
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._is_claimed = False
        self._is_cancelled = False
        self._error: BaseException | None = None
        self._ended = threading.Event()
        _running.add(self)

    def begin(self) -> None:
        """Start the thread.

        Raises:
            MemoryError: There can be no more threads.
        """
        thread = threading.Thread(target=self._run, name=f"gdsckpt-{self.op}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            raise MemoryError(
                f"{self.op} of {self.path} failed: no thread can be started. End processes or "
                "raise the limit of threads (ulimit -u)."
            ) from error

    def wait(self, timeout_s: float) -> bool:
        """See ``base.Transfer``."""
        self._require_owner()
        return self._ended.wait(min(max(timeout_s, 0.0), threading.TIMEOUT_MAX))

    def cancel(self) -> None:
        """See ``base.Transfer``."""
        self._require_owner()
        with self._lock:
            if self._ended.is_set():
                return
            self._is_cancelled = True
        for part in self.parts:
            part.cancel()
        self._run()  # in the place of a thread that has not come so far, or never will

    def result(self) -> None:
        """See ``base.Transfer``."""
        while not self.wait(3600.0):
            pass
        if isinstance(self._error, GdsckptError):
            # A copy, as the traceback keeps its frames alive, and these keep transfers.
            raise copy.copy(self._error)
        if self._error is not None:
            raise self._error

    def extent_crcs(self) -> bytes:
        """See ``base.Transfer``."""
        self.result()
        return self._results[0]

    def chunk_crcs(self) -> bytes:
        """See ``base.Transfer``."""
        if self.op == "read":
            raise ConfigError("a read computes no chunk_crcs.", field="chunk_crcs")
        self.result()
        return self._results[1] or b""

    @property
    def done_bytes(self) -> int:
        """See ``base.Transfer``."""
        return self._sum("done_bytes") + self.means.requests.done_bytes

    @property
    def buffered_bytes(self) -> int:
        """See ``base.Transfer``."""
        return self._sum("buffered_bytes")

    @property
    def direct_bytes(self) -> int:
        """See ``base.Transfer``."""
        return self._sum("direct_bytes") + self.means.requests.done_bytes

    @abstractmethod
    def move(self) -> None:
        """Do what is KvikIO's."""

    @abstractmethod
    def conclude(self) -> None:
        """Put the results together; all has gone well."""

    def check(self) -> None:
        """Raise what went wrong meanwhile, or ECANCELED."""
        if self._is_cancelled:
            raise self._cancelled()
        while self._num_checked < len(self.parts) and self.parts[self._num_checked].wait(0):
            self.parts[self._num_checked].result()
            self._num_checked += 1

    def batches(self) -> Iterator[list[Piece]]:
        """Cut the pieces into rounds."""
        batch: list[Piece] = []
        nbytes = 0
        for piece in self.plan.pieces:
            batch.append(piece)
            nbytes += piece.nbytes
            if nbytes >= BATCH_BYTES:
                yield batch
                batch, nbytes = [], 0
        if batch:
            yield batch

    def start(self, batch: Sequence[Piece]) -> int:
        """Begin a round of requests; gives the number of tasks to be awaited."""
        self.check()
        return sum(
            self.means.requests.start(Request(piece.address, piece.nbytes, piece.file_offset))
            for piece in batch
        )

    def finish(self, num_tasks: int) -> None:
        """Wait for the tasks that were begun first."""
        with tracing.stage(self.op):
            self.means.requests.finish(num_tasks)

    def take_crcs(self, batch: Sequence[Piece]) -> None:
        """Compute the checksums of a round, each device its own."""
        for device in dict.fromkeys(piece.device for piece in batch):
            pieces = [piece for piece in batch if piece.device == device]
            rows = array("Q")
            for piece in pieces:
                rows.extend((piece.address, piece.nbytes))
            with tracing.stage("checksum", sum(rows[1::2])):
                crcs = self.means.checksums.crc32_pieces(rows, device)
            for piece, crc in zip(pieces, crcs, strict=True):
                self._piece_crcs[piece.file_offset] = crc

    def crc_of(self, piece: Piece) -> int:
        """Give the checksum of a piece."""
        return self._piece_crcs[piece.file_offset]

    def part_crcs(self) -> Iterator[tuple[int, int, int]]:
        """Give (extent, nbytes, crc) of all parts of extents, in file order."""
        parts = iter(self.parts)
        for segment in self.plan.segments:
            if isinstance(segment, Piece):
                yield segment.extent, segment.nbytes, self.crc_of(segment)
            else:
                crcs = array("I", next(parts).extent_crcs())
                sizes = segment.rows[1 :: base.ROW_WIDTH]
                yield from zip(segment.extents, sizes, crcs, strict=True)

    def _run(self) -> None:
        with self._lock:
            if self._is_claimed:
                return
            self._is_claimed = True
        error: BaseException | None = None
        try:
            self._work()
        except BaseException as raised:  # noqa: BLE001 - result() raises it in its caller's thread
            error = raised
        self._close(error)

    def _work(self) -> None:
        self.check()
        if self.means.fence is not None:
            self.means.fence.wait()
        self.move()
        for part in self.parts:
            part.result()
        self.conclude()

    def _close(self, error: BaseException | None) -> None:
        """Wait for what still runs, and be ended."""
        if error is not None:
            for part in self.parts:
                part.cancel()
        for part in self.parts:
            base.end(part)
        self.means.requests.close()
        if isinstance(error, CudaError):
            self._drain()
        with self._lock:
            if error is None and self._is_cancelled:
                error = self._cancelled()
            self._error = error
            if isinstance(error, GdsckptError):
                error.__traceback__ = error.__context__ = None  # as above
            self._ended.set()
        _running.discard(self)

    def _drain(self) -> None:
        """Wait for the copies that KvikIO gave up when CUDA refused something.

        It lets go of memory and of its bounce buffers while they may still run. They are on streams
        that the default stream waits for.
        """
        for device in {piece.device for piece in self.plan.pieces}:
            with contextlib.suppress(CudaError):  # a lost device copies nothing any more
                native.cuda_wait(array("Q", [device, 0]))

    def _cancelled(self) -> StorageError:
        return storage_error_from(
            OSError(errno.ECANCELED, os.strerror(errno.ECANCELED)),
            op=self.op,
            path=self.path,
            offset=self.offset,
            nbytes=self.total_bytes,
        )

    def _sum(self, name: str) -> int:
        self._require_owner()
        return sum(getattr(part, name) for part in self.parts)

    def _require_owner(self) -> None:
        if os.getpid() != self._pid:
            raise forked()


class WriteJob(Job):
    """Writes; checksums are taken on the devices while the bytes are under way."""

    op = "write"

    def __init__(
        self, means: Means, path: str, plan: Plan, span: tuple[int, int], chunk_bytes: int
    ) -> None:
        """Make a job; ``chunk_bytes`` is that of ``plan``."""
        super().__init__(means, path, plan, span)
        self.chunk_bytes = chunk_bytes

    def move(self) -> None:
        """See ``Job``."""
        num_tasks = 0
        for batch in self.batches():
            num_started = self.start(batch)
            self.take_crcs(batch)
            self.finish(num_tasks)
            num_tasks = num_started
        self.finish(num_tasks)

    def conclude(self) -> None:
        """See ``Job``."""
        extent_crcs = kvikio_plan.combine_extents(self.plan.num_extents, self.part_crcs())
        chunk_crcs = kvikio_plan.combine_chunks(self._range_crcs(), self.chunk_bytes)
        span = self.offset, self.offset + self.total_bytes
        for slot, extent in self.plan.late_slots:
            self.check()
            data = extent_crcs[extent].to_bytes(CRC_BYTES, "little")
            self.means.requests.fill_slot(slot, data)
            kvikio_plan.patch_chunks(chunk_crcs, span, self.chunk_bytes, (slot, data))
        self._results = extent_crcs.tobytes(), chunk_crcs.tobytes()

    def _range_crcs(self) -> Iterator[tuple[int, int, int]]:
        """Give (file offset, nbytes, crc) of the whole range, chunk by chunk or finer."""
        parts = iter(self.parts)
        for segment in self.plan.segments:
            if isinstance(segment, Piece):
                yield segment.file_offset, segment.nbytes, self.crc_of(segment)
                continue
            crcs = array("I", next(parts).chunk_crcs())
            spans = kvikio_plan.spans(segment.begin, segment.end, self.chunk_bytes)
            for (offset, nbytes), crc in zip(spans, crcs, strict=True):
                yield offset, nbytes, crc


class ReadJob(Job):
    """Reads; devices take the checksums of what has arrived while the next is under way."""

    op = "read"

    def move(self) -> None:
        """See ``Job``."""
        num_tasks = 0
        arriving: list[Piece] = []
        for batch in self.batches():
            num_started = self.start(batch)
            self.finish(num_tasks)
            self.take_crcs(arriving)
            num_tasks, arriving = num_started, batch
        self.finish(num_tasks)
        self.take_crcs(arriving)

    def conclude(self) -> None:
        """See ``Job``."""
        crcs = kvikio_plan.combine_extents(self.plan.num_extents, self.part_crcs())
        self._results = crcs.tobytes(), None


def end_jobs(engine: object = None) -> None:
    """Cancel the jobs of an engine, or all, and wait for their ends."""
    for job in _running.copy():
        if engine is None or job.means.engine is engine:
            base.end(job)


# Before the native engines are closed: their end was registered earlier.
atexit.register(end_jobs)


def forked() -> EngineUnavailableError:
    """Give the error of a forked child that uses what is its parent's."""
    why = "it was made before this process was forked"
    return EngineUnavailableError(
        f"the kvikio engine can't be used: {why}. Take engine=pinned in the child process.",
        engine="kvikio",
        reasons=(why,),
    )
