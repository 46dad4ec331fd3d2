"""The saves of a Checkpointer that are not over: on their way, or failed and nobody knows."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import weakref

from gdsckpt.checkpointer.job import SaveJob
from gdsckpt.handle import SaveHandle

logger = logging.getLogger(__name__)


class Saves:
    """Keeps track of saves; for any thread."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # as the collector may log failures in any thread
        self._jobs: list[SaveJob] = []
        self._handles: list[SaveHandle] = []
        self._newest: SaveHandle | None = None
        self._pid = os.getpid()
        _living.add(self)

    def add(self, handle: SaveHandle, job: SaveJob | None = None) -> None:
        """Note a save that was started; without a job, only its upload is to come."""
        with self._lock:
            self._handles = [each for each in self._handles if not _is_over(each)]
            self._handles.append(handle)
            self._newest = handle
            if job is not None:
                self._jobs.append(job)

    def written(self, job: SaveJob) -> None:
        """Note that a job has ended, well or not, or that it will not begin."""
        with self._lock:
            self._jobs = [each for each in self._jobs if each is not job]

    @property
    def jobs(self) -> tuple[SaveJob, ...]:
        """The jobs that have not ended, in order."""
        with self._lock:
            return tuple(self._jobs)

    @property
    def newest(self) -> SaveHandle | None:
        """The save that was started last, however it ended."""
        with self._lock:
            return self._newest

    def take_failures(self) -> list[BaseException]:
        """Give the failures that nobody has received, in order; from now on they are."""
        with self._lock:
            failed = [each for each in self._handles if each.failure and not each.is_received]
        for handle in failed:
            handle.receive()
        return [handle.failure for handle in failed if handle.failure is not None]

    def log_failures(self) -> None:
        """Log the failures that nobody has received: the process ends."""
        if os.getpid() == self._pid:
            for failure in self.take_failures():
                logger.error("a save failed, and nobody asked for it: %s", failure)


def _is_over(handle: SaveHandle) -> bool:
    return handle.has_ended and (handle.failure is None or handle.is_received)


_living: weakref.WeakSet[Saves] = weakref.WeakSet()


def _log_all() -> None:
    # After the interpreter has waited for the threads of the saves.
    for saves in list(_living):
        saves.log_failures()


atexit.register(_log_all)
