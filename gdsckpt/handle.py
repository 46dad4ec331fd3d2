"""What an asynchronous save gives back: futures for its three stages."""

from __future__ import annotations

import functools
import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from gdsckpt.errors import ConfigError
from gdsckpt.report import SaveReport, UploadReport

T = TypeVar("T")

logger = logging.getLogger(__name__)


class Receipt:
    """Whether anybody has received the failure of a save; shared by its futures."""

    def __init__(self) -> None:
        self.is_received = False


class StageFuture(Future[T]):
    """A future of a stage that cannot be cancelled, and remembers that its failure was received.

    In a forked child it fails at once: the thread that would end it is the parent's.
    """

    def __init__(self, receipt: Receipt) -> None:
        super().__init__()
        self._receipt = receipt
        self._pid = os.getpid()
        # From now on `cancel` does nothing: what is under way cannot be taken back.
        self.set_running_or_notify_cancel()

    def result(self, timeout: float | None = None) -> T:
        """Wait for the stage, and give what it gave or raise what it failed with."""
        self._require_own_process()
        try:
            return super().result(timeout)
        finally:
            self._note()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the stage, and give what it failed with, or None."""
        self._require_own_process()
        error = super().exception(timeout)
        self._note()
        return error

    def add_done_callback(self, fn: Callable[[Future[T]], object]) -> None:
        """Have a function called at the end; what it raises is logged, and ends nothing of ours."""
        super().add_done_callback(fn if self.done() else functools.partial(_call, fn))

    def _note(self) -> None:
        if self.done() and super().exception() is not None:
            self._receipt.is_received = True

    def _require_own_process(self) -> None:
        if os.getpid() != self._pid:
            raise ConfigError(
                f"this save belongs to process {self._pid}, of which this one is a forked child. "
                "Wait for it there.",
                field="handle",
            )


def _call(fn: Callable[[Future[T]], object], future: Future[T]) -> None:
    """Call a callback in the thread of a save, which no ``sys.exit`` of it may end."""
    try:
        fn(future)
    except BaseException:
        logger.exception("a callback of a save failed: %r", fn)


class SaveHandle:
    """One asynchronous save.

    Each future fails when its stage failed or was not reached, and never succeeds otherwise. Any
    thread may wait for them.

    Attributes:
        step: The step.
        staged: The tensors may change again: all their bytes were read, and found unchanged.
        committed: The step is durable in the root and listed; gives the report.
        uploaded: It is in the object store, manifest last; gives the report of the upload. Fails
            with ConfigError where the Checkpointer has no store.
    """

    def __init__(self, step: int, *, has_store: bool) -> None:
        """Make the handle of a save that was not started; the Checkpointer does."""
        self.step = step
        self._receipt = Receipt()
        self.staged: Future[None] = StageFuture(self._receipt)
        self.committed: Future[SaveReport] = StageFuture(self._receipt)
        # Without a store it fails, but that is no failure of the save.
        receipt = self._receipt if has_store else Receipt()
        self.uploaded: Future[UploadReport] = StageFuture(receipt)
        self._has_store = has_store
        self._lock = threading.Lock()
        self.failure: BaseException | None = None
        if not has_store:
            self.uploaded.set_exception(
                ConfigError("no store= was given, so nothing is uploaded.", field="store")
            )

    def __repr__(self) -> str:
        """Say how far it is."""
        reached = "committed" if self.is_committed else "in flight"
        state = "failed" if self.failure else "uploaded" if self.is_uploaded else reached
        return f"<SaveHandle step={self.step} {state}>"

    @property
    def report(self) -> SaveReport | None:
        """The report of the save; None while it is not committed, and when it failed."""
        return self.committed.result() if self.is_committed else None

    @property
    def is_committed(self) -> bool:
        """Whether the step is durable in the root."""
        return self.committed.done() and not _has_failed(self.committed)

    @property
    def is_uploaded(self) -> bool:
        """Whether the step is in the object store."""
        return self.uploaded.done() and not _has_failed(self.uploaded)

    @property
    def has_ended(self) -> bool:
        """Whether no stage is to come any more."""
        return self.uploaded.done() and self.committed.done()

    @property
    def is_received(self) -> bool:
        """Whether somebody has received its failure."""
        return self._receipt.is_received

    def receive(self) -> None:
        """Note that its failure, now or later, is known to the caller by another way."""
        self._receipt.is_received = True

    def reach_staged(self) -> None:
        """Say that the tensors may change again; for the Checkpointer."""
        with self._lock:
            if not self.staged.done():
                self.staged.set_result(None)

    def reach_committed(self, report: SaveReport) -> None:
        """Say that the step is durable; for the Checkpointer."""
        self.reach_staged()
        with self._lock:
            self.committed.set_result(report)

    def reach_uploaded(self, report: UploadReport) -> None:
        """Say that the step is in the store; for the Checkpointer."""
        with self._lock:
            self.uploaded.set_result(report)

    def fail(self, error: BaseException) -> None:
        """Fail the stages that were not reached; for the Checkpointer."""
        with self._lock:
            self.failure = error
            for future in (self.staged, self.committed, self.uploaded):
                if not future.done():
                    future.set_exception(error)


def _has_failed(future: Future[T]) -> bool:
    """Tell of an ended future whether it failed, without receiving the failure."""
    return Future.exception(future) is not None
