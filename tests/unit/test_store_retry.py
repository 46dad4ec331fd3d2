import threading
import zlib

import pytest

from gdsckpt.errors import StoreError
from gdsckpt.store.answers import Answer
from gdsckpt.store.base import IF_ABSENT, Condition
from gdsckpt.store.memory import MemoryStore
from gdsckpt.store.retry import RetryPolicy, RetryStore
from gdsckpt.testing.faulty_store import Fault, FaultyStore

AT_ONCE = RetryPolicy(attempts_max=4, first_wait_max_s=0.0)
BUSY = Answer(503, "SlowDown")
LOST = Answer(None, "ConnectionFailed")


def retrying(*faults, policy=AT_ONCE):
    faulty = FaultyStore(MemoryStore("retry"), *faults)
    return RetryStore(faulty, policy), faulty


def put(store, raw=b"x", key="a", **options):
    return store.put(key, memoryview(raw), crc32=zlib.crc32(raw), **options)


def error_of(call):
    with pytest.raises(StoreError) as caught:
        call()
    return caught.value


def test_call_that_fails_less_often_than_attempts_succeeds():
    store, faulty = retrying(Fault("put", BUSY, times=3))
    put(store)
    assert store.head("a").nbytes == 1
    assert len(faulty.calls) == 5


def test_call_that_always_fails_says_how_often_it_was_tried():
    store, faulty = retrying(Fault("put", BUSY, times=None))
    error = error_of(lambda: put(store))
    assert (error.attempts, error.retryable, error.code) == (4, True, "SlowDown")
    assert error.__notes__ == ["It was tried 4 times."]
    assert len(faulty.calls) == 4


def test_call_that_cannot_succeed_later_is_tried_once():
    store, faulty = retrying(Fault("put", Answer(403, "AccessDenied"), times=None))
    error = error_of(lambda: put(store))
    assert error.attempts == 1
    assert not hasattr(error, "__notes__")
    assert len(faulty.calls) == 1


def test_one_attempt_means_no_other():
    store, faulty = retrying(Fault("head", BUSY), policy=RetryPolicy(attempts_max=1))
    assert error_of(lambda: store.head("a")).attempts == 1
    assert len(faulty.calls) == 1


def test_budget_ends_retries_of_all_calls_together():
    policy = RetryPolicy(attempts_max=100, first_wait_max_s=0.0, budget=10)
    store, faulty = retrying(Fault("head", BUSY, times=None), policy=policy)
    error = error_of(lambda: store.head("a"))
    assert error.attempts == 11
    assert "10 other retries" in error.__notes__[0]
    assert error_of(lambda: store.head("b")).attempts == 1
    assert len(faulty.calls) == 12


def test_budget_comes_back_with_success():
    policy = RetryPolicy(attempts_max=100, first_wait_max_s=0.0, budget=3)
    store, _ = retrying(
        *[Fault("put", BUSY, times=3, skip=4 * n) for n in range(10)], policy=policy
    )
    for _ in range(10):
        put(store)


@pytest.mark.parametrize(
    ("attempt", "bound_s"), [(1, 0.2), (2, 0.4), (3, 0.8), (7, 12.8), (8, 20.0), (10_000, 20.0)]
)
def test_wait_bound_doubles_up_to_its_end(attempt, bound_s):
    assert RetryPolicy().wait_bound_s(attempt) == pytest.approx(bound_s)


def test_interrupt_ends_a_wait_at_once():
    policy = RetryPolicy(attempts_max=10, first_wait_max_s=1e6, wait_max_s=1e6)
    store, faulty = retrying(Fault("head", BUSY, times=None), policy=policy)
    errors = []
    thread = threading.Thread(target=lambda: errors.append(error_of(lambda: store.head("a"))))
    thread.start()
    while thread.is_alive():
        store.interrupt()
        thread.join(0.01)
    assert [(error.code, error.retryable) for error in errors] == [("Interrupted", False)]
    assert len(faulty.calls) == 1


def test_put_if_absent_done_with_its_answer_lost_is_recognised():
    store, _ = retrying(Fault("put", LOST, is_done=True))
    info = put(store, b"mine", condition=IF_ABSENT)
    assert info == store.head("a")


def test_put_if_match_done_with_its_answer_lost_is_recognised():
    store, _ = retrying(Fault("put", LOST, is_done=True, skip=1))
    etag = put(store, b"old").etag
    info = put(store, b"mine", condition=Condition(if_match=etag))
    assert info == store.head("a")


@pytest.mark.parametrize("theirs", [b"them", b"others"])
def test_put_if_absent_that_another_won_meanwhile_is_refused(theirs):
    store, faulty = retrying(Fault("put", LOST, skip=1))
    put(store, theirs)
    error = error_of(lambda: put(store, b"mine", condition=IF_ABSENT))
    assert (error.status, error.attempts) == (412, 2)
    assert len([call for call in faulty.calls if call.op == "put"]) == 3


def test_put_if_absent_refused_at_the_first_attempt_asks_no_more():
    store, faulty = retrying()
    put(store, b"mine")
    assert error_of(lambda: put(store, b"mine", condition=IF_ABSENT)).attempts == 1
    assert [call.op for call in faulty.calls] == ["put", "put"]
