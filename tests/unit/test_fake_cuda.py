"""The stand-ins of libcuda and libcufile: are they as strict, and as late, as the tests need?"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from fake_cuda import stand_ins

TESTS = Path(__file__).parents[1]

PRELUDE = """
import ctypes, mmap, os, signal, sys
from pathlib import Path
from fake_cuda.driver import CudaFailure, Driver
from fake_cuda.stand_ins import StandIns

both = StandIns.loaded()
cuda, cufile = both.cuda, both.cufile
"""

PINNED = """
def pinned(nbytes):
    room = mmap.mmap(-1, nbytes)
    address = ctypes.addressof(ctypes.c_char.from_buffer(room))
    driver.check("cuMemHostRegister_v2", address, nbytes, 1)
    return room, address
"""

CUFILE = """
class Error(ctypes.Structure):
    _fields_ = [("err", ctypes.c_int), ("cu_err", ctypes.c_int)]

class Descr(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("fd", ctypes.c_uint64), ("ops", ctypes.c_void_p)]

library = ctypes.CDLL(os.environ["GDSCKPT_LIBCUFILE"], use_errno=True)
for name in ("cuFileDriverOpen", "cuFileDriverClose_v2", "cuFileHandleRegister",
             "cuFileBufRegister", "cuFileBufDeregister"):
    getattr(library, name).restype = Error
for name in ("cuFileWrite", "cuFileRead"):
    function = getattr(library, name)
    function.restype = ctypes.c_ssize_t
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64,
                         ctypes.c_int64]
library.cuFileHandleDeregister.argtypes = [ctypes.c_void_p]
library.cuFileBufRegister.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
driver = Driver(cuda)

def register(fd):
    handle = ctypes.c_void_p()
    descr = Descr(1, fd, None)
    error = library.cuFileHandleRegister(ctypes.byref(handle), ctypes.byref(descr))
    return error.err, handle

def write(handle, address, nbytes, offset=0):
    ctypes.set_errno(0)
    done = library.cuFileWrite(handle, address, nbytes, offset, 0)
    return done, ctypes.get_errno()

def opened(path=None):
    return os.open(path or target, os.O_RDWR | os.O_CREAT)
"""


@pytest.fixture
def run(tmp_path):
    """Run code in a process that has the stand-ins and no other CUDA."""

    def start(*parts, **options):
        environ = {
            **os.environ,
            "PYTHONPATH": str(TESTS),
            **stand_ins.environment(**options),
        }
        code = f"{PRELUDE}\ntarget = {str(tmp_path / 'file')!r}\n" + "\n".join(parts)
        return subprocess.run(
            [sys.executable, "-c", code],
            env=environ,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def finish(*parts, **options):
        done = start(*parts, **options)
        assert done.returncode == 0, done.stderr

    finish.start = start
    return finish


def test_fake_cuda_host_read_of_device_memory_dies(run):
    done = run.start("address = cuda.alloc(4096); ctypes.string_at(address, 1)")
    assert done.returncode == -signal.SIGSEGV


def test_fake_cuda_system_call_on_device_memory_is_refused(run):
    run("""
address = cuda.alloc(4096)
fd = os.open(target, os.O_RDWR | os.O_CREAT)
libc = ctypes.CDLL(None, use_errno=True)
assert libc.write(fd, ctypes.c_uint64(address), 4096) == -1
assert ctypes.get_errno() == 14  # EFAULT
""")


def test_fake_cuda_managed_memory_can_be_read_by_the_host(run):
    run("""
address = cuda.alloc(4096, kind="managed")
cuda.poke(address, b"seen")
assert ctypes.string_at(address, 4) == b"seen"
""")


def test_fake_cuda_freed_memory_is_unknown(run):
    run("""
