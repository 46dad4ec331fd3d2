"""Engines over the stand-in for libcuda: order, contexts, leaks, memory of every kind."""

import itertools
import zlib
from array import array

import pytest
from lanes import (
    KiB,
    MiB,
    content_of,
    crcs,
    extent,
    finish,
    pattern,
    require_clean,
    wait_for_calls,
)

pytestmark = pytest.mark.lanes("pinned")

ATTRIBUTE_HOST_NUMA_ID = 134
OWN, DEFAULT = "own stream", "default stream"


def streams_of(*rows):
    return array("Q", itertools.chain.from_iterable(rows))


def producer_on(driver, kind):
    return driver.stream() if kind == OWN else 0


@pytest.mark.parametrize("kind", [OWN, DEFAULT])
def test_write_comes_after_what_the_producer_has_queued(lane, kind):
    cuda, driver = lane.cuda, lane.driver
    engine, file = lane.engine(), lane.file()
    memory, source = lane.memory(pattern(200_000, 1)), lane.memory(pattern(200_000, 2))
    with driver.on(0):
        producer = producer_on(driver, kind)
        cuda(f"hold stream={producer} device=0; delay dtod us=20000; set late_us=0")
        driver.check("cuMemcpyDtoDAsync_v2", memory.address, source.address, 200_000, producer)
    transfer = lane.write(engine, file, [extent(memory)], streams=streams_of((0, producer)))
    wait_for_calls(cuda, "cuMemcpyDtoHAsync", 4)
    cuda(f"release stream={producer} device=0")
    finish(transfer)
    assert content_of(file) == pattern(200_000, 2)


@pytest.mark.parametrize("kind", [OWN, DEFAULT])
def test_read_comes_after_what_the_consumer_has_queued(lane, kind):
    cuda, driver = lane.cuda, lane.driver
    engine, file = lane.engine(), lane.file(pattern(200_000, 2))
    memory, elsewhere = lane.memory(pattern(200_000, 1)), lane.memory(bytes(200_000))
    with driver.on(0):
        consumer = producer_on(driver, kind)
        cuda(f"hold stream={consumer} device=0; delay dtod us=20000; set late_us=0")
        driver.check("cuMemcpyDtoDAsync_v2", elsewhere.address, memory.address, 200_000, consumer)
        transfer = lane.read(engine, file, [extent(memory)], streams=streams_of((0, consumer)))
        wait_for_calls(cuda, "cuMemcpyHtoDAsync", 1)
        cuda(f"release stream={consumer} device=0")
        finish(transfer)
        driver.check("cuStreamSynchronize", consumer)
    assert elsewhere.data() == pattern(200_000, 1)
    assert memory.data() == pattern(200_000, 2)


@pytest.mark.lanes("pinned", "kvikio")
def test_write_waits_for_each_of_several_producers(lane):
    cuda, driver = lane.cuda, lane.driver
    engine, file = lane.engine(), lane.file()
    memories = [lane.memory(pattern(700_000, n), device=n % 2) for n in range(4)]
    producers = []
    cuda("delay dtod us=5000")
    for n, memory in enumerate(memories):
        source = lane.memory(pattern(700_000, n + 10), device=n % 2)
        with driver.on(n % 2):
            producers.append((n % 2, driver.stream()))
            cuda(f"hold stream={producers[-1][1]}")
            driver.check(
                *("cuMemcpyDtoDAsync_v2", memory.address, source.address, 700_000),
                producers[-1][1],
            )
    extents = [extent(memory, n * 700_416) for n, memory in enumerate(memories)]
    transfer = lane.write(engine, file, extents, streams=streams_of(*producers))
    for _, stream in reversed(producers):
        cuda(f"release stream={stream}")
    finish(transfer)
    assert content_of(file) == bytes(416).join(pattern(700_000, n + 10) for n in range(4))


@pytest.mark.lanes("pinned", "kvikio")
def test_work_queued_after_the_call_is_not_waited_for(lane):
    cuda, driver = lane.cuda, lane.driver
    memory = lane.memory(pattern(600_000))
    with driver.on(0):
        producer = driver.stream()
        engine, file = lane.engine(), lane.file()
        transfer = lane.write(engine, file, [extent(memory)], streams=streams_of((0, producer)))
        driver.check("cuStreamSynchronize", producer)
        cuda(f"hold stream={producer}")
        other = lane.memory(bytes(100))
        driver.check("cuMemsetD8Async", other.address, 7, 100, producer)
        finish(transfer)
    assert content_of(file) == pattern(600_000)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_devices_that_come_in_any_order_give_the_same_file(lane, order):
    cuda = lane.cuda
    cuda("set devices=3 hold_new=1")
    memories = [lane.memory(pattern(90_001, n), device=n) for n in range(3)]
    extents = [extent(memory, n * 100_000) for n, memory in enumerate(memories)]
    file = lane.file()
    transfer = lane.write(lane.engine(), file, extents)
    for device in order:
        cuda(f"release device={device}")
    finish(transfer)
    assert content_of(file) == bytes(9999).join(pattern(90_001, n) for n in range(3))
    assert crcs(transfer.extent_crcs()) == [zlib.crc32(pattern(90_001, n)) for n in range(3)]


