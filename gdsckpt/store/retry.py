"""Tries again what may succeed later: the only place that does."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from gdsckpt.errors import StoreError
from gdsckpt.store.answers import Answer, Call, error_for
from gdsckpt.store.base import ALWAYS, Condition, ObjectInfo, Store
from gdsckpt.store.wrapped import WrappedStore

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and when a call is tried again.

    Waits are random, from 0 to a bound that doubles: calls that failed together do not come back
    together. Source: Amazon Builders' Library, "Timeouts, retries and backoff with jitter".

    Attributes:
        attempts_max: Attempts of one call, the first included.
        first_wait_max_s: Bound of the first wait.
        wait_max_s: Bound of all waits.
        budget: Retries that may be without success at the same time, over all calls: a store that
            is down is not asked by each of many threads as often as by one.
    """

    attempts_max: int = 10
    first_wait_max_s: float = 0.2
    wait_max_s: float = 20.0
    budget: int = 200

    def wait_bound_s(self, attempt: int) -> float:
        """Give the bound of the wait after an attempt, counted from 1."""
        return min(self.wait_max_s, self.first_wait_max_s * 2.0 ** min(attempt - 1, 60))


class RetryStore(WrappedStore):
    """Tries calls again whose errors are ``retryable``.

    Args:
        inner: The store.
        policy: How often and when.
    """

    def __init__(self, inner: Store, policy: RetryPolicy) -> None:
        super().__init__(inner)
        self._policy = policy
        self._budget = policy.budget
        self._num_interrupts = 0
        self._interrupted = threading.Condition()

    def _run(self, call: Call, run: Callable[[], T]) -> T:
        num_interrupts = self._num_interrupts
        attempt = 1
        while True:
            try:
                result = run()
            except StoreError as error:
                error.attempts = attempt
                if not error.retryable:
                    raise
                self._check_next(error, attempt)
                # Without its frames: they would keep the caller's buffers for as long as we wait.
                logger.info(
                    "trying again: %s attempt=%d of=%d", error, attempt, self._policy.attempts_max
                )
            else:
                self._give_back(attempt - 1)
                return result
            self._wait(call, attempt, num_interrupts)
            attempt += 1

    def _check_next(self, error: StoreError, attempt: int) -> None:
        """Raise ``error`` if it was the last attempt."""
        if attempt >= self._policy.attempts_max:
            error.add_note(f"It was tried {attempt} times.")
            raise error
        with self._interrupted:
            if self._budget <= 0:
                error.add_note(
                    f"It was tried {attempt} times, and not again: {self._policy.budget} other "
                    "retries have not succeeded either."
                )
                raise error
            self._budget -= 1

    def _give_back(self, num_retries: int) -> None:
        # Each success shows that the store is there, so that old failures fade.
        with self._interrupted:
            self._budget = min(self._policy.budget, self._budget + max(1, num_retries))

    def _wait(self, call: Call, attempt: int, num_interrupts: int) -> None:
        wait_s = random.uniform(0, self._policy.wait_bound_s(attempt))
        with self._interrupted:
            came = self._interrupted.wait_for(
                lambda: self._num_interrupts != num_interrupts, timeout=wait_s
            )
        if came:
            raise error_for(self.url, call, Answer(None, "Interrupted"))

    def interrupt(self) -> None:
        """As ``Store``."""
        with self._interrupted:
            self._num_interrupts += 1
            self._interrupted.notify_all()
        super().interrupt()

    def put(
        self,
        key: str,
        body: memoryview,
        *,
        crc32: int,
        metadata: Mapping[str, str] | None = None,
        condition: Condition = ALWAYS,
    ) -> ObjectInfo:
        """As ``Store``; a condition that fails because of our own lost answer is met."""
        try:
            return super().put(key, body, crc32=crc32, metadata=metadata, condition=condition)
        except StoreError as error:
            # A first attempt may have been done and its answer lost: then it is our own object that
            # the next one met. The bytes tell, as two writers never write the same ones.
            if error.status != 412 or error.attempts == 1:
                raise
            there = self.head(key)
            if there.nbytes != body.nbytes:
                raise
            found = memoryview(bytearray(there.nbytes))
            self.get_range(key, 0, found, if_match=there.etag)
            if found != body.cast("B"):
                raise
            return there