driver = Driver(cuda)
address = cuda.alloc(100)
cuda.free(address)
assert driver.code("cuMemGetAddressRange_v2", None, None, address) == 500
assert cuda.stat("live.allocations") == 0 == cuda.stat("live.device_bytes")
""")


HELD = f"""
driver = Driver(cuda)
{PINNED}
with driver.on(0):
    device, (room, address) = cuda.alloc(8), pinned(4096)
    cuda.poke(device, b"old-data")
    source = cuda.alloc(8)
    cuda.poke(source, b"new-data")
    producer, side, event = driver.stream(), driver.stream(), driver.event()
    cuda(f"hold stream={{producer}}")
    driver.check("cuMemcpyDtoDAsync_v2", device, source, 8, producer)
"""


def test_fake_cuda_copy_not_ordered_after_the_producer_reads_old_bytes(run):
    run(
        HELD,
        """
    driver.check("cuMemcpyDtoHAsync_v2", address, device, 8, side)
    driver.check("cuStreamSynchronize", side)
    assert room[:8] == b"old-data"
    cuda(f"release stream={producer}")
    driver.check("cuStreamSynchronize", producer)
    assert cuda.peek(device, 8) == b"new-data"
""",
    )


def test_fake_cuda_copy_ordered_after_the_producer_waits_for_it(run):
    run(
        HELD,
        """
    driver.check("cuEventRecord", event, producer)
    driver.check("cuStreamWaitEvent", side, event, 0)
    driver.check("cuMemcpyDtoHAsync_v2", address, device, 8, side)
    assert driver.code("cuStreamQuery", side) == 600
    cuda(f"release stream={producer}")
    driver.check("cuStreamSynchronize", side)
    assert room[:8] == b"new-data"
""",
    )


def test_fake_cuda_event_recorded_again_does_not_move_an_earlier_wait(run):
    run(
        HELD,
        """
    driver.check("cuEventRecord", event, side)
    driver.check("cuStreamWaitEvent", side, event, 0)
    driver.check("cuEventRecord", event, producer)
    driver.check("cuStreamSynchronize", side)
    assert driver.code("cuEventQuery", event) == 600
    cuda(f"release stream={producer}")
    driver.check("cuEventSynchronize", event)
""",
    )


def test_fake_cuda_default_stream_and_non_blocking_streams_are_not_ordered(run):
    run(
        HELD,
        """
    blocking = driver.get("cuStreamCreate", 0)
    cuda("hold stream=0 device=0")
    driver.check("cuMemcpyDtoDAsync_v2", device, source, 8, 0)
    driver.check("cuMemcpyDtoHAsync_v2", address, device, 8, blocking)
    driver.check("cuMemcpyDtoHAsync_v2", address + 8, device, 8, side)
    driver.check("cuStreamSynchronize", side)
    assert driver.code("cuStreamQuery", blocking) == 600
    cuda("release")
    driver.check("cuCtxSynchronize")
    assert room[:16] == b"new-dataold-data"
""",
    )


def test_fake_cuda_calls_without_a_context_are_refused(run):
    run("""
driver = Driver(cuda)
device = cuda.alloc(8)
assert driver.code("cuMemAlloc_v2", ctypes.byref(ctypes.c_uint64()), 8) == 201
assert driver.code("cuMemcpyDtoHAsync_v2", device, device, 8, 0) == 201
assert driver.code("cuCtxPopCurrent_v2", None) == 201
with driver.on(1):
    assert driver.get("cuCtxGetDevice") == 1
    other = driver.stream()
    with driver.on(0):
        assert driver.get("cuCtxGetDevice") == 0
        assert driver.code("cuMemcpyDtoHAsync_v2", 4096, device, 8, other) == 201
        assert cuda.stat("copies_in_wrong_context") == 1
        assert driver.code("cuEventRecord", driver.event(), other) == 400
    assert driver.get("cuCtxGetDevice") == 1
assert cuda.stat("live.retained") == 0
""")


def test_fake_cuda_contexts_are_one_stack_for_each_thread(run):
    run("""
