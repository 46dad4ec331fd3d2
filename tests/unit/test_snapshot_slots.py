"""Slots: used again, never while in flight, given back whatever happens."""

import gc
import os
import signal
import threading

import pytest
from snapshots import MIB, slots

from gdsckpt import native
from gdsckpt.errors import ConfigError, SnapshotBusyError


def test_slot_that_was_given_back_is_used_again():
    ours = slots(num_slots=2)
    first = ours.acquire(1)
    address = first.reserve(100, native.HOST)
    first.release()
    second = ours.acquire(2)
    assert second.reserve(50, native.HOST) == address
    assert ours.mapped_bytes == 2 * MIB  # the other one was never needed


def test_slots_in_flight_have_memory_of_their_own():
    ours = slots(num_slots=3)
    leases = [ours.acquire(step) for step in range(3)]
    begins = sorted(lease.reserve(3 * MIB, native.HOST) for lease in leases)
    assert all(b - a >= 3 * MIB for a, b in zip(begins, begins[1:], strict=False))
    assert ours.num_in_flight == 3


def test_slot_grows_with_the_state_and_keeps_what_it_has():
    ours = slots(num_slots=1)
    for nbytes, mapped in ((MIB, 2 * MIB), (5 * MIB, 6 * MIB), (MIB, 6 * MIB)):
        lease = ours.acquire(1)
        lease.reserve(nbytes, native.HOST)
        lease.release()
        assert ours.mapped_bytes == mapped


def test_slot_max_bytes_is_an_equal_part():
    assert slots(num_slots=4, max_bytes=10 * MIB).slot_max_bytes == 10 * MIB // 4


@pytest.mark.parametrize("policy", ["skip", "raise"])
def test_acquire_while_all_are_in_flight_raises(policy):
    ours = slots(num_slots=1, policy=policy)
    lease = ours.acquire(1)
    with pytest.raises(SnapshotBusyError) as caught:
        ours.acquire(7)
    assert caught.value.step == 7
    assert caught.value.retryable
    lease.release()
    ours.acquire(8)


def test_acquire_waits_for_the_slot_that_comes_first():
    ours = slots(num_slots=1)
    lease = ours.acquire(1)
    got = []
    waiter = threading.Thread(target=lambda: got.append(ours.acquire(2)))
    waiter.start()
    lease.release()
    waiter.join()
    assert len(got) == 1


def test_acquire_is_broken_off_by_a_signal():
    ours = slots(num_slots=1)
    lease = ours.acquire(1)
    before = signal.signal(signal.SIGUSR1, _interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            _acquire_while_signalled(ours)
    finally:
        signal.signal(signal.SIGUSR1, before)
    lease.release()
    assert ours.num_in_flight == 0


def _acquire_while_signalled(ours):
    arguments = (threading.get_ident(), signal.SIGUSR1)
    threading.Thread(target=signal.pthread_kill, args=arguments).start()
    ours.acquire(2)


def _interrupt(_signal, _frame):
    raise KeyboardInterrupt


def test_lease_released_twice_gives_one_slot_back():
    ours = slots(num_slots=2)
    lease = ours.acquire(1)
    other = ours.acquire(2)
    lease.release()
    lease.release()
    assert ours.num_in_flight == 1
    other.release()


def test_lease_that_is_forgotten_gives_its_slot_back():
    ours = slots(num_slots=1)
    lease = ours.acquire(1)
    lease.reserve(MIB, native.HOST)
    del lease
    gc.collect()
    assert ours.num_in_flight == 0


def test_close_frees_what_is_free_and_the_rest_when_it_comes_back():
    ours = slots(num_slots=2)
    kept, given = ours.acquire(1), ours.acquire(2)
    kept.reserve(MIB, native.HOST)
    given.reserve(MIB, native.HOST)
    given.release()
    assert ours.mapped_bytes == 4 * MIB
    ours.close()
    ours.close()
    assert ours.mapped_bytes == 2 * MIB
    assert ours.num_in_flight == 1
    kept.release()
    assert ours.mapped_bytes == 0


def test_close_wakes_who_waits():
    ours = slots(num_slots=1)
    lease = ours.acquire(1)
    caught = []

    def wait():
        try:
            ours.acquire(2)
        except ConfigError as error:
            caught.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    ours.close()
    waiter.join()
    assert "closed" in str(caught[0])
    lease.release()


def test_slots_that_cannot_be_raise_config_error():
    with pytest.raises(ConfigError) as caught:
        slots(num_slots=0)
    assert caught.value.field == "snapshot_slots"
    with pytest.raises(ConfigError) as caught:
        slots(max_bytes=-1)
    assert caught.value.field == "staging_max_bytes"
    with pytest.raises(ConfigError) as caught:
        slots(policy="hope")
    assert caught.value.field == "snapshot_policy"


def test_forked_child_gives_no_slot_back():
    ours = slots(num_slots=1)
    lease = ours.acquire(1)
    lease.reserve(MIB, native.HOST)
    child = os.fork()
    if child == 0:
        lease.release()
        os._exit(0 if ours.num_in_flight == 1 else 1)
    assert os.waitpid(child, 0)[1] == 0
    lease.release()
    assert ours.num_in_flight == 0


def test_reserve_more_than_there_is_raises_memory_error():
    ours = slots(num_slots=1)
    lease = ours.acquire(1)
    with pytest.raises(MemoryError):
        lease.reserve(1 << 62, native.HOST)
    lease.reserve(MIB, native.HOST)
