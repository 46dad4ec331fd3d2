"""One save on its way: what to write, who waits for it, and how it is broken off."""

from __future__ import annotations

import dataclasses
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gdsckpt.errors import ChecksumError, GdsckptError, TimeoutExpiredError, TornSnapshotError
from gdsckpt.handle import SaveHandle
from gdsckpt.snapshot import Snapshot
from gdsckpt.staging.content import ShardContent

if TYPE_CHECKING:
    from gdsckpt.engine.base import Transfer
    from gdsckpt.format.layout import ShardLayout


class GivenUpError(GdsckptError):
    """The caller of a save was interrupted, and has its own exception."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A state that is ready to be taken.

    Attributes:
        nest: With the states of its Stateful objects in their places.
        content: What to write of it.
        started: When that began, ``time.perf_counter``.
    """

    nest: Any
    content: ShardContent
    started: float


class SaveJob:
    """One save.

    Args:
        handle: What the caller has of it.
        prepared: What to write.
        metric: What the caller said of the step.
        deadline: ``time.monotonic`` after which the save is given up; None for never.

    Attributes:
        content: What to write.
        plan_s: Seconds of pickling and finding the memory.
        stall_s: Seconds for which an asynchronous save kept its caller.
        is_cancelled: Whether the caller gave it up.
    """

    def __init__(
        self,
        handle: SaveHandle,
        prepared: Prepared,
        metric: float | None,
        deadline: float | None,
    ) -> None:
        self.handle = handle
        self.content = prepared.content
        self.metric = metric
        self.deadline = deadline
        self.started = prepared.started
        self.plan_s = time.perf_counter() - prepared.started
        self.stall_s = 0.0
        self.is_cancelled = False
        self._snapshot: Snapshot | None = None
        self._live_was_read = threading.Event()
        self._begun = threading.Lock()

    @property
    def snapshot_mode(self) -> str:
        """How the state was taken; empty where the caller waits for the commit."""
        return self._snapshot.mode if self._snapshot is not None else ""

    def begin(self) -> bool:
        """Claim the job, to run it or to take it back; True for the first caller only."""
        return self._begun.acquire(blocking=False)

    def attach(self, snapshot: Snapshot) -> None:
        """Write from a snapshot, in the place of the caller's state."""
        self._snapshot = snapshot
        self.content = dataclasses.replace(
            snapshot.content, require_unchanged=self._require_unchanged, watch=self._watch
        )
        self.stall_s = time.perf_counter() - self.started

    def wait_until_read(self) -> None:
        """Wait, where a snapshot is not all of the state, until the rest was read."""
        if self._snapshot is not None and self._snapshot.live_end:
            self._live_was_read.wait()
            self.stall_s = time.perf_counter() - self.started

    def check(self, _done: int = 0, _total: int = 0) -> None:
        """Be told about progress, and break off what nobody wants any more.

        Raises:
            GivenUpError: The caller gave it up.
            TimeoutExpiredError: Its time is over.
        """
        if self.is_cancelled:
            raise GivenUpError("the save was given up by its caller.")
        if self.deadline is not None and time.monotonic() > self.deadline:
            what = f"save of step {self.handle.step}"
            raise TimeoutExpiredError(
                f"the {what} did not end in its time and was given up; nothing of it was "
                "committed. Give more time, or save less.",
                what=what,
            )

    def release(self) -> None:
        """Give back what the save held; the caller's tensors may change again."""
        self._let_go()
        if self._snapshot is not None:
            self._snapshot.release()

    def as_failure(self, error: BaseException) -> BaseException:
        """Say what an error of the write means: a device checksum that differs is a torn state."""
        if self._snapshot is None or not isinstance(error, ChecksumError):
            return error
        torn = TornSnapshotError(
            f"the state of step {self.handle.step} changed while it was saved, so nothing was "
            f"committed: {error}",
            names=() if error.fqn is None else (error.fqn,),
        )
        torn.__cause__ = error
        return torn

    def _require_unchanged(self, fd: int, layout: ShardLayout) -> None:
        """Check what was written; no closure, which would stay with the frame of a failure."""
        if self._snapshot is not None:
            self._snapshot.content.require_unchanged(fd, layout)
        self._let_go()
        self.handle.reach_staged()

    def _let_go(self) -> None:
        if self._snapshot is not None:
            self._snapshot.staged()
        self._live_was_read.set()

    def _watch(self, transfer: Transfer, layout: ShardLayout) -> None:
        """See how far the transfer has read; called by the thread that waits for it."""
        snapshot = self._snapshot
        if snapshot is None or not snapshot.live_end or self._live_was_read.is_set():
            return
        if transfer.prefix_bytes >= snapshot.prefix_end(layout):
            snapshot.prefix_read()
            self._live_was_read.set()