@pytest.mark.lanes("pinned", "kvikio")
@pytest.mark.parametrize("seed", range(8))
def test_random_lateness_changes_nothing(lane, seed):
    lane.cuda(f"set seed={seed} late_us=3000")
    pieces = [pattern(40_000 + 97 * n + n % 3 * 300_000, n) for n in range(12)]
    memories = [lane.memory(piece, n % 5, device=n % 2) for n, piece in enumerate(pieces)]
    engine, file = lane.engine(), lane.file()
    extents = [extent(memory, n * 651_264 + n % 5) for n, memory in enumerate(memories)]
    written = finish(lane.write(engine, file, extents))
    back = [
        lane.memory(bytes(len(piece)), n % 3, device=1 - n % 2) for n, piece in enumerate(pieces)
    ]
    places = [extent(each, one.file_offset) for each, one in zip(back, extents, strict=True)]
    finish(lane.read(engine, file, places))
    assert [memory.data() for memory in back] == pieces
    assert crcs(written.extent_crcs()) == [zlib.crc32(piece) for piece in pieces]


@pytest.mark.lanes("pinned", "kvikio")
def test_tensor_on_a_device_that_is_not_current(lane):
    driver = lane.driver
    memory = lane.memory(pattern(600_000), device=1)
    with driver.on(0):
        file, engine = lane.file(), lane.engine()
        finish(lane.write(engine, file, [extent(memory)]))
        finish(lane.read(engine, lane.file(pattern(600_000, 2)), [extent(memory)]))
        assert driver.get("cuCtxGetDevice") == 0  # the caller's own context is left as it was
    assert content_of(file) == pattern(600_000)
    assert memory.data() == pattern(600_000, 2)
    assert lane.cuda.stat("copies_in_wrong_context") == 0


@pytest.mark.lanes("pinned", "kvikio")
def test_caller_without_a_context_gets_none(lane):
    memory = lane.memory(pattern(600_000))
    finish(lane.write(lane.engine(), lane.file(), [extent(memory)]))
    assert lane.cuda.library.fake_current_device() == -1


@pytest.mark.parametrize("kind", ["device", "mapped", "managed", "pool"])
def test_memory_of_every_kind(lane, kind):
    data = pattern(300_001)
    memory = lane.memory(data, 3, kind=kind)
    engine, file = lane.engine(), lane.file()
    finish(lane.write(engine, file, [extent(memory)]))
    assert content_of(file) == data
    memory.fill(bytes(len(data)))
    finish(lane.read(engine, file, [extent(memory)]))
    assert memory.data() == data
    assert memory.is_guarded()


@pytest.mark.lanes("pinned", "kvikio")
def test_transfers_leave_no_stream_and_no_event(lane):
    engine = lane.engine()
    memory = lane.memory(pattern(500_000), device=1)
    file = lane.file()
    for _ in range(10):
        finish(lane.write(engine, file, [extent(memory)]))
        finish(lane.read(engine, file, [extent(memory)]))
    require_clean(lane, engine)


def test_slabs_are_locked_once_and_unlocked_at_the_end(lane):
    engine = lane.engine(num_slabs=3)
    memory = lane.memory(pattern(2_000_000))
    for _ in range(4):
        finish(lane.write(engine, lane.file(), [extent(memory)]))
    assert 1 <= lane.cuda.stat("live.host_registrations") <= 3
    assert lane.cuda.calls("cuMemHostRegister") == lane.cuda.stat("live.host_registrations")
    lane.close_engine(engine)
    assert lane.cuda.stat("live.host_registrations") == 0
    assert lane.cuda.stat("unmapped_while_registered") == 0


def test_all_copies_are_to_and_from_locked_memory(lane):
    engine = lane.engine()
    memory = lane.memory(pattern(700_001), 5)
    file = lane.file()
    finish(lane.write(engine, file, [extent(memory, 17)]))
    finish(lane.read(engine, file, [extent(memory, 17)]))
    assert lane.cuda.stat("pageable_copies") == 0
    assert lane.cuda.stat("bytes.dtoh") == lane.cuda.stat("bytes.htod") == 700_001


def test_slabs_that_cannot_be_locked_are_slower_and_right(lane):
    lane.cuda("fault cuMemHostRegister code=2 count=-1")
    engine, file = lane.engine(), lane.file()
    memory = lane.memory(pattern(300_000))
    finish(lane.write(engine, file, [extent(memory)]))
    assert content_of(file) == pattern(300_000)
    assert "CUDA_ERROR_OUT_OF_MEMORY" in engine._native.pin_refused
    assert lane.cuda.stat("pageable_copies") > 0


def test_memory_limit_of_locked_pages_leaves_the_rest_unlocked(lane):
    lane.cuda(f"set host_bytes_max={512 * KiB}")
    engine, file = lane.engine(num_slabs=4), lane.file()
    memory = lane.memory(pattern(3_000_000))
    finish(lane.write(engine, file, [extent(memory)]))
    assert content_of(file) == pattern(3_000_000)
    lane.close_engine(engine)
    assert lane.cuda.stat("live.host_registrations") == 0


def test_devices_of_two_numa_nodes_have_rings_of_their_own(lane):
    for device in range(2):
        lane.cuda(f"attribute device={device} number={ATTRIBUTE_HOST_NUMA_ID} value={device}")
    engine = lane.engine(io_threads=1, num_slabs=1)
    for device in range(2):
        memory = lane.memory(pattern(100_000, device), device=device)
        file = lane.file()
        finish(lane.write(engine, file, [extent(memory)]))
        assert content_of(file) == pattern(100_000, device)
    assert lane.cuda.stat("live.host_registrations") == 2


def test_memory_beyond_the_slabs_is_not_used(lane):
    engine = lane.engine(io_threads=8, num_slabs=2)
    memory = lane.memory(pattern(4 * MiB))
    file = lane.file()
    finish(lane.write(engine, file, [extent(memory)]))
    assert content_of(file) == pattern(4 * MiB)
    assert lane.cuda.calls("cuMemHostRegister") <= 2
