"""Uploads of committed steps, one after the other, behind the training."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Collection
from pathlib import Path

from gdsckpt.checkpointer import report_log
from gdsckpt.checkpointer.background import Lane
from gdsckpt.config import Config
from gdsckpt.errors import TimeoutExpiredError
from gdsckpt.handle import SaveHandle
from gdsckpt.remote.steps import RemoteSteps
from gdsckpt.remote.uploader import upload
from gdsckpt.report import UploadReport

logger = logging.getLogger(__name__)


class Uploads:
    """Sends steps to where ``remote`` names them.

    Args:
        remote: The steps below the URL of the store.
        config: Settings.
    """

    def __init__(self, remote: RemoteSteps, config: Config) -> None:
        self._remote = remote
        self._config = config
        self._lane = Lane("gdsckpt-upload")
        self._lock = threading.Lock()
        self._waiting: Counter[int] = Counter()
        self._waiting_bytes = 0
        self._deadline: float | None = None
        self.bytes_per_s: float | None = None

    @property
    def steps(self) -> Collection[int]:
        """Steps that wait for their upload or are in it: their files must stay."""
        with self._lock:
            return set(self._waiting)

    @property
    def waiting_bytes(self) -> int:
        """Bytes of those steps, at most."""
        with self._lock:
            return self._waiting_bytes

    def give_up_at(self, deadline: float) -> None:
        """Let no upload go on after this ``time.monotonic``."""
        self._deadline = deadline

    def start(self, directory: Path, nbytes: int, handle: SaveHandle) -> None:
        """Queue the upload of a committed step; its handle learns what becomes of it."""
        self._queue(directory, handle.step, nbytes, handle)

    def catch_up(self, directory: Path, step: int, nbytes: int) -> None:
        """Queue the upload that an earlier process had left; that it fails is only logged."""
        self._queue(directory, step, nbytes, None)

    def _queue(self, directory: Path, step: int, nbytes: int, handle: SaveHandle | None) -> None:
        with self._lock:
            self._waiting[step] += 1
            self._waiting_bytes += nbytes
        self._lane.submit(lambda: self._run(directory, step, nbytes, handle))

    @property
    def is_idle(self) -> bool:
        """Whether no upload is queued or under way."""
        return self._lane.is_idle

    def wait(self) -> None:
        """Wait until no upload is queued or under way."""
        self._lane.wait()

    def _run(self, directory: Path, step: int, nbytes: int, handle: SaveHandle | None) -> None:
        report: UploadReport | None = None
        failure: BaseException | None = None
        try:
            url = self._remote.url_of(step)
            report = upload(directory, url, config=self._config, progress=self._check)
        except BaseException as error:  # noqa: BLE001 - it is the handle's to raise
            failure = error
        with self._lock:
            self._waiting[step] -= 1
            self._waiting_bytes -= nbytes
            self._waiting += Counter()  # drops what is 0
        if report is not None:
            if report.sent_bytes:
                self.bytes_per_s = report.bytes_per_s
            logger.info("%s step=%d", report, step)
            report_log.append(directory.parent, "upload", report)
            if handle is not None:
                handle.reach_uploaded(report)
        elif failure is not None and handle is not None:
            logger.debug("upload failed step=%d error=%r", step, failure)
            handle.fail(failure)
        elif failure is not None:
            logger.error("step %d of an earlier run is not in the store: %s", step, failure)

    def _check(self, _done: int, _total: int) -> None:
        if self._deadline is not None and time.monotonic() > self._deadline:
            raise TimeoutExpiredError(
                "the upload did not end before this process is stopped, and was given up. What the "
                "store has of it is no checkpoint; the local copy is whole.",
                what="upload",
            )
