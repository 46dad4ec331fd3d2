"""Engines over the stand-in for libcuda: order, contexts, leaks, memory of every kind."""

import itertools
import os
import threading
import zlib
from array import array
from pathlib import Path

import pytest
from lanes import HostMemory, KiB, MiB, crcs, error_of, extent, finish, may_leave, part, pattern

from gdsckpt import native
from gdsckpt.engine.base import Extent
from gdsckpt.errors import ConfigError, CudaError, EngineUnavailableError, StorageError

pytestmark = pytest.mark.lanes("pinned")

ATTRIBUTE_HOST_NUMA_ID = 134
OWN, DEFAULT = "own stream", "default stream"


def content_of(file):
    return Path(file.path).read_bytes()


def streams_of(*rows):
    return array("Q", itertools.chain.from_iterable(rows))


def wait_for_calls(cuda, function, num_calls):
    """Wait until a function has been called so often; a call that never comes is a hang."""
    while cuda.calls(function) < num_calls:
        os.sched_yield()


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


def test_write_waits_for_each_of_several_producers(lane):
    cuda, driver = lane.cuda, lane.driver
    engine, file = lane.engine(), lane.file()
    memories = [lane.memory(pattern(70_000, n), device=n % 2) for n in range(4)]
    producers = []
    cuda("delay dtod us=5000")
    for n, memory in enumerate(memories):
        source = lane.memory(pattern(70_000, n + 10), device=n % 2)
        with driver.on(n % 2):
            producers.append((n % 2, driver.stream()))
            cuda(f"hold stream={producers[-1][1]}")
            driver.check(
                *("cuMemcpyDtoDAsync_v2", memory.address, source.address, 70_000),
                producers[-1][1],
            )
    extents = [extent(memory, n * 70_000) for n, memory in enumerate(memories)]
    transfer = lane.write(engine, file, extents, streams=streams_of(*producers))
    for _, stream in reversed(producers):
        cuda(f"release stream={stream}")
    finish(transfer)
    assert content_of(file) == b"".join(pattern(70_000, n + 10) for n in range(4))


def test_work_queued_after_the_call_is_not_waited_for(lane):
    cuda, driver = lane.cuda, lane.driver
    memory = lane.memory(pattern(100_000))
    with driver.on(0):
        producer = driver.stream()
        engine, file = lane.engine(), lane.file()
        transfer = lane.write(engine, file, [extent(memory)], streams=streams_of((0, producer)))
        driver.check("cuStreamSynchronize", producer)
        cuda(f"hold stream={producer}")
        other = lane.memory(bytes(100))
        driver.check("cuMemsetD8Async", other.address, 7, 100, producer)
        finish(transfer)
    assert content_of(file) == pattern(100_000)


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


@pytest.mark.parametrize("seed", range(8))
def test_random_lateness_changes_nothing(lane, seed):
    lane.cuda(f"set seed={seed} late_us=3000")
    pieces = [pattern(40_000 + 97 * n, n) for n in range(12)]
    memories = [lane.memory(piece, n % 5, device=n % 2) for n, piece in enumerate(pieces)]
    engine, file = lane.engine(), lane.file()
    extents = [extent(memory, n * 41_500) for n, memory in enumerate(memories)]
    written = finish(lane.write(engine, file, extents))
    back = [
        lane.memory(bytes(len(piece)), n % 3, device=1 - n % 2) for n, piece in enumerate(pieces)
    ]
    finish(lane.read(engine, file, [extent(each, n * 41_500) for n, each in enumerate(back)]))
    assert [memory.data() for memory in back] == pieces
    assert crcs(written.extent_crcs()) == [zlib.crc32(piece) for piece in pieces]


def test_tensor_on_a_device_that_is_not_current(lane):
    driver = lane.driver
    memory = lane.memory(pattern(150_000), device=1)
    with driver.on(0):
        file, engine = lane.file(), lane.engine()
        finish(lane.write(engine, file, [extent(memory)]))
        finish(lane.read(engine, lane.file(pattern(150_000, 2)), [extent(memory)]))
        assert driver.get("cuCtxGetDevice") == 0  # the caller's own context is left as it was
    assert content_of(file) == pattern(150_000)
    assert memory.data() == pattern(150_000, 2)
    assert lane.cuda.stat("copies_in_wrong_context") == 0


def test_caller_without_a_context_gets_none(lane):
    memory = lane.memory(pattern(100_000))
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


# Faults: a clear error, nothing left over, and the engine goes on.

