"""How many requests are in flight at a time: as many as the store bears."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

from gdsckpt.errors import StoreError
from gdsckpt.store.answers import Answer, Call, error_for, is_slow_down
from gdsckpt.store.base import Store
from gdsckpt.store.wrapped import WrappedStore

T = TypeVar("T")

Pace = Callable[[int], None]
"""Called with the number of bytes before they go over the wire; returns when they may."""


def unpaced(nbytes: int) -> None:
    """Let bytes go at once."""


class ConcurrencyLimit:
    """Slots for requests: their number halves when the store is overloaded, and grows back.

    Additive increase, multiplicative decrease: one slot more after as many good answers as there
    are slots; half as many after an overload, at most once for the requests that were in flight
    when it showed. Any thread may use it.

    Args:
        most: Slots at first and at most, at least 1.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._allowed = float(most)
        self._num_in_flight = 0
        self._num_cuts = 0
        self._num_interrupts = 0
        self._changed = threading.Condition()

    @property
    def num_allowed(self) -> int:
        """Requests that may be in flight now."""
        return int(self._allowed)

    @contextlib.contextmanager
    def slot(self) -> Iterator[Slot | None]:
        """Wait for a slot and hold it for as long as the block lasts.

        Yields:
            What :meth:`report` wants, or None where :meth:`interrupt` came first: then there is no
            slot.
        """
        slot = self._acquire()
        try:
            yield slot
        finally:
            if slot is not None:
                with self._changed:
                    self._num_in_flight -= 1
                    self._changed.notify_all()

    def _acquire(self) -> Slot | None:
        with self._changed:
            num_interrupts = self._num_interrupts
            while self._num_in_flight >= self.num_allowed:
                self._changed.wait()
                if self._num_interrupts != num_interrupts:
                    return None
            self._num_in_flight += 1
            return Slot(self._num_cuts)

    def report(self, slot: Slot, *, is_overload: bool) -> None:
        """Say how the request of a slot went."""
        with self._changed:
            if not is_overload:
                self._allowed = min(self._most, self._allowed + 1 / self.num_allowed)
                self._changed.notify_all()
            elif slot.num_cuts == self._num_cuts:
                self._allowed = max(1.0, self._allowed / 2)
                self._num_cuts += 1

    def interrupt(self) -> None:
        """Wake those that wait for a slot: they get none."""
        with self._changed:
            self._num_interrupts += 1
            self._changed.notify_all()


class Slot:
    """Permission for one request.

    Args:
        num_cuts: Cuts before the request began: it saw the load that led to later ones.
    """

    __slots__ = ("num_cuts",)

    def __init__(self, num_cuts: int) -> None:
        self.num_cuts = num_cuts


class LimitedStore(WrappedStore):
    """Makes calls wait for a slot, and lowers their number when the store says SlowDown.

    Args:
        inner: The store.
        limit: The slots; may be shared by stores.
        pace: Holds bytes back.
    """

    def __init__(self, inner: Store, limit: ConcurrencyLimit, pace: Pace = unpaced) -> None:
        super().__init__(inner)
        self._limit = limit
        self._pace = pace

    def _run(self, call: Call, run: Callable[[], T]) -> T:
        with self._limit.slot() as slot:
            if slot is None:
                raise error_for(self.url, call, Answer(None, "Interrupted"))
            if call.nbytes:
                self._pace(call.nbytes)
            try:
                result = run()
            except StoreError as error:
                self._limit.report(slot, is_overload=is_slow_down(error))
                raise
            self._limit.report(slot, is_overload=False)
            return result

    def interrupt(self) -> None:
        """As ``Store``."""
        self._limit.interrupt()
        super().interrupt()
