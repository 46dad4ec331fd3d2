"""Writes steps into a root, one after the other, and prunes what retention lets go."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Collection
from pathlib import Path

from gdsckpt import retention
from gdsckpt._version import __version__
from gdsckpt.checkpointer import report_log, stale
from gdsckpt.checkpointer.job import SaveJob
from gdsckpt.config import Config
from gdsckpt.errors import GdsckptError, storage_error_from
from gdsckpt.report import SaveReport
from gdsckpt.retention import NewStep, Policy
from gdsckpt.staging import directory, pruning, quarantine, root
from gdsckpt.staging.directory import SaveIdentity
from gdsckpt.staging.root import StepEntry
from gdsckpt.staging.root_lock import RootLock
from gdsckpt.staging.writer import WrittenShard

logger = logging.getLogger(__name__)

_OVERHEAD_BYTES = 1 << 20
"""Manifest, headers and tables of a usual state; more than that shows when it is written."""


class Saver:
    """Writes the steps of one root; for one thread at a time.

    Args:
        lock: Of the root.
        policy: Which steps stay.
        config: Settings.
        sequence: Highest of all saves elsewhere, such as in a store.
        protected: Gives the steps that must stay whatever the policy says.

    Attributes:
        bytes_per_s: Of the last save, from its first byte to its commit; None before one ended.
        warnings: What the user has to know of saves that succeeded; to be emptied by the caller.
    """

    def __init__(
        self,
        lock: RootLock,
        policy: Policy,
        config: Config,
        *,
        sequence: int,
        protected: Callable[[], Collection[int]],
    ) -> None:
        self._lock = lock
        self._root = lock.root
        self._policy = policy
        self._config = config
        self._protected = protected
        self.warnings: deque[str] = deque()
        self._last: tuple[int, stale.Fingerprint] | None = None
        self._sequence = sequence
        self.bytes_per_s: float | None = None

    def save(self, job: SaveJob) -> SaveReport:
        """Write one step: when this returns, it is durable and listed.

        Raises:
            GdsckptError: It failed; the root is what it was.
        """
        entries = root.scan(self._root)
        self._lock.renew()
        self._make_room(entries, job)
        # One that fails leaves a gap, which means nothing.
        self._sequence = max(self._sequence + 1, root.next_sequence(entries))
        identity = SaveIdentity(
            job.handle.step,
            f"gdsckpt {__version__}",
            sequence=self._sequence,
            metric=job.metric,
        )
        target = root.step_directory(self._root, job.handle.step)
        try:
            _, written = directory.write_directory(
                target, job.content, identity, self._config, progress=job.check
            )
        except BaseException:
            with contextlib.suppress(OSError):  # it has files, or was not made
                target.rmdir()
            raise
        report = _report(target, written, job)
        seconds = written.write_s + written.sync_s + written.commit_s
        self.bytes_per_s = written.nbytes / seconds if seconds else None
        logger.info("%s step=%d", report, job.handle.step)
        report_log.append(self._root, "save", report)
        self._compare(job, written)
        return report

    def tidy(self) -> None:
        """Set aside what the newest save superseded, and prune; failures are only logged."""
        try:
            for finding in quarantine.set_aside_superseded(self._root, fsync=self._config.fsync):
                logger.warning("%s", finding)
            self._prune()
        except (GdsckptError, OSError) as error:
            logger.warning("old steps stay in %s: %s", self._root, error)

    def _make_room(self, entries: tuple[StepEntry, ...], job: SaveJob) -> None:
        """Refuse a save that cannot fit; prune first what has to go with it anyway.

        Raises:
            StorageError: ``errno`` is ENOSPC, and nothing was pruned.
        """
        new = NewStep(
            step=job.handle.step,
            metric=job.metric,
            nbytes=job.content.payload_bytes + len(job.content.pickle) + _OVERHEAD_BYTES,
            path=self._root,
        )
        free_bytes = _free_bytes(self._root)
        for entry in retention.to_free(new, free_bytes, entries, self._policy, self._protected()):
            logger.info("prune a step before a save, for its space step=%d", entry.step)
            pruning.prune(self._root, entry.path, fsync=self._config.fsync)

    def _prune(self) -> None:
        entries = root.scan(self._root)
        doomed = set(retention.steps_to_prune(entries, self._policy, self._protected()))
        for entry in entries:
            if entry.step in doomed:
                pruning.prune(self._root, entry.path, fsync=self._config.fsync)

    def _compare(self, job: SaveJob, written: WrittenShard) -> None:
        """Warn when the step before had the same values."""
        found = stale.fingerprint(job.content.tensors, written.storage_crcs)
        step, last = job.handle.step, self._last
        self._last = (step, found)
        if last is None or last[0] == step or found.is_empty or last[1] != found:
            return
        self.warnings.append(
            f"steps {last[0]} and {step} were saved with the same values in all floating-point "
            "tensors, bit by bit. Did the optimizer run in between, and is it the trained model "
            "that is saved?"
        )


def _free_bytes(path: Path) -> int | None:
    """Give the free bytes of a file system; None where it does not say."""
    try:
        info = os.statvfs(path)
    except OSError as error:
        raise storage_error_from(error, op="statvfs", path=path) from error
    return info.f_bavail * info.f_frsize if info.f_blocks else None


def _report(target: Path, written: WrittenShard, job: SaveJob) -> SaveReport:
    return SaveReport(
        path=str(target),
        nbytes=written.nbytes,
        payload_bytes=job.content.payload_bytes,
        num_tensors=len(job.content.tensors),
        num_records=written.num_records,
        seconds=time.perf_counter() - job.started,
        plan_s=job.plan_s,
        write_s=written.write_s,
        sync_s=written.sync_s,
        commit_s=written.commit_s,
        engine=written.engine,
        engine_reasons=written.engine_reasons,
        direct_io=written.direct_io,
        crc32=written.crc32,
        step=job.handle.step,
        snapshot=job.snapshot_mode,
        stall_s=job.stall_s,
    )