import threading
driver = Driver(cuda)
seen = []
def look():
    seen.append(driver.code("cuCtxGetDevice", ctypes.byref(ctypes.c_uint64())))
with driver.on(0):
    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
assert seen == [201]
""")


def test_fake_cuda_registrations_do_not_overlap_and_are_counted(run):
    run(f"""
driver = Driver(cuda)
{PINNED}
with driver.on(0):
    room, address = pinned(16384)
    assert driver.code("cuMemHostRegister_v2", address, 4096, 0) == 712
    assert driver.code("cuMemHostRegister_v2", address + 8192, 4096, 0) == 712
    assert driver.code("cuMemHostRegister_v2", 1 << 40, 4096, 0) == 1
    assert driver.code("cuMemHostUnregister", address + 4096) == 713
    assert cuda.stat("live.host_registrations") == 1
    assert cuda.stat("live.host_bytes") == 16384
    driver.check("cuMemHostUnregister", address)
    assert driver.code("cuMemHostUnregister", address) == 713
    assert cuda.stat("live.host_registrations") == 0
""")


def test_fake_cuda_copy_to_pageable_memory_is_staged_and_counted(run):
    run("""
driver = Driver(cuda)
with driver.on(0):
    device, stream = cuda.alloc(8), driver.stream()
    room = bytearray(b"original")
    address = ctypes.addressof(ctypes.c_char.from_buffer(room))
    cuda(f"hold stream={stream}")
    driver.check("cuMemcpyHtoDAsync_v2", device, address, 8, stream)
    room[:] = b"changed!"
    cuda(f"release stream={stream}")
    driver.check("cuStreamSynchronize", stream)
    assert cuda.peek(device, 8) == b"original"
    assert cuda.stat("pageable_copies") == 1
""")


def test_fake_cuda_memory_unregistered_before_its_copy_loses_the_device(run):
    run(
        HELD,
        """
    driver.check("cuMemcpyDtoHAsync_v2", address, device, 8, producer)
    driver.check("cuMemHostUnregister", address)
    cuda(f"release stream={producer}")
    assert driver.code("cuStreamSynchronize", producer) == 700
    assert cuda.stat("copies_of_unregistered_memory") == 1
""",
    )


def test_fake_cuda_pointers_tell_how_they_were_made(run):
    run("""
driver = Driver(cuda)
kinds = {}
for kind in ("device", "mapped", "managed", "pool"):
    address = cuda.alloc(4096, device=1, kind=kind)
    kinds[kind] = [driver.get("cuPointerGetAttribute", number, address + 8) for number in
                   (2, 8, 9, 10, 12)]
    assert driver.get("cuPointerGetAttribute", 11, address + 8) == address
assert kinds == {
    "device": [2, 0, 1, 1, 4096],
    "mapped": [2, 0, 1, 0, 4096],
    "managed": [2, 1, 1, 0, 4096],
    "pool": [2, 0, 1, 0, 4096],
}
assert driver.code("cuPointerGetAttribute", ctypes.byref(ctypes.c_uint64()), 2, 4096) == 1
""")


def test_fake_cuda_fault_meets_the_call_that_it_is_for(run):
    run("""
driver = Driver(cuda)
cuda("fault cuDeviceGetCount nth=2 count=2 code=999")
codes = [driver.code("cuDeviceGetCount", ctypes.byref(ctypes.c_uint64())) for _ in range(4)]
assert codes == [0, 999, 999, 0]
assert cuda.stat("fired") == 2 and cuda.calls("cuDeviceGetCount") == 4
cuda("fault cuDeviceGetCount code=100 count=-1")
assert driver.code("cuDeviceGetCount", ctypes.byref(ctypes.c_uint64())) == 100
cuda("clear")
assert driver.code("cuDeviceGetCount", ctypes.byref(ctypes.c_uint64())) == 0
""")


def test_fake_cuda_unknown_command_is_refused(run):
    run("""
for text in ("", "set a=1;;clear"):
    cuda(text)
