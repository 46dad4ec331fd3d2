"""The Checkpointer: what training code calls."""

from __future__ import annotations

import functools
import logging
import os
import signal
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from gdsckpt.checkpointer import loader, restoring
from gdsckpt.checkpointer.copies import Copies, find_copies
from gdsckpt.checkpointer.ending import end_in_time
from gdsckpt.checkpointer.pipeline import Order, Pipeline
from gdsckpt.checkpointer.preemption import PreemptionWatch
from gdsckpt.config import Config
from gdsckpt.errors import (
    CheckpointNotFoundError,
    ConfigError,
    DamagedCheckpointWarning,
)
from gdsckpt.handle import SaveHandle
from gdsckpt.loading.restore import MapLocation
from gdsckpt.remote.steps import RemoteSteps
from gdsckpt.report import PreemptionReport, SaveReport
from gdsckpt.retention import Policy
from gdsckpt.snapshot import SnapshotOptions
from gdsckpt.staging import files, quarantine
from gdsckpt.staging import root as roots
from gdsckpt.staging.root_lock import RootLock
from gdsckpt.tensors.naming import KeySelection

logger = logging.getLogger(__name__)


class Checkpointer:
    """Saves the state of a training into a root, step by step, and finds the way back.

    Each step is a directory of the root that is there whole or not at all. One Checkpointer at a
    time has a root; whoever only reads needs none (``gdsckpt.load(root / "step-00001200")``). Any
    thread may call, but not children made by fork.

    Args:
        root: Directory, on a local drive; made if absent, with what is above it.
        store: URL below which each committed step is uploaded in the background, or None.
        keep_local: Newest steps that stay in the root, at least 1.
        keep_every: Steps divisible by it stay too; None for none.
        keep_best: Number of steps with the best ``metric`` that stay too.
        best: Which metric is better: ``"min"`` or ``"max"``.
        config: Settings; also read from ``GDSCKPT_*``.

    Attributes:
        root: The directory.
        recovered: What was found of killed saves and damaged steps when this began, and what was
            done about each.
        loaded_step: The step that :meth:`load` gave last, or None.

    Raises:
        RootLockedError: Another trainer has the root; ``holder`` names it.
        StorageError: The root cannot be made or read.
        ConfigError: An argument or a setting is wrong.
    """

    def __init__(  # noqa: PLR0913 - by keyword only
        self,
        root: str | os.PathLike[str],
        *,
        store: str | None = None,
        keep_local: int = 3,
        keep_every: int | None = None,
        keep_best: int = 0,
        best: str = "min",
        config: Config | Mapping[str, Any] | None = None,
    ) -> None:
        self._config = Config.resolve(config, os.environ)
        self.root = Path(files.local_path(root)).absolute()
        policy = Policy(keep_local, keep_every, keep_best, best)
        self._remote = None if store is None else RemoteSteps(store, self._config)
        self.loaded_step: int | None = None
        self._pid = os.getpid()
        self._watch: PreemptionWatch | None = None
        self._lock = RootLock.acquire(self.root)
        try:
            self.recovered = _recover(self.root)
            self._pipeline = Pipeline(self._lock, policy, self._config, self._remote)
        except BaseException:
            self._lock.release()
            raise
        self._is_closed = False

    _is_closed = True
    """Until there is something to close."""

    def __del__(self) -> None:
        """End, without waiting, what was left without :meth:`close`; failures are logged."""
        if not self._is_closed and os.getpid() == self._pid:
            self._is_closed = True
            if self._watch is not None:
                self._watch.uninstall()
            self._pipeline.abandon()

    def save(
        self, step: int, state: Any, *, overwrite: bool = False, metric: float | None = None
    ) -> SaveReport:
        """Save a step, and return when it is durable and listed.

        Args:
            step: Of training; above all that were saved, unless ``overwrite``.
            state: Any nest of tensors, plain values and objects that have ``state_dict`` and
                ``load_state_dict``. Must not change until this returns.
            overwrite: Save a step that is there, or is before one that is. The old bytes of the
                step are intact until the new ones are durable; later steps count no more then.
            metric: What retention goes by with ``keep_best``; not finite is as None.

        Raises:
            CheckpointExistsError: The step repeats or goes backwards; nothing was touched.
            StorageError: The save failed; every step is what it was.
            TornSnapshotError: The state changed meanwhile; likewise.
            ConfigError: The state cannot be pickled, or an argument is wrong.
        """
        self._require_usable()
        order = Order(step, overwrite=overwrite, metric=metric)
        return self._pipeline.save(order, self._pipeline.prepare(state))

    def async_save(  # noqa: PLR0913 - the last ones by keyword only
        self,
        step: int,
        state: Any,
        optimizer: Any = None,
        snapshot: str = "auto",
        *,
        overwrite: bool = False,
        metric: float | None = None,
    ) -> SaveHandle:
        """Save a step behind the training.

        Args:
            step: As for :meth:`save`.
            state: As for :meth:`save`; when it may change again depends on ``snapshot``.
            optimizer: The optimizer, or a list of several, whose ``step()`` has to wait until its
                parameters and its state were read: with it, nothing of them is copied.
            snapshot: ``"fence"`` reads from the live tensors; ``"host"`` copies to host memory,
                ``"device"`` to the memory where the tensors are; ``"auto"`` is ``fence`` with an
                ``optimizer``, and else ``host``.
            overwrite: As for :meth:`save`.
            metric: As for :meth:`save`.

        Returns:
            Its futures say how far it is. One that fails, and that nobody asks, is raised by
            :meth:`wait` and :meth:`close`.

        Raises:
            CheckpointExistsError: The step repeats or goes backwards; nothing was touched.
            SnapshotBusyError: With the setting ``snapshot_policy=raise``: every slot is in use.
            ConfigError: The state cannot be pickled, or an argument is wrong.
        """
        self._require_usable()
        order = Order(step, overwrite=overwrite, metric=metric)
        options = SnapshotOptions(mode=snapshot, optimizer=optimizer)
        return self._pipeline.submit(order, self._pipeline.prepare(state), options)

    def load(  # noqa: PLR0913 - by keyword only
        self,
        step: int | str = "latest",
        *,
        into: Any = None,
        map_location: MapLocation = None,
        weights_only: bool = True,
        keys: KeySelection | None = None,
        strict: bool = True,
    ) -> Any:
        """Load a step, verified.

        ``"latest"`` takes the newest complete step. A damaged copy of it is set aside with
        DamagedCheckpointWarning, and the next is taken: the one in the store, then the step before.

        Args:
            step: A step, or ``"latest"``.
            into: State to restore: tensors are filled in place, objects that have
                ``load_state_dict`` get their part, other leaves are replaced.
            map_location: As for ``torch.load``; not with ``into``.
            weights_only: Refuse pickles that need more than tensors and plain values.
            keys: Load a part; as for :func:`gdsckpt.load`.
            strict: With ``into``: refuse keys that are missing or left over.

        Returns:
            The nest that was saved, or ``into``.

        Raises:
            CheckpointNotFoundError: There is no such step, or none at all.
            FormatError: Each copy of the step asked for is damaged.
            StateMismatchError: ``into`` or ``keys`` do not fit.
            ConfigError: An argument is wrong.
        """
        self._require_usable()
        read = functools.partial(
            restoring.load_into,
            into=into,
            map_location=map_location,
            weights_only=weights_only,
            keys=keys,
            strict=strict,
            config=self._config,
        )
        copies = self._chosen(step)
        with self._pipeline.kept(each.step for each in copies):
            self.loaded_step, found = loader.load_newest(
                copies, self.root, read, only=step != "latest"
            )
        return found

    def latest(self) -> int | None:
        """Give the newest complete step, in the root or the store; None where there is none."""
        return max(self.steps(), default=None)

    def steps(self) -> list[int]:
        """List the complete steps, in the root or the store, ascending."""
        self._require_usable()
        return [copies.step for copies in find_copies(self.root, self._remote)]

    def watch_preemption(
        self,
        signals: Iterable[int] = (signal.SIGTERM,),
        file: str | os.PathLike[str] | None = None,
        grace_s: float = 30.0,
    ) -> None:
        """Begin to look out for the announcement that this process will be stopped.

        From now on :meth:`step` saves when it came. Handlers that were there are called too.

        Args:
            signals: Signals that announce it.
            file: Path whose appearance announces it, or None.
            grace_s: Seconds between the announcement and the end.

        Raises:
            ConfigError: There are signals and this is not the main thread, or an argument is wrong.
        """
        self._require_usable()
        watch = PreemptionWatch(signals, file, grace_s)
        if self._watch is not None:
            self._watch.uninstall()
        watch.install()
        self._watch = watch

    def step(
        self, step: int, state: Any, *, metric: float | None = None
    ) -> PreemptionReport | None:
        """Say that a step of training is over; the place where a preemption is answered.

        Costs nothing while none was announced. Then what fits into the time that is left is done:
        the step saved and uploaded, or only saved, or only what is in flight is ended.

        Args:
            step: The step that is over.
            state: As for :meth:`save`, or a function without arguments that gives it.
            metric: As for :meth:`save`.

        Returns:
            None to go on; else what was done: end the training loop then.
        """
        self._require_usable()
        request = None if self._watch is None else self._watch.requested()
        if request is None:
            return None
        return end_in_time(self._pipeline, request, Order(step, metric=metric), state)

    def wait(self) -> None:
        """Wait until every save has ended: committed, older steps pruned, and uploaded.

        Raises:
            GdsckptError: A save or an upload failed, and nobody has asked its handle; the failures
                after the first are notes of it.
        """
        self._require_own_process()
        self._pipeline.wait()

    def close(self) -> None:
        """Wait as :meth:`wait` does, then give the root back; raises as it does, the root is free.

        Closing again does nothing.
        """
        if self._is_closed:
            return
        try:
            self.wait()
        finally:
            # When the wait was interrupted, the saves go on, and the root is theirs.
            if self._pipeline.is_idle:
                self._pipeline.close()
                if self._watch is not None:
                    self._watch.uninstall()
                self._is_closed = True  # last: what is interrupted here can be called again

    def __enter__(self) -> Self:
        """Give itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close. A failure of a save never hides the exception that ends the block."""
        try:
            self.close()
        except Exception as failure:
            if error is None:
                raise
            error.add_note(f"A save in flight failed too: {failure}")

    def _chosen(self, step: int | str) -> tuple[Copies, ...]:
        """Give the copies that a load may take, ascending."""
        copies = find_copies(self.root, self._remote)
        if step == "latest":
            return copies
        found = tuple(each for each in copies if each.step == step and type(step) is int)
        if found:
            return found
        if type(step) is not int:
            raise ConfigError(f"step is {step!r}. Give a number or 'latest'.", field="step")
        there = ", ".join(str(each.step) for each in copies[-5:]) or "none"
        raise CheckpointNotFoundError(
            f"no complete step {step} in {self.root}; the newest that are: {there}.",
            path=roots.step_directory(self.root, step),
        )

    def _require_usable(self) -> None:
        self._require_own_process()
        if self._is_closed:
            raise ConfigError(
                f"the Checkpointer of {self.root} was closed. Make a new one.", field="root"
            )

    def _require_own_process(self) -> None:
        if os.getpid() != self._pid:
            raise ConfigError(
                f"the Checkpointer of {self.root} belongs to process {self._pid}, of which this "
                "one is a forked child. Save there, or use another root.",
                field="root",
            )


def _recover(root: Path) -> tuple[quarantine.Finding, ...]:
    """Clear the root of what killed saves left, and say so."""
    findings = tuple(quarantine.recover(root))
    for found in findings:
        logger.warning("%s", found)
        if found.state in (roots.DAMAGED, roots.UNREADABLE):
            warnings.warn(str(found), DamagedCheckpointWarning, stacklevel=4)
    return findings
