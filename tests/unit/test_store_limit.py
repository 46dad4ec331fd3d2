import threading
import zlib

import pytest

from gdsckpt.errors import StoreError
from gdsckpt.store.answers import Answer
from gdsckpt.store.limit import ConcurrencyLimit, LimitedStore
from gdsckpt.store.memory import MemoryStore
from gdsckpt.store.wrapped import WrappedStore
from gdsckpt.testing.faulty_store import Fault, FaultyStore


def report(limit, *, is_overload):
    with limit.slot() as slot:
        limit.report(slot, is_overload=is_overload)


def test_limit_overload_halves_down_to_one():
    limit = ConcurrencyLimit(8)
    seen = []
    for _ in range(5):
        report(limit, is_overload=True)
        seen.append(limit.num_allowed)
    assert seen == [4, 2, 1, 1, 1]


def test_limit_grows_by_one_for_as_many_good_answers_as_slots():
    limit = ConcurrencyLimit(8)
    for _ in range(3):
        report(limit, is_overload=True)
    seen = []
    for _ in range(30):
        report(limit, is_overload=False)
        seen.append(limit.num_allowed)
    # 1 answer to 2 slots, 2 more to 3, 3 more to 4, and so on.
    assert [seen.index(num) + 1 for num in range(2, 9)] == [1, 3, 6, 10, 15, 21, 28]
    assert seen[-1] == 8


def test_limit_overloads_of_one_flight_count_once():
    limit = ConcurrencyLimit(8)
    with limit.slot() as first, limit.slot() as second, limit.slot() as third:
        for slot in (first, second, third):
            limit.report(slot, is_overload=True)
    assert limit.num_allowed == 4
    report(limit, is_overload=True)
    assert limit.num_allowed == 2


class Watched(WrappedStore):
    """Counts the calls that are in it at the same time, and holds them until some came."""

    def __init__(self, inner, num_expected):
        super().__init__(inner)
        self._lock = threading.Lock()
        self._num_inside = 0
        self._barrier = threading.Barrier(num_expected)
        self.most_inside = 0

    def _run(self, call, run):
        with self._lock:
            self._num_inside += 1
            self.most_inside = max(self.most_inside, self._num_inside)
        self._barrier.wait()
        try:
            return run()
        finally:
            with self._lock:
                self._num_inside -= 1


def put(store, key="a", raw=b"x"):
    return store.put(key, memoryview(raw), crc32=zlib.crc32(raw))


def test_limited_store_lets_in_as_many_calls_as_slots():
    watched = Watched(MemoryStore("limit"), 3)
    store = LimitedStore(watched, ConcurrencyLimit(3))
    threads = [threading.Thread(target=put, args=(store, f"{n}")) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert watched.most_inside == 3


def test_limited_store_overload_lowers_and_other_errors_do_not():
    limit = ConcurrencyLimit(4)
    faults = [Fault("head", Answer(503, "SlowDown")), Fault("put", Answer(500, "InternalError"))]
    store = LimitedStore(FaultyStore(MemoryStore("limit"), *faults), limit)
    with pytest.raises(StoreError):
        put(store)
    assert limit.num_allowed == 4
    with pytest.raises(StoreError):
        store.head("a")
    assert limit.num_allowed == 2


def test_limited_store_paces_bytes_of_objects_before_they_go():
    paced = []
    store = LimitedStore(MemoryStore("limit"), ConcurrencyLimit(1), paced.append)
    put(store, raw=b"12345")
    store.head("a")
    store.get_range("a", 1, memoryview(bytearray(3)))
    upload = store.create_upload("b")
    store.put_part(upload, 1, memoryview(b"ab"), crc32=zlib.crc32(b"ab"))
    assert paced == [5, 3, 2]


def test_interrupt_ends_the_wait_for_a_slot():
    limit = ConcurrencyLimit(1)
    store = LimitedStore(MemoryStore("limit"), limit)
    errors = []

    def run():
        with pytest.raises(StoreError) as caught:
            store.head("a")
        errors.append(caught.value)

    thread = threading.Thread(target=run)
    with limit.slot():
        thread.start()
        while thread.is_alive():
            store.interrupt()
            thread.join(0.01)
    assert [(error.code, error.retryable) for error in errors] == [("Interrupted", False)]
    put(store)