for text in ("fault cuInit", "nonsense", "hang", "set", "fault cuInit code=x", "lose device=99"):
    try:
        cuda(text)
    except ValueError:
        continue
    raise AssertionError(text)
""")


def test_fake_cuda_call_hangs_until_it_is_released(run):
    run("""
import threading
driver = Driver(cuda)
cuda("hang cuDeviceGetCount")
done = []
thread = threading.Thread(target=lambda: done.append(driver.get("cuDeviceGetCount")))
thread.start()
cuda.wait_hanging("cuDeviceGetCount")
assert not done
cuda("release cuDeviceGetCount")
thread.join()
assert done == [2]
""")


def test_fake_cuda_lost_device_refuses_all_that_concerns_it_and_no_other(run):
    run(
        HELD,
        """
    cuda("lose device=0 code=46")
    assert driver.code("cuStreamSynchronize", producer) == 46
    assert driver.code("cuMemcpyDtoHAsync_v2", address, device, 8, side) == 46
    assert driver.code("cuMemHostUnregister", address) == 46
    assert driver.code("cuStreamDestroy_v2", side) == 46
    assert cuda.stat("live.host_registrations") == 0
    with driver.on(1):
        driver.check("cuStreamSynchronize", driver.stream())
""",
    )


def test_fake_cuda_copy_that_fails_when_it_runs_loses_the_device(run):
    run(
        HELD,
        """
    cuda(f"release stream={producer}; fault dtoh nth=2 code=719")
    codes = []
    for _ in range(3):
        codes.append(driver.code("cuMemcpyDtoHAsync_v2", address, device, 8, side))
        codes.append(driver.code("cuStreamSynchronize", side))
    assert codes == [0, 0, 0, 719, 719, 719], codes
    assert cuda.stat("copies.dtoh") == 1
""",
    )


def test_fake_cuda_without_a_device_says_so(run):
    run(
        """
try:
    Driver(cuda)
except CudaFailure as failure:
    assert failure.code == 100
""",
        cuda="set devices=0",
    )


def test_fake_cuda_forked_child_cannot_use_it(run):
    run("""
driver = Driver(cuda)
pid = os.fork()
if pid == 0:
    os._exit(driver.code("cuDeviceGetCount", ctypes.byref(ctypes.c_uint64())))
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
""")


def test_fake_cuda_kernel_runs_in_its_stream_with_copies_of_its_arguments(run):
    run("""
