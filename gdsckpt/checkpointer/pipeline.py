"""From a state to a committed step: taken in the caller's thread, written behind it."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import threading
import time
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gdsckpt.checkpointer.background import Lane
from gdsckpt.checkpointer.job import Prepared, SaveJob
from gdsckpt.checkpointer.memory_limit import staging_limit
from gdsckpt.checkpointer.saver import Saver
from gdsckpt.checkpointer.saves import Saves
from gdsckpt.checkpointer.targets import InFlight, Rates
from gdsckpt.checkpointer.uploads import Uploads
from gdsckpt.config import Config
from gdsckpt.errors import (
    CheckpointExistsError,
    ConfigError,
    SnapshotBusyError,
    StaleSaveWarning,
)
from gdsckpt.format.manifest import Manifest
from gdsckpt.handle import SaveHandle
from gdsckpt.remote.steps import RemoteSteps
from gdsckpt.report import SaveReport
from gdsckpt.retention import Policy
from gdsckpt.saving import content_of
from gdsckpt.snapshot import Slots, SnapshotOptions, take
from gdsckpt.staging import root as roots
from gdsckpt.tensors.stateful import gathered

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be saved as what.

    Attributes:
        step: Of training.
        overwrite: Whether the step may be there, or be before one that is.
        metric: What retention goes by, or None.
        deadline: ``time.monotonic`` after which the save is given up, or None.
    """

    step: int
    overwrite: bool = False
    metric: float | None = None
    deadline: float | None = None

    def __post_init__(self) -> None:
        """Check the step.

        Raises:
            ConfigError: It is no whole number of at least 0.
        """
        if type(self.step) is not int or self.step < 0:
            raise ConfigError(
                f"step must be a whole number of at least 0, got {self.step!r}.", field="step"
            )


