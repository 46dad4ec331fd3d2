"""Jobs one after the other, in a thread that lives only while there are any."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

logger = logging.getLogger(__name__)


class Lane:
    """Runs jobs in the order given, in the background.

    No thread idles: so the interpreter, which waits for threads at its end, waits for the jobs and
    for nothing else, and a fork copies none that would be missing.

    Args:
        name: Of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._changed = threading.Condition()
        self._jobs: deque[Callable[[], None]] = deque()
        self._is_running = False

    def submit(self, job: Callable[[], None]) -> None:
        """Queue a job, which must not raise.

        Where the interpreter lets no thread start any more, the caller runs it.
        """
        with self._changed:
            self._jobs.append(job)
            if self._is_running:
                return
            self._is_running = True
        thread = threading.Thread(target=self._run, name=self._name, daemon=False)
        try:
            thread.start()
        except RuntimeError:  # "can't create new thread at interpreter shutdown"
            self._run()

    @property
    def is_idle(self) -> bool:
        """Whether every job has ended."""
        with self._changed:
            return not self._is_running

    def wait(self) -> None:
        """Wait until every job has ended, those that are queued meanwhile too; for any thread."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_running)

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._jobs:
                    self._is_running = False
                    self._changed.notify_all()
                    return
                job = self._jobs.popleft()
            try:
                job()
            except BaseException:  # a fault of ours: those who wait must not wait for ever
                logger.exception("a job of %s failed", self._name)
            del job  # it holds a state