class Launch(ctypes.Structure):
    _fields_ = [("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3),
                ("shared", ctypes.c_uint), ("arguments", ctypes.POINTER(ctypes.c_void_p))]

@ctypes.CFUNCTYPE(None, ctypes.POINTER(Launch))
def body(launch):
    address = ctypes.c_uint64.from_address(launch.contents.arguments[0]).value
    cuda.poke(address, b"%d" % launch.contents.grid[0])

driver = Driver(cuda)
register = cuda.library.fake_register_kernel
register(b"fill", body, 1, (ctypes.c_size_t * 1)(8))
with driver.on(0):
    module = driver.get("cuModuleLoadData", ctypes.c_char_p(b"image"))
    function = driver.get("cuModuleGetFunction", module, ctypes.c_char_p(b"fill"))
    assert driver.code("cuModuleGetFunction", ctypes.byref(ctypes.c_uint64()), module,
                       ctypes.c_char_p(b"none")) == 500
    stream, device = driver.stream(), cuda.alloc(8)
    cuda(f"hold stream={stream}")
    argument = ctypes.c_uint64(device)
    parameters = (ctypes.c_void_p * 1)(ctypes.addressof(argument))
    driver.check("cuLaunchKernel", function, 7, 1, 1, 32, 1, 1, 0, stream, parameters, None)
    argument.value = 0
    assert cuda.peek(device, 1) == bytes(1)
    cuda(f"release stream={stream}")
    driver.check("cuStreamSynchronize", stream)
    assert cuda.peek(device, 1) == b"7"
    driver.check("cuModuleUnload", module)
assert cuda.stat("live.modules") == 0
""")


def test_fake_cufile_writes_and_reads_device_memory(run):
    run(
        CUFILE,
        """
fd = opened()
code, handle = register(fd)
assert code == 0
source, dest = cuda.alloc(8192, device=1), cuda.alloc(8192, device=1)
cuda.poke(source, bytes(range(256)) * 32)
with driver.on(1):
    assert write(handle, source, 8192, 4096) == (8192, 2)  # errno means nothing here
    assert library.cuFileRead(handle, dest, 4096, 4096, 4096) == 4096
    assert library.cuFileRead(handle, dest, 4096, 1 << 20, 0) == 0
assert Path(target).read_bytes() == bytes(4096) + bytes(range(256)) * 32
assert cuda.peek(dest, 8192) == bytes(4096) + bytes(range(256)) * 16
assert cufile.stat("device_write_bytes") == 8192
library.cuFileHandleDeregister(handle)
assert write(handle, source, 4096) == (-1, 5027)
assert library.cuFileDriverClose_v2().err == 0
assert library.cuFileDriverClose_v2().err == 5001
assert [cufile.stat(f"live.{name}") for name in ("handles", "buffers", "use_count")] == [0, 0, 0]
""",
    )


def test_fake_cufile_transfer_faults_come_as_the_library_gives_them(run):
    run(
        CUFILE,
        """
_, handle = register(opened())
device = cuda.alloc(8192)
cuda.poke(device, b"x" * 8192)
with driver.on(0):
    cufile("fault cuFileWrite code=28; fault cuFileWrite nth=2 code=5011")
    cufile("short cuFileWrite nth=3 bytes=4096; short cuFileWrite nth=4 bytes=0")
    results = [write(handle, device, 8192) for _ in range(4)]
    assert results == [(-1, 28), (-1, 5011), (4096, 2), (0, 2)], results
    cufile("clear; set old_errors=1; fault cuFileWrite code=5011; fault cuFileWrite nth=2 code=5")
    assert write(handle, device, 8192)[0] == -5011
    assert write(handle, device, 8192) == (-1, 5)
""",
    )


def test_fake_cufile_silent_damage_is_silent(run):
    run(
        CUFILE,
        """
_, handle = register(opened())
device = cuda.alloc(4096)
cuda.poke(device, bytes(4096))
with driver.on(0):
    cufile("flip cuFileWrite bit=9; misplace cuFileWrite nth=2 bytes=4096")
    assert write(handle, device, 4096) == (4096, 2)
    assert Path(target).read_bytes() == bytes(1) + bytes([2]) + bytes(4094)
    cuda.poke(device, b"z" * 4096)
    assert write(handle, device, 4096) == (4096, 2)
assert Path(target).read_bytes()[4096:] == b"z" * 4096
assert Path(target).read_bytes()[:4] == bytes([0, 2, 0, 0])
""",
    )


def test_fake_cufile_refuses_files_as_the_library_does(run):
    run(
        CUFILE,
        """
fd = opened()
assert register(fd)[0] == 0
assert register(fd)[0] == 5028
assert register(os.open(target, os.O_WRONLY | os.O_APPEND))[0] == 5019
assert register(os.open("/dev/null", os.O_RDWR))[0] == 5018
assert register(987)[0] == 5022
read_only = os.open(target, os.O_RDONLY)
with driver.on(0):
    assert write(register(read_only)[1], cuda.alloc(4096), 4096) == (-1, 5019)
""",
    )


def test_fake_cufile_refuses_buffers_as_the_library_does(run):
    run(
        CUFILE,
        """
device = cuda.alloc(8192)
unfit = library.cuFileBufRegister(device, 8192, 0)
assert (unfit.err, unfit.cu_err) == (5011, 201)  # no context
with driver.on(0):
    assert library.cuFileBufRegister(device, 8192, 0).err == 0
    assert library.cuFileBufRegister(device, 8192, 0).err == 5023
    managed = library.cuFileBufRegister(cuda.alloc(8192, kind="managed"), 8192, 0)
    mapped = library.cuFileBufRegister(cuda.alloc(8192, kind="mapped"), 8192, 0)
    assert (managed.err, mapped.err, mapped.cu_err) == (5013, 5011, 801)
    cufile("set bar_bytes=10000")
    assert library.cuFileBufRegister(cuda.alloc(8192), 8192, 0).err == 5016
    _, handle = register(opened())
    assert write(handle, device, 12288) == (-1, 5017)
    assert write(handle, cuda.alloc(4096), 8192) == (-1, 5014)
assert write(handle, device, 4096) == (-1, 5015)  # no context
assert cufile.stat("transfers_in_wrong_context") == 1
assert library.cuFileBufDeregister(ctypes.c_uint64(device + 8)).err == 5024
assert cufile.stat("live.buffers") == 1
""",
    )


def test_fake_cufile_statistics_tell_the_path(run):
    run(
        CUFILE,
        """
def counters():
    # CUfileStatsLevel3_t: level 2, the number of GPUs, then 31 numbers for each.
    room = (ctypes.c_uint64 * 639)()
    library.cuFileGetStatsL3.restype = Error
    assert library.cuFileGetStatsL3(room).err == 0
    gpu = room[143:143 + 31]
    return dict(total=gpu[19], p2p=gpu[20], nvfs=gpu[21], posix=gpu[22], unaligned=gpu[23])

_, handle = register(opened())
for name in ("cuFileSetStatsLevel", "cuFileStatsStart"):
    getattr(library, name).restype = Error
library.cuFileSetStatsLevel(3)
library.cuFileStatsStart()
device = cuda.alloc(8192)
with driver.on(0):
    write(handle, device, 4096)
    cufile("set path=1")
    write(handle, device, 100)
    cufile("set silent_posix=1")
    write(handle, device, 4096)
assert counters() == dict(total=3, p2p=1, nvfs=1, posix=1, unaligned=1), counters()
""",
    )


def test_fake_cufile_without_gds_opens_in_compatibility_mode_only(run):
    run(
        CUFILE,
        """
library.cuFileSetParameterBool.restype = Error
assert library.cuFileSetParameterBool(1, False).err == 0
assert library.cuFileDriverOpen().err == 5001
library.cuFileSetParameterBool(1, True)
assert library.cuFileDriverOpen().err == 0
assert library.cuFileSetParameterBool(1, False).err == 5026
""",
        cufile="set gds=0",
    )


def test_fake_cufile_close_refuses_what_comes_while_it_waits(run):
    run(
        CUFILE,
        """
import threading
_, handle = register(opened())
device = cuda.alloc(4096)
results = []

def transfer():
    with driver.on(0):
        results.append(write(handle, device, 4096)[0])

cufile("hang cuFileWrite")
first = threading.Thread(target=transfer)
first.start()
cufile.wait_hanging("cuFileWrite")
closing = threading.Thread(target=library.cuFileDriverClose_v2)
closing.start()
while library.cuFileBufRegister(None, 0, 0).err != 5006:
    pass
cufile("release cuFileWrite")
first.join()
closing.join()
assert results == [4096]
assert cufile.stat("handles_left_at_close") == 1
""",
    )


def test_fake_cufile_forked_child_cannot_use_a_handle(run):
    run(
        CUFILE,
        """
_, handle = register(opened())
pid = os.fork()
if pid == 0:
    os._exit(write(handle, 4096, 4096) == (-1, 5001))
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
""",
    )


def test_fake_cufile_older_library_lacks_symbols(run):
    run(
        """
assert not hasattr(cufile.library, "cuFileGetStatsL3")
assert hasattr(cufile.library, "cuFileWrite")
""",
        without=["cuFileGetStatsL3"],
    )