WRITE_FAULTS = [
    ("cuStreamCreate", 2),
    ("cuEventCreate", 2),
    ("cuEventRecord", 400),
    ("cuMemcpyDtoHAsync", 1),
    ("cuEventSynchronize", 719),
    ("cuCtxPushCurrent", 201),
    ("dtoh", 700),
]
READ_FAULTS = [
    ("cuStreamCreate", 2),
    ("cuMemcpyHtoDAsync", 1),
    ("cuEventSynchronize", 719),
    ("htod", 719),
]


def require_clean(lane, engine):
    """Check that nothing is left of a transfer that failed, nor of the engine once it is closed."""
    cuda = lane.cuda
    cuda("clear")
    lane.close_engine(engine)  # its threads may hold a transfer a little longer than its user
    for name in ("streams", "events", "host_registrations"):
        assert cuda.stat(f"live.{name}") == 0
    for name in ("unmapped_while_registered", "copies_of_unregistered_memory"):
        assert cuda.stat(name) == 0


@pytest.mark.parametrize("nth", [1, 3])
@pytest.mark.parametrize(("function", "code"), WRITE_FAULTS)
def test_write_fault_is_an_error_with_its_code(lane, function, code, nth):
    engine, memory = lane.engine(), lane.memory(pattern(600_000))
    finish(lane.write(engine, lane.file(), [extent(memory)]))  # what is made once is there
    lane.cuda(f"fault {function} code={code} nth={nth}")

    def write_until_it_fails():
        for _ in range(nth):
            finish(lane.write(engine, lane.file(), [extent(memory)]))

    error = error_of(CudaError, write_until_it_fails)
    assert error.code == code
    assert error.op.startswith("cu")
    require_clean(lane, engine)


@pytest.mark.parametrize(("function", "code"), READ_FAULTS)
def test_read_fault_is_an_error_with_its_code(lane, function, code):
    engine, memory = lane.engine(), lane.memory(bytes(600_000))
    lane.cuda(f"fault {function} code={code}")
    error = error_of(
        CudaError, lambda: finish(lane.read(engine, lane.file(pattern(600_000)), [extent(memory)]))
    )
    assert error.code == code
    require_clean(lane, engine)


@may_leave
@pytest.mark.parametrize("function", ["cuStreamDestroy", "cuEventDestroy", "cuMemHostUnregister"])
def test_refusal_to_give_something_back_is_no_error_of_the_transfer(lane, function):
    lane.cuda(f"fault {function} code=999")
    engine, file = lane.engine(), lane.file()
    finish(lane.write(engine, file, [extent(lane.memory(pattern(100_000)))]))
    lane.close_engine(engine)
    assert content_of(file) == pattern(100_000)


def test_engine_goes_on_after_a_fault(lane):
    engine = lane.engine()
    memory = lane.memory(pattern(600_000))
    lane.cuda("fault cuMemcpyDtoHAsync nth=4 code=999")
    error_of(CudaError, lambda: finish(lane.write(engine, lane.file(), [extent(memory)])))
    file = lane.file()
    finish(lane.write(engine, file, [extent(memory)]))
    assert content_of(file) == pattern(600_000)


@pytest.mark.parametrize("code", [46, 719])
def test_device_lost_in_mid_write_is_an_error_and_other_devices_go_on(lane, code):
    engine = lane.engine()
    memories = [lane.memory(pattern(800_000, device), device=device) for device in range(2)]
    lane.cuda(f"fault dtoh nth=5 code={code}")
    error = error_of(
        CudaError, lambda: finish(lane.write(engine, lane.file(), [extent(memories[0])]))
    )
    assert error.code == code
    error = error_of(
        CudaError, lambda: finish(lane.write(engine, lane.file(), [extent(memories[0])]))
    )
    file = lane.file()
    finish(lane.write(engine, file, [extent(memories[1])]))
    assert content_of(file) == pattern(800_000, 1)
    require_clean(lane, engine)


def test_device_lost_while_its_streams_are_held_ends_the_transfer(lane):
    lane.cuda("set hold_new=1")
    engine = lane.engine()
    transfer = lane.write(engine, lane.file(), [extent(lane.memory(pattern(400_000)))])
    wait_for_calls(lane.cuda, "cuMemcpyDtoHAsync", 1)
    lane.cuda("lose device=0 code=719")
    error = error_of(CudaError, finish, transfer)
    assert error.code == 719
    del transfer
    require_clean(lane, engine)


def test_tensor_freed_in_flight_is_an_error(lane):
    cuda = lane.cuda
    cuda("set hold_new=1")
    engine, memory = lane.engine(), lane.memory(pattern(400_000))
    transfer = lane.write(engine, lane.file(), [extent(memory)])
    wait_for_calls(cuda, "cuMemcpyDtoHAsync", 1)
    memory.free()
    cuda("release")
    error_of(CudaError, finish, transfer)
    del transfer
    require_clean(lane, engine)


