"""From a state to a committed step: taken in the caller's thread, written behind it."""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import os
import threading
import time
import traceback
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
from gdsckpt.staging.root_lock import RootLock
from gdsckpt.tensors.stateful import gathered

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be saved as what.

    Attributes:
        step: Of training.
        overwrite: Whether the step may be there, or be before one that is.
        metric: What retention goes by; None, or what is not finite, for nothing.
        deadline: ``time.monotonic`` after which the save is given up, or None.
    """

    step: int
    overwrite: bool = False
    metric: float | None = None
    deadline: float | None = None

    def __post_init__(self) -> None:
        """Check the step and the metric.

        Raises:
            ConfigError: The step is no whole number of at least 0 and below ``roots.STEP_END``, or
                the metric no number.
        """
        if type(self.step) is not int or not 0 <= self.step < roots.STEP_END:
            raise ConfigError(
                f"step must be a whole number of at least 0 and of at most "
                f"{roots.STEP_DIGITS} digits, got {_shown(self.step)}.",
                field="step",
            )
        object.__setattr__(self, "metric", _finite(self.metric))


class Pipeline:
    """Takes states and saves them in order. Any thread may call.

    Args:
        lock: Of the root, which is recovered.
        policy: Which steps stay.
        config: Settings.
        remote: Where committed steps are uploaded to, or None.

    Raises:
        StoreError: The store cannot be asked for what it has.
    """

    def __init__(
        self, lock: RootLock, policy: Policy, config: Config, remote: RemoteSteps | None
    ) -> None:
        self._lock = lock
        self._root = lock.root
        self._config = config
        self._taking = threading.Lock()
        # Another than the one for taking: who takes may wait for the thread that asks what to keep.
        self._keeping = threading.Lock()
        self._kept: Counter[int] = Counter()
        self.saves = Saves()
        self.uploads = None if remote is None else Uploads(remote, config)
        # A root that is younger than its store must not begin to count anew.
        in_store = {} if remote is None else remote.manifests()
        self._newest_in_store = max(in_store, default=-1)
        self.saver = Saver(
            lock,
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

    def save(self, order: Order, prepared: Prepared) -> SaveReport:
        """Save a state that nothing changes meanwhile, and wait; Ctrl-C breaks it off.

        Raises:
            CheckpointExistsError: The step repeats or goes backwards.
            GdsckptError: The save failed.
        """
        self._lane.require_other_thread()
        job = self._job_for(order, prepared)
        try:
            self._start(job, order, prepared)
            report = job.handle.committed.result()
        except BaseException as error:
            self._take_back(job, error)
            raise
        self._deliver_warnings()
        return report

    def submit(
        self, order: Order, prepared: Prepared, options: SnapshotOptions | None = None
    ) -> SaveHandle:
        """Take a state and queue its save.

        Args:
            order: What to do.
            prepared: The state.
            options: How to take it; None where nothing changes the state until the commit.

        Raises:
            CheckpointExistsError: The step repeats or goes backwards.
            SnapshotBusyError: Every slot is in use, and the settings say to raise.
        """
        self._deliver_warnings()
        job = self._job_for(order, prepared)
        try:
            self._start(job, order, prepared, options)
            job.wait_until_read()
        except BaseException as error:
            self._take_back(job, error)
            if not isinstance(error, SnapshotBusyError) or self._config.snapshot_policy == "raise":
                raise
            logger.warning("skipped the save of step %d: %s", order.step, error)
        return job.handle

    def _job_for(self, order: Order, prepared: Prepared) -> SaveJob:
        handle = SaveHandle(order.step, has_store=self.uploads is not None)
        return SaveJob(handle, prepared, order.metric, order.deadline)

    def _start(
        self,
        job: SaveJob,
        order: Order,
        prepared: Prepared,
        options: SnapshotOptions | None = None,
    ) -> None:
        with self._taking:
            self._require_newer(order)
            if options is not None:
                nest, content = prepared.nest, prepared.content
                job.attach(take(nest, content, options, self._slots, step=order.step))
            self.saves.add(job.handle, job)
            self._lane.submit(functools.partial(self._run, job))

    def _take_back(self, job: SaveJob, error: BaseException) -> None:
        """End a job whose caller gets an error, however far it came; its failure is known then."""
        if job.begin():
            job.release()
            self.saves.written(job)
            job.handle.fail(error)
        while not job.handle.committed.done():
            job.is_cancelled = True
            with contextlib.suppress(BaseException):
                job.handle.committed.exception()
        job.handle.receive()
        _let_go(error)

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
        """Give the memory and the root back."""
        self._slots.close()
        self._lock.release()

    def abandon(self) -> None:
        """Close behind what is on its way, since nobody is left who could; for any thread."""
        if self._lane.is_idle and (self.uploads is None or self.uploads.is_idle):
            self._close_alone()
        else:
            self._lane.submit(self._close_alone)

    def _close_alone(self) -> None:
        if self.uploads is not None:
            self.uploads.wait()
        self.saves.log_failures()
        self.close()

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

    def _require_newer(self, order: Order) -> None:
        """Refuse a step that repeats or goes backwards.

        Raises:
            CheckpointExistsError: It does.
        """
        if order.overwrite:
            return
        # Those in flight first: one that is committed meanwhile is found by the scan. Of them the
        # last one counts alone, which may have gone back: what is after it will count no more.
        in_flight = [job.handle.step for job in self.saves.jobs]
        highest = in_flight[-1] if in_flight else self._newest_there()
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

    def _newest_there(self) -> int:
        """Give the newest step of root and store; -1 where there is none."""
        # What cannot be read now may be whole: it is not to be saved over by mistake.
        states = (roots.COMPLETE, roots.UNREADABLE)
        there = [entry.step for entry in roots.scan(self._root) if entry.state in states]
        return max([self._newest_in_store, *there])

    def _run(self, job: SaveJob) -> None:
        """Do a save, in the thread of the lane."""
        if not job.begin():
            return  # it was taken back
        try:
            try:
                report = self.saver.save(job)
            finally:
                job.release()
                self.saves.written(job)
        except BaseException as error:  # noqa: BLE001 - it is the handle's to raise
            failure = job.as_failure(error)
            _let_go(failure)
            job.handle.fail(failure)
            del job  # this frame stays with the failure, and so do those that called it
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


def _let_go(error: BaseException | None) -> None:
    """Empty the frames of an error that somebody may keep: they hold a state, or its fence."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def _finite(metric: Any) -> float | None:
    """Give a metric that can be compared, or None."""
    if metric is None:
        return None
    try:
        math.isfinite(metric)  # unlike float(), it takes no text
        number = float(metric)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise ConfigError(
            f"metric must be a number, got {type(metric).__name__}: {error}. Pass a float.",
            field="metric",
        ) from error
    return number if math.isfinite(number) else None


def _shown(value: object) -> str:
    """Show a wrong argument; a number may have more digits than python prints."""
    try:
        return repr(value)[:80]
    except ValueError:
        return f"one of type {type(value).__name__}"