class Pipeline:
    """Takes states and saves them in order. Any thread may call.

    Args:
        root: The root, locked and recovered.
        policy: Which steps stay.
        config: Settings.
        remote: Where committed steps are uploaded to, or None.

    Raises:
        StoreError: The store cannot be asked for what it has.
    """

    def __init__(
        self, root: Path, policy: Policy, config: Config, remote: RemoteSteps | None
    ) -> None:
        self._root = root
        self._config = config
        self._taking = threading.Lock()
        # Not the lock above: who takes a state may wait for the thread that asks what to keep.
        self._keeping = threading.Lock()
        self._kept: Counter[int] = Counter()
        self.saves = Saves()
        self.uploads = None if remote is None else Uploads(remote, config)
        # A root that is younger than its store must not begin to count anew.
        in_store = {} if remote is None else remote.manifests()
        self._newest_in_store = max(in_store, default=-1)
        self.saver = Saver(
            root,
            policy,
            config,
            sequence=max((each.sequence for each in in_store.values()), default=0),
            protected=self._protected,
        )
        self._lane = Lane("gdsckpt-save")
        limit = staging_limit(config.staging_max_bytes, os.environ)
        self._slots = Slots(config.snapshot_slots, limit, config.snapshot_policy)
        if self.uploads is not None:
            self._catch_up(self.uploads, in_store)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is being written or pruned."""
        return self._lane.is_idle

    def prepare(self, state: Any) -> Prepared:
        """Pickle a state and find its memory; nothing is read of that.

        Raises:
            ConfigError: It cannot be pickled.
        """
        started = time.perf_counter()
        nest = gathered(state)
        return Prepared(nest, content_of(nest), started)

    def submit(
        self, order: Order, prepared: Prepared, options: SnapshotOptions | None = None
    ) -> SaveJob:
        """Take a state and queue its save.

        Args:
            order: What to do.
            prepared: The state.
            options: How to take it; None where the caller waits for the commit, and nothing
                changes the state until then.

        Raises:
            CheckpointExistsError: The step repeats or goes backwards.
            SnapshotBusyError: Every slot is in use, and the settings say to raise.
        """
        self._deliver_warnings()
        with self._taking:
            self.require_newer(order)
            handle = SaveHandle(order.step, has_store=self.uploads is not None)
            job = SaveJob(handle, prepared, _finite(order.metric), order.deadline)
            if options is not None:
                try:
                    job.attach(
                        take(prepared.nest, prepared.content, options, self._slots, step=order.step)
                    )
                except SnapshotBusyError as error:
                    if self._config.snapshot_policy == "raise":
                        raise
                    logger.warning("skipped the save of step %d: %s", order.step, error)
                    handle.fail(error)
                    handle.receive()
                    return job
            self.saves.add(handle, job)
            self._lane.submit(lambda: self._run(job))
        try:
            job.wait_until_read()
        except BaseException:
            _break_off(job)
            raise
        return job

    def finish(self, job: SaveJob) -> SaveReport:
        """Wait for the commit of a save that reads the caller's state; Ctrl-C breaks it off."""
        handle = job.handle
        try:
            report = handle.committed.result()
        except BaseException:
            _break_off(job)
            raise
        self._deliver_warnings()
        return report

    def give_up_at(self, deadline: float) -> None:
        """Let nothing that is on its way go on after this ``time.monotonic``."""
        for job in self.saves.jobs:
            job.deadline = deadline
        if self.uploads is not None:
            self.uploads.give_up_at(deadline)

    def rates(self) -> Rates:
        """Give what the last save and the last upload reached."""
        uploads = None if self.uploads is None else self.uploads.bytes_per_s
        return Rates(self.saver.bytes_per_s, uploads)

    def in_flight(self) -> InFlight | None:
        """Say what is on its way, all together; None where nothing is."""
        jobs = self.saves.jobs
        local_bytes = sum(job.content.payload_bytes for job in jobs)
        upload_bytes = 0 if self.uploads is None else self.uploads.waiting_bytes + local_bytes
        newest = self.saves.newest
        if newest is None or not (local_bytes or upload_bytes):
            return None
        return InFlight(newest.step, local_bytes, upload_bytes)

    def wait(self) -> None:
        """Wait until all has ended, and raise the failures that nobody has received."""
        self._lane.wait()
        if self.uploads is not None:
            self.uploads.wait()
        self._deliver_warnings()
        failures = self.saves.take_failures()
        if failures:
            for other in failures[1:]:
                failures[0].add_note(f"Another save failed too: {other}")
            raise failures[0]

    def close(self) -> None:
        """Give the memory back."""
        self._slots.close()

    @contextlib.contextmanager
    def kept(self, steps: Iterable[int]) -> Iterator[None]:
        """Keep steps from being pruned for as long as the block lasts."""
        counted = Counter(steps)
        with self._keeping:
            self._kept += counted
        try:
            yield
        finally:
            with self._keeping:
                self._kept -= counted

    def _catch_up(self, uploads: Uploads, in_store: Mapping[int, Manifest]) -> None:
        """Queue the uploads of what was committed after all that is in the store.

        Its process was killed in between. Nobody may need these steps, but the store has to learn
        when training went back: else the steps after them count again once these are pruned here.
        """
        last = max((each.sequence for each in in_store.values()), default=0)
        for entry in roots.complete(roots.scan(self._root)):
            if entry.sequence > last:
                uploads.catch_up(entry.path, entry.step, entry.nbytes)

    def _protected(self) -> Collection[int]:
        with self._keeping:
            kept = set(self._kept)
        return kept | set(self.uploads.steps if self.uploads is not None else ())

    def require_newer(self, order: Order) -> None:
        """Refuse a step that repeats or goes backwards.

        Raises:
            CheckpointExistsError: It does.
        """
        if order.overwrite:
            return
        # Those in flight first: one that is committed meanwhile is found by the scan. Of them the
        # last one counts alone, which may have gone back: what is after it will count no more.
        in_flight = [job.handle.step for job in self.saves.jobs]
        # What cannot be read now may be whole: it is not to be saved over by mistake.
        there = [
            entry.step
            for entry in roots.scan(self._root)
            if entry.state in (roots.COMPLETE, roots.UNREADABLE)
        ]
        highest = max(there, default=self._newest_in_store)
        highest = max(highest, self._newest_in_store)
        highest = in_flight[-1] if in_flight else highest
        if order.step > highest:
            return
        path = roots.step_directory(self._root, order.step)
        what = "is there already" if order.step == highest else f"is before step {highest}"
        raise CheckpointExistsError(
            f"step {order.step} {what} in {self._root}, so it was not saved. Did the training "
            "resume from the newest step? Pass overwrite=True to save it all the same: later steps "
            "count no more then.",
            path=path,
        )

    def _run(self, job: SaveJob) -> None:
        """Do a save, in the thread of the lane."""
        try:
            try:
                report = self.saver.save(job)
            finally:
                job.release()
                self.saves.written(job)
        except BaseException as error:  # noqa: BLE001 - it is the handle's to raise
            job.handle.fail(job.as_failure(error))
            return
        # Whatever is after it in the store counts no more; see gdsckpt.staging.root.
        self._newest_in_store = -1
        job.handle.reach_committed(report)
        if self.uploads is not None:
            self.uploads.start(Path(report.path), report.nbytes, job.handle)
        self.saver.tidy()

    def _deliver_warnings(self) -> None:
        """Warn in the caller's thread of what was found behind it."""
        while self.saver.warnings:
            text = self.saver.warnings.popleft()
            logger.warning("%s", text)
            warnings.warn(text, StaleSaveWarning, stacklevel=4)


def _break_off(job: SaveJob) -> None:
    """End a save that reads the caller's state, whatever interrupts; its failure is known then."""
    while not job.handle.committed.done():
        job.is_cancelled = True
        with contextlib.suppress(BaseException):
            job.handle.committed.exception()
    job.handle.receive()


def _finite(metric: float | None) -> float | None:
    """Give a metric that can be compared, or None."""
    if metric is None or not math.isfinite(metric):
        return None
    return float(metric)
