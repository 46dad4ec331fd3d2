"""Notice that this process is going to be stopped, in time for one more save.

Batch systems and clouds say so by a signal or by a file, and kill the process a while later. The
signal handler here only takes a note: what is done about it is decided at the next step boundary,
where the training state is whole.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from gdsckpt.errors import ConfigError
from gdsckpt.units import format_duration

logger = logging.getLogger(__name__)

FILE_INTERVAL_S = 1.0
"""A file to watch may lie on a network drive: it is looked at no more often than this."""

# The kernel lets nobody handle the first two; returning from a handler of the others repeats the
# fault for ever. Source: Python's documentation of the module signal, "Execution of handlers".
_UNUSABLE = {
    signal.SIGKILL,
    signal.SIGSTOP,
    signal.SIGSEGV,
    signal.SIGBUS,
    signal.SIGFPE,
    signal.SIGILL,
}


@dataclass(frozen=True, slots=True)
class Request:
    """Somebody wants this process to end.

    Attributes:
        reason: What said so, such as ``"signal SIGTERM"`` or ``"file /run/preempted"``.
        at: When it came, in seconds of ``time.monotonic()``.
        grace_s: Seconds from then on until the process is killed, as far as the user knows.
    """

    reason: str
    at: float
    grace_s: float

    def remaining_s(self) -> float:
        """Give the seconds that are left until the process is killed, at least 0."""
        return max(0.0, self.at + self.grace_s - time.monotonic())


class PreemptionWatch:
    """Watches for signals and a file that announce the end of this process.

    Between ``install`` and ``uninstall`` the signals no longer end the process: the training loop
    has to ask ``requested`` at each step and to end by itself. That goes for Ctrl-C where SIGINT is
    one of the signals. Children made by fork are not concerned: a signal that such a child gets
    does there what it did before.

    Args:
        signals: Signals to handle; may be empty where a file is given.
        file: Path whose appearance is a request, or None. One that is there already at the
            beginning was left by an earlier run: it counts only once it changes.
        grace_s: Seconds between a request and the kill, above 0.

    Raises:
        ConfigError: A signal cannot be handled, the grace time is not above 0, or there is nothing
            to watch.
    """

    def __init__(
        self,
        signals: Iterable[int] = (signal.SIGTERM,),
        file: str | os.PathLike[str] | None = None,
        grace_s: float = 30.0,
    ) -> None:
        self._signals = tuple(dict.fromkeys(_usable(number) for number in signals))
        if not self._signals and file is None:
            raise ConfigError("There is nothing to watch: give signals= or file=.", field="signals")
        if not (math.isfinite(grace_s) and grace_s > 0):
            raise ConfigError(
                f"grace_s is {grace_s!r}: give the seconds between the request and the kill.",
                field="grace_s",
            )
        self.grace_s = grace_s
        self._file = None if file is None else _WatchedFile(Path(file))
        self._links: list[_Link] = []
        self._first: tuple[int, float] | None = None
        self._numbers: list[int] = []
        self._request: Request | None = None

    @property
    def num_signals(self) -> int:
        """How many of the signals have come; equal ones that came at once may count as one."""
        return len(self._numbers)

    def install(self) -> None:
        """Begin to watch; no effect when it watches already.

        Raises:
            ConfigError: There are signals and this is not the main thread, or one of them has a
                handler that is not Python's and so cannot be called or put back.
        """
        if self._links:
            return
        if self._signals and threading.current_thread() is not threading.main_thread():
            raise ConfigError(
                "Signals can be handled only from the main thread, and this is thread "
                f"{threading.current_thread().name!r}: install the watch in the main thread, or "
                "give signals=() and file= to watch a file.",
                field="signals",
            )
        for number in self._signals:
            if signal.getsignal(number) is None:
                raise ConfigError(
                    f"{number.name} has a handler that was not set from Python, which cannot be "
                    "called or put back: choose another signal, or a file with file=.",
                    field="signals",
                )
        if self._file is not None:
            self._file.begin()
        for number in self._signals:
            link = _Link(self._note)
            self._links.append(link)
            link.connect(number)

    def uninstall(self) -> None:
        """Stop watching signals; never raises, and may be called from any thread.

        The handler that was there before is put back, unless somebody has replaced ours meanwhile;
        away from the main thread, where that is impossible, it is put back by the next signal.
        """
        links, self._links = self._links, []
        for link in reversed(links):
            link.disconnect()

    def requested(self) -> Request | None:
        """Give the first request that came, or None; cheap enough for each step."""
        if self._request is None:
            self._request = self._by_signal() or self._by_file()
        return self._request

    def _note(self, number: int) -> None:
        # Called by a signal handler: no locks, no logging, and a second signal may come anywhere in
        # between. Then the earlier time overwrites the later.
        at = time.monotonic()
        if self._first is None:
            self._first = (number, at)
        self._numbers.append(number)

    def _by_signal(self) -> Request | None:
        if self._first is None:
            return None
        number, at = self._first
        return self._request_for(f"signal {signal.Signals(number).name}", at)

    def _by_file(self) -> Request | None:
        if self._file is None:
            return None
        at = self._file.appeared_at()
        return None if at is None else self._request_for(f"file {self._file.path}", at)

    def _request_for(self, reason: str, at: float) -> Request:
        logger.warning(
            "asked to end by %s: %s of %s are left",
            reason,
            format_duration(max(0.0, at + self.grace_s - time.monotonic())),
            format_duration(self.grace_s),
        )
        return Request(reason, at, self.grace_s)


class _Link:
    """The handler of one signal, in a chain with the one that was there before.

    It may stay in the chain of a handler that came later, after it was disconnected and in children
    made by fork: there it only passes the signal on.
    """

    def __init__(self, note: Callable[[int], None]) -> None:
        self._note = note
        self._process = os.getpid()
        self._is_active = False
        self._number = 0
        self._previous: Any = signal.SIG_DFL

    def connect(self, number: int) -> None:
        self._number = number
        self._previous = signal.getsignal(number)
        self._is_active = True
        signal.signal(number, self)

    def disconnect(self) -> None:
        self._is_active = False
        in_main = threading.current_thread() is threading.main_thread()
        if in_main and _handler_of(self._number) is self:
            signal.signal(self._number, self._previous)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self._is_active and os.getpid() == self._process:
            self._note(number)
            # Python's own handler of SIGINT is its default action, not one that somebody chose.
            if callable(self._previous) and self._previous is not signal.default_int_handler:
                self._previous(number, frame)
        elif callable(self._previous):
            self._previous(number, frame)
        elif _handler_of(number) is self:
            # The default action can be had only from the kernel.
            signal.signal(number, self._previous)
            signal.raise_signal(number)


class _WatchedFile:
    """A path, and when it was last looked at."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._left_over: tuple[int, int, int] | None = None
        self._looked_at = -math.inf
        self._has_failed = False

    def begin(self) -> None:
        """Remember the file that is there already, if any."""
        self._looked_at = time.monotonic()
        found = self._look()
        self._left_over = None if found is None else _identity(found)
        if found is not None:
            logger.warning(
                "%s was there before the watch for it began: it is taken for one left by an "
                "earlier run, and counts once it is touched or replaced",
                self.path,
            )

    def appeared_at(self) -> float | None:
        """Give the monotonic time at which a new file appeared; None when there is none."""
        now = time.monotonic()
        unseen_s = now - self._looked_at
        if unseen_s < FILE_INTERVAL_S:
            return None
        self._looked_at = now
        found = self._look()
        if found is None:
            self._left_over = None
            return None
        if _identity(found) == self._left_over:
            return None
        # By its time, which may be another machine's; but it was not there at the last look.
        age_s = time.time() - found.st_mtime
        return now - min(max(age_s, 0.0), unseen_s)

    def _look(self) -> os.stat_result | None:
        try:
            return self.path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            if not self._has_failed:
                self._has_failed = True
                logger.warning(
                    "cannot look for %s, which would announce the end of this process: %s; trying "
                    "on in silence",
                    self.path,
                    error,
                )
            return None


def _handler_of(number: int) -> object:
    return signal.getsignal(number)


def _identity(found: os.stat_result) -> tuple[int, int, int]:
    return found.st_dev, found.st_ino, found.st_mtime_ns


def _usable(number: int) -> signal.Signals:
    try:
        known = signal.Signals(number)
    except ValueError as error:
        raise ConfigError(f"{number!r} is no signal of this system.", field="signals") from error
    if known in _UNUSABLE:
        raise ConfigError(
            f"{known.name} cannot announce anything: it ends the process at once. Use SIGTERM, "
            "SIGINT, SIGUSR1 or SIGUSR2.",
            field="signals",
        )
    return known
