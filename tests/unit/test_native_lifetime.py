"""Cancelling, closing, threads and forks of the native engine."""

import array
import ctypes
import errno
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
import weakref
from pathlib import Path

import pytest

from gdsckpt import native
from gdsckpt.errors import EngineUnavailableError, StorageError

CHUNK = 1 << 16
NONE = native.NO_CRC_SLOT
SOURCE = ctypes.create_string_buffer(64 * CHUNK)
EXTENTS = array.array("Q", [ctypes.addressof(SOURCE), len(SOURCE), 0, NONE, native.HOST])


@pytest.fixture
def engine():
    made = native.Engine(io_threads=2, slab_bytes=1 << 20, num_slabs=2)
    yield made
    made.close()


@pytest.fixture
def scratch(tmp_path):
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT, 0o600)
    yield native.File(str(tmp_path / "file"), fd)
    os.close(fd)


def num_io_threads():
    names = [path.joinpath("comm") for path in Path("/proc/self/task").iterdir()]
    return sum(name.read_text() == "gdsckpt-io\n" for name in names if name.exists())


def has_io_threads(count):
    """Wait for the kernel to have started or buried the threads; it lags behind a join."""
    deadline = time.monotonic() + 30
    while num_io_threads() != count:
        if time.monotonic() > deadline:
            return False
    return True


def num_fds_of(path):
    links = Path("/proc/self/fd").iterdir()
    return sum(link.readlink() == path for link in links if link.is_symlink())


def start_many(engine, file, count=50):
    return [engine.write(file, EXTENTS, chunk_bytes=CHUNK) for _ in range(count)]


def test_cancelled_transfer_raises_ecanceled(engine, scratch):
    transfers = start_many(engine, scratch)
    last = transfers[-1]
    last.cancel()
    assert last.wait(60)
    with pytest.raises(StorageError) as caught:
        last.result()
    assert (caught.value.errno, caught.value.op) == (errno.ECANCELED, "write")
    for transfer in transfers[:-1]:
        transfer.result()


def test_done_bytes_grow_to_the_total(engine, scratch):
    transfer = engine.write(scratch, EXTENTS, chunk_bytes=CHUNK)
    seen = [transfer.done_bytes]
    while not transfer.wait(0.001):
        seen.append(transfer.done_bytes)
    seen.append(transfer.done_bytes)
    assert seen == sorted(seen)
    assert seen[-1] == transfer.total_bytes == len(SOURCE)


def test_close_joins_all_threads(scratch):
    others = num_io_threads()  # of the engine that the process keeps, if a test before used it
    engine = native.Engine(io_threads=5, slab_bytes=1 << 20, num_slabs=2)
    assert has_io_threads(others + 5)
    engine.write(scratch, EXTENTS, chunk_bytes=CHUNK).result()
    engine.close()
    assert has_io_threads(others)


def test_close_while_transfers_run_ends_them(scratch):
    engine = native.Engine(io_threads=2, slab_bytes=1 << 20, num_slabs=2)
    transfers = start_many(engine, scratch)
    engine.close()
    assert all(transfer.wait(0) for transfer in transfers)
    with pytest.raises(StorageError) as caught:
        transfers[-1].result()
    assert caught.value.errno == errno.ECANCELED


def test_engine_let_go_while_transfers_run_ends_them(scratch):
    others = num_io_threads()
    engine = native.Engine(io_threads=2, slab_bytes=1 << 20, num_slabs=2)
    transfers = start_many(engine, scratch)
    del engine
    assert all(transfer.wait(0) for transfer in transfers)
    assert has_io_threads(others)


def test_transfer_let_go_is_over(engine, scratch):
    transfers = start_many(engine, scratch)
    del transfers
    # Nothing touches the source any more, so a new transfer is at the head of the queue.
    engine.write(scratch, EXTENTS, chunk_bytes=CHUNK).result()


def test_wait_lets_other_threads_run(engine, scratch):
    ticks = []
    done = threading.Event()

    def tick():
        while not done.is_set():
            ticks.append(time.monotonic())
            time.sleep(0.0005)

    thread = threading.Thread(target=tick)
    thread.start()
    for transfer in start_many(engine, scratch, 10):
        transfer.result()
    done.set()
    thread.join()
    assert len(ticks) > 1


