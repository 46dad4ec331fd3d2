"""A store that fails on demand, around another one: for tests of what uses stores."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from gdsckpt.store.answers import Answer, Call, error_for
from gdsckpt.store.base import Store
from gdsckpt.store.wrapped import WrappedStore

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Fault:
    """Calls that fail.

    Attributes:
        op: Method of ``Store``.
        answer: What they get; its status and code say whether it may be tried again.
        times: How many of them; None for all.
        skip: Calls of this method before them that go well.
        is_done: Whether the inner store does what was asked, and only the answer is lost.
    """

    op: str
    answer: Answer = Answer(503, "SlowDown")
    times: int | None = 1
    skip: int = 0
    is_done: bool = False


class FaultyStore(WrappedStore):
    """Fails as told, and counts calls. Any thread may use it.

    Args:
        inner: The store.
        faults: In the order in which they are looked at; the first that applies is used.
    """

    def __init__(self, inner: Store, *faults: Fault) -> None:
        super().__init__(inner)
        self._faults = list(faults)
        self._num_met = [0] * len(faults)
        self._lock = threading.Lock()
        self.calls: list[Call] = []

    def _run(self, call: Call, run: Callable[[], T]) -> T:
        fault = self._fault_of(call)
        if fault is None:
            return run()
        if fault.is_done:
            run()
        raise error_for(self.url, call, fault.answer)

    def _fault_of(self, call: Call) -> Fault | None:
        with self._lock:
            self.calls.append(call)
            for index, fault in enumerate(self._faults):
                if fault.op != call.op:
                    continue
                nth = self._num_met[index] - fault.skip
                self._num_met[index] += 1
                if nth >= 0 and (fault.times is None or nth < fault.times):
                    return fault
        return None