def test_cancel_while_a_copy_hangs_ends_when_the_copy_does(lane):
    cuda = lane.cuda
    cuda("hang dtoh")
    engine = lane.engine(io_threads=2)
    transfer = lane.write(engine, lane.file(), [extent(lane.memory(pattern(800_000)))])
    cuda.wait_hanging("dtoh")
    transfer.cancel()
    assert not transfer.wait(0)  # the slab is still the copy's
    cuda("release dtoh")
    error_of(StorageError, finish, transfer)
    del transfer
    require_clean(lane, engine)


def test_engine_closed_while_a_copy_hangs_waits_for_it(lane):
    cuda = lane.cuda
    cuda("hang dtoh")
    engine = lane.engine(io_threads=2)
    transfer = lane.write(engine, lane.file(), [extent(lane.memory(pattern(800_000)))])
    cuda.wait_hanging("dtoh")
    closing = threading.Thread(target=lane.close_engine, args=(engine,))
    closing.start()
    cuda("release dtoh")
    closing.join()
    assert transfer.wait(0)
    assert cuda.stat("live.host_registrations") == 0
    assert cuda.stat("copies_of_unregistered_memory") == 0


def test_unknown_device_is_refused_before_anything_is_done(lane):
    memory = lane.memory(pattern(1000))
    memory.device = 7
    file = lane.file()
    error = error_of(ConfigError, lambda: finish(lane.write(lane.engine(), file, [extent(memory)])))
    assert error.field == "extents"
    assert content_of(file) == b""


def test_range_beyond_the_allocation_is_an_error(lane):
    memory = lane.memory(pattern(1000))
    engine = lane.engine()
    error_of(
        CudaError, lambda: finish(lane.write(engine, lane.file(), [part(memory, 0, 100_000, 0)]))
    )
    require_clean(lane, engine)


def refused(lane):
    """Give the error of a write of device memory where there is no CUDA."""
    return error_of(
        EngineUnavailableError,
        lambda: finish(lane.write(lane.engine(), lane.file(), [native_extent()])),
    )


def native_extent():
    return Extent(1 << 40, 1000, 0, native.NO_CRC_SLOT, 0)


@pytest.mark.stand_ins(cuda=None)
def test_no_driver_names_the_library(lane):
    assert lane.cuda is None
    native.cuda_load(os.environ["GDSCKPT_LIBCUDA"])
    assert "there-is-no-libcuda.so" in str(refused(lane))


def test_driver_without_a_device_says_so(lane):
    lane.cuda("set devices=0")
    assert "CUDA_ERROR_NO_DEVICE" in str(refused(lane))


@pytest.mark.parametrize(("code", "name"), [(803, "SYSTEM_DRIVER_MISMATCH"), (999, "UNKNOWN")])
def test_driver_that_fails_to_start_says_why(lane, code, name):
    lane.cuda(f"fault cuInit code={code} count=-1")
    assert f"CUDA_ERROR_{name}" in str(refused(lane))


@pytest.mark.stand_ins(without=["cuMemHostRegister_v2"])
def test_driver_that_lacks_a_symbol_names_it(lane):
    assert "cuMemHostRegister_v2" in str(refused(lane))


def test_host_memory_needs_no_driver(lane):
    lane.cuda("set devices=0")
    memory, file = HostMemory(pattern(100_000)), lane.file()
    finish(lane.write(lane.engine(), file, [extent(memory)]))
    assert content_of(file) == pattern(100_000)
    assert lane.cuda.calls("cuMemHostRegister") == 0


def test_child_of_a_fork_may_move_host_memory_only(lane):
    memory = lane.memory(pattern(100_000))
    finish(lane.write(lane.engine(), lane.file(), [extent(memory)]))
    pid = os.fork()
    if pid == 0:
        answer = 1
        engine, host, file = lane.engine(), HostMemory(pattern(100_000)), lane.file()
        finish(lane.write(engine, file, [extent(host)]))
        try:
            lane.write(engine, lane.file(), [extent(memory)])
        except EngineUnavailableError:
            answer = 0 if content_of(file) == pattern(100_000) else 2
        os._exit(answer)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    file = lane.file()
    finish(lane.write(lane.engine(), file, [extent(memory)]))
    assert content_of(file) == pattern(100_000)


def test_driver_is_not_loaded_for_host_memory_alone(lane):
    memory = HostMemory(pattern(1000))
    finish(lane.write(lane.engine(), lane.file(), [extent(memory)]))
    assert lane.cuda.stat("live.retained") == 0