def in_child(work):
    """Exit status of a forked child that runs ``work``."""
    with warnings.catch_warnings():
        # Forking with threads alive is exactly what is tried here.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        status = 1
        try:
            signal.alarm(60)
            work()
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(pid, 0)
    return status


def test_forked_child_finds_a_dead_engine(engine, scratch):
    transfers = start_many(engine, scratch)

    def work():
        for call in (
            lambda: engine.write(scratch, EXTENTS, chunk_bytes=CHUNK),
            lambda: engine.scan(scratch, 0, 1, chunk_bytes=CHUNK),
            engine.close,
            transfers[0].result,
            transfers[0].cancel,
            lambda: transfers[0].done_bytes,
            lambda: transfers[0].wait(0),
        ):
            with pytest.raises(EngineUnavailableError):
                call()
        transfers.clear()

    assert in_child(work) == 0
    for transfer in transfers:
        transfer.result()


def test_forked_child_makes_its_own_engine(engine, scratch, tmp_path):
    transfers = start_many(engine, scratch, 5)

    def work():
        own = native.Engine(io_threads=2, slab_bytes=1 << 20, num_slabs=2)
        fd = os.open(tmp_path / "of-child", os.O_RDWR | os.O_CREAT, 0o600)
        own.write(native.File("of-child", fd), EXTENTS, chunk_bytes=CHUNK).result()
        own.close()

    assert in_child(work) == 0
    assert (tmp_path / "of-child").stat().st_size == len(SOURCE)
    for transfer in transfers:
        transfer.result()


def test_interpreter_ends_while_a_transfer_runs(tmp_path):
    code = f"""
import array, ctypes, os
from gdsckpt import native
source = ctypes.create_string_buffer(16 << 20)
fd = os.open({str(tmp_path / "file")!r}, os.O_RDWR | os.O_CREAT)
engine = native.Engine(io_threads=2, slab_bytes=1 << 20, num_slabs=2)
rows = array.array("Q", [ctypes.addressof(source), 16 << 20, 0, native.NO_CRC_SLOT, native.HOST])
transfers = [engine.write(native.File("x", fd), rows, chunk_bytes=65536) for _ in range(9)]
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")


def test_wait_is_broken_off_by_a_signal(tmp_path):
    code = f"""
import array, ctypes, os, signal
from gdsckpt import native
fd = os.open({str(tmp_path / "file")!r}, os.O_RDWR | os.O_CREAT)
source = ctypes.create_string_buffer(64 << 20)
engine = native.Engine(io_threads=1, slab_bytes=1 << 20, num_slabs=1)
rows = array.array("Q", [ctypes.addressof(source), 64 << 20, 0, native.NO_CRC_SLOT, native.HOST])
transfers = [engine.write(native.File("x", fd), rows, chunk_bytes=65536) for _ in range(200)]
signal.setitimer(signal.ITIMER_REAL, 0.05)
signal.signal(signal.SIGALRM, signal.default_int_handler)
try:
    transfers[-1].result()
except KeyboardInterrupt:
    print("interrupted")
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (0, "interrupted\n", "")


def test_transfer_goes_on_when_its_maker_closes_the_descriptor(engine, tmp_path):
    path = tmp_path / "file"
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    file = native.File(str(path), fd)
    transfers = start_many(engine, file)
    os.close(fd)
    other = os.open(tmp_path / "other", os.O_RDWR | os.O_CREAT, 0o600)
    assert other == fd  # the number is another file's by now
    for transfer in transfers:
        transfer.result()
    assert os.fstat(other).st_size == 0
    os.close(other)
    assert path.stat().st_size > 0


def test_closed_file_keeps_descriptors_for_running_transfers_only(engine, tmp_path):
    path = tmp_path / "file"
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    file = native.File(str(path), fd)
    os.close(fd)
    transfers = start_many(engine, file)
    file.close()
    file.close()
    for transfer in transfers:
        transfer.result()
    assert num_fds_of(path) == 0  # though file and transfers are still there
    with pytest.raises(StorageError) as caught:
        engine.write(file, EXTENTS, chunk_bytes=CHUNK).result()
    assert caught.value.errno == errno.EBADF


def test_transfer_keeps_its_owner_until_it_is_let_go(engine, scratch):
    class Owner:
        pass

    owner = Owner()
    alive = weakref.ref(owner)
    transfer = engine.write(scratch, EXTENTS, chunk_bytes=CHUNK, owner=owner)
    del owner
    assert alive() is not None
    del transfer
    assert alive() is None
