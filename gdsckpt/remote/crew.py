"""Threads that run the jobs of transfers, and the one way to follow such a transfer."""

from __future__ import annotations

import collections
import errno
import threading
from collections.abc import Callable, Iterable
from typing import TypeAlias

from gdsckpt.errors import StorageError

Job: TypeAlias = Callable[[], None]


class Work:
    """Jobs under way; :func:`gdsckpt.engine.base.wait` waits for them as for any transfer.

    The first failure drops the jobs that have not begun; those under way end first.

    Args:
        total_bytes: What the jobs will report in all, for progress.
        interrupt: Breaks off what the jobs wait for, when the work is cancelled.
        is_alone: Whether a failure does so too: nobody else uses what is broken off.
    """

    buffered_bytes = 0
    direct_bytes = 0
    prefix_bytes = 0

    def __init__(
        self,
        total_bytes: int = 0,
        interrupt: Callable[[], None] | None = None,
        *,
        is_alone: bool = False,
    ) -> None:
        self.total_bytes = total_bytes
        self._interrupt = interrupt
        self._is_alone = is_alone
        self._is_cancelled = False
        self._done_bytes = 0
        self._open_jobs = 0
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._ended.set()

    @property
    def done_bytes(self) -> int:
        """Bytes that the jobs have reported so far."""
        return self._done_bytes

    @property
    def is_stopped(self) -> bool:
        """Whether a job has failed or the work was cancelled: long jobs end early then."""
        return self._error is not None

    def advance(self, nbytes: int) -> None:
        """Report bytes, from any thread; negative where some have to be moved again."""
        with self._lock:
            self._done_bytes += nbytes

    def wait(self, timeout_s: float) -> bool:
        """Wait up to ``timeout_s`` seconds; True when all jobs have ended, well or not."""
        has_ended = self._ended.wait(timeout_s)
        if not has_ended and (self._is_cancelled or (self._is_alone and self.is_stopped)):
            self._break_off()  # again and again: a job may just have begun to wait for something
        return has_ended

    def cancel(self) -> None:
        """Drop what has not begun, and break off the rest; the work then fails with ECANCELED."""
        self._is_cancelled = True
        self._fail(
            StorageError("the transfer was cancelled.", op="transfer", errno=errno.ECANCELED)
        )
        if not self._ended.is_set():
            self._break_off()

    def result(self) -> None:
        """Wait for the end and raise the first thing that went wrong."""
        self._ended.wait()
        if self._error is not None:
            raise self._error

    def extent_crcs(self) -> bytes:
        """Give nothing: this is the base of transfers, which know better."""
        return b""

    def chunk_crcs(self) -> bytes:
        """Give nothing, likewise."""
        return b""

    def _break_off(self) -> None:
        if self._interrupt is not None:
            self._interrupt()

    def _expect(self, num_jobs: int) -> None:
        with self._lock:
            self._open_jobs += num_jobs
            if self._open_jobs:
                self._ended.clear()

    def _run(self, job: Job) -> None:
        try:
            if not self.is_stopped:
                job()
        except BaseException as error:  # noqa: BLE001 - carried to the thread that waits
            self._fail(error)
        finally:
            with self._lock:
                self._open_jobs -= 1
                if not self._open_jobs:
                    self._ended.set()

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            if self._error is None and not self._ended.is_set():
                self._error = error


class Crew:
    """Threads that take jobs in the order in which they were given.

    They are started when there is work for them, and are daemons: a process that has to end is not
    held up by a server that does not answer. For any thread; close it at the end.

    Args:
        num_threads: At most.
    """

    def __init__(self, num_threads: int) -> None:
        self._num_threads = num_threads
        self._threads: list[threading.Thread] = []
        self._num_idle = 0
        self._queue: collections.deque[tuple[Work, Job]] = collections.deque()
        self._changed = threading.Condition()
        self._is_closed = False

    def __enter__(self) -> Crew:
        """Give itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def start(self, jobs: Iterable[Job], work: Work) -> Work:
        """Give jobs to the threads, as part of ``work``; gives it back."""
        items = [(work, job) for job in jobs]
        work._expect(len(items))
        with self._changed:
            self._queue.extend(items)
            missing = len(self._queue) - self._num_idle
            for _ in range(min(missing, self._num_threads - len(self._threads))):
                thread = threading.Thread(target=self._serve, name="gdsckpt-remote", daemon=True)
                self._threads.append(thread)
                thread.start()
            self._changed.notify(len(items))
        return work

    def close(self) -> None:
        """Let the threads go once they have ended what they do; jobs that wait are dropped."""
        with self._changed:
            self._is_closed = True
            dropped = list(self._queue)
            self._queue.clear()
            self._changed.notify_all()
        for work, job in dropped:
            work.cancel()
            work._run(job)

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._num_idle += 1
                while not self._queue and not self._is_closed:
                    self._changed.wait()
                self._num_idle -= 1
                if self._is_closed:
                    return
                work, job = self._queue.popleft()
            work._run(job)
            del work, job  # they may hold large buffers
