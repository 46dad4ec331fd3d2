"""Jobs one after the other, in a thread that lives only while there are any."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

from gdsckpt.errors import ConfigError

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
        # Re-entrant: the collector may end a Checkpointer in a thread that holds it.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._jobs: deque[Callable[[], None]] = deque()
        self._runner: int | None = None

    def submit(self, job: Callable[[], None]) -> None:
        """Queue a job, which must not raise. Whatever interrupts this: what is queued will run.

        Where the interpreter lets no thread start any more, the caller runs it.
        """
        try:
            with self._lock:
                self._jobs.append(job)
            self._have_runner()
        except BaseException:  # whether a thread began cannot be told; one too many ends at once
            self._have_runner()
            raise

    @property
    def is_idle(self) -> bool:
        """Whether every job has ended."""
        with self._lock:
            return self._has_ended()

    def wait(self) -> None:
        """Wait until every job has ended, those that are queued meanwhile too; for any thread.

        Raises:
            ConfigError: A job of this lane waits for its own end, as a callback of a future does.
        """
        self.require_other_thread()
        self._have_runner()
        with self._lock:
            self._changed.wait_for(self._has_ended)

    def require_other_thread(self) -> None:
        """Refuse to wait in the thread that would be waited for.

        Raises:
            ConfigError: The caller is a job of this lane.
        """
        if self._runner == threading.get_ident():
            raise ConfigError(
                f"the thread {self._name} cannot wait for its own work: call this from another "
                "thread than that of a callback of a handle's future.",
                field="handle",
            )

    def _has_ended(self) -> bool:
        return not self._jobs and self._runner is None

    def _have_runner(self) -> None:
        with self._lock:
            if self._runner is not None or not self._jobs:
                return
        thread = threading.Thread(target=self._run, name=self._name, daemon=False)
        try:
            thread.start()
        except RuntimeError:  # "can't create new thread at interpreter shutdown"
            self._run()

    def _run(self) -> None:
        with self._lock:
            if self._runner is not None:
                return
            self._runner = threading.get_ident()
        while True:
            with self._lock:
                if not self._jobs:
                    self._runner = None
                    self._changed.notify_all()
                    return
                job = self._jobs.popleft()
            try:
                job()
            except BaseException:  # a fault of ours: those who wait must not wait for ever
                logger.exception("a job of %s failed", self._name)
            del job  # it holds a state
