"""Faults of CUDA in mid-transfer: a clear error, nothing left over, and the engine goes on."""

import os
import threading

import pytest
from lanes import (
    HostMemory,
    MiB,
    content_of,
    error_of,
    extent,
    finish,
    may_leave,
    part,
    pattern,
    require_clean,
    wait_for_calls,
)

from gdsckpt import native
from gdsckpt.engine.base import Extent
from gdsckpt.errors import ConfigError, CudaError, EngineUnavailableError, StorageError

pytestmark = pytest.mark.lanes("pinned")


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


@pytest.mark.lanes("pinned", "kvikio")
@pytest.mark.parametrize("code", [46, 719])
def test_device_lost_in_mid_write_is_an_error_and_other_devices_go_on(lane, code):
    engine = lane.engine()
    memories = [lane.memory(pattern(3_000_000, device), device=device) for device in range(2)]
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
    assert content_of(file) == pattern(3_000_000, 1)
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


@pytest.mark.lanes("pinned", "kvikio")
def test_cancel_while_a_copy_hangs_ends_when_the_copy_does(lane):
    cuda = lane.cuda
    cuda("hang dtoh")
    engine = lane.engine(io_threads=2)
    transfer = lane.write(engine, lane.file(), [extent(lane.memory(pattern(MiB)))])
    cuda.wait_hanging("dtoh")
    transfer.cancel()
    assert not transfer.wait(0)  # the buffer is still the copy's
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
