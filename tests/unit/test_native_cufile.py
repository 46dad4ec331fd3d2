"""Libcufile and its driver in a process: loaded, opened and closed; over the stand-ins."""

import ctypes
import os
import threading

import cufile_last
import pytest
from cufile_bench import (
    CHUNK_BYTES,
    LARGE,
    MODULES,
    Bench,
    MiB,
    in_child,
    pattern,
)
from fake_cuda import stand_ins

from gdsckpt import native
from gdsckpt.engine import base
from gdsckpt.engine.base import Extent
from gdsckpt.errors import (
    EngineUnavailableError,
)


@in_child()
def test_driver_that_is_not_open_is_an_error(tmp_path):
    bench = Bench(tmp_path, is_open=False)
    with pytest.raises(EngineUnavailableError, match="driver is not open") as raised:
        bench.save(pattern(LARGE))
    assert raised.value.engine == "cufile"
    with pytest.raises(EngineUnavailableError):
        native.cufile_stats()
    native.cufile_close()  # nothing


@in_child()
def test_driver_facts_and_settings(tmp_path):
    Bench(tmp_path)
    facts = native.cufile_facts()
    assert facts["path"] == os.environ["GDSCKPT_LIBCUFILE"]
    assert (facts["is_open"], facts["notes"]) == (True, [])
    assert facts["version"] == stand_ins.cufile_version()
    assert not facts["allows_compat_mode"]
    assert facts["max_direct_io_bytes"] == 16 * MiB


@in_child(cufile="set gds=0")
def test_driver_without_a_direct_path_is_not_opened(tmp_path):
    bench = Bench(tmp_path, is_open=False)
    with pytest.raises(EngineUnavailableError, match="CU_FILE_DRIVER_NOT_INITIALIZED, 5001"):
        native.cufile_open(modules_path=MODULES)
    native.cufile_open(modules_path=MODULES, allow_compat_mode=True)
    data = pattern(LARGE)
    base.wait(bench.save(data)[1])
    # It succeeds and says nothing: only the counts tell.
    assert native.cufile_stats()["posix_writes"] == LARGE // CHUNK_BYTES


@in_child()
def test_driver_without_kernel_modules_is_not_even_tried(tmp_path):
    bench = Bench(tmp_path, is_open=False)
    with pytest.raises(EngineUnavailableError, match=r"no-such-file does not exist"):
        native.cufile_open(modules_path="/proc/no-such-file")
    assert bench.cufile.calls("cuFileDriverOpen") == 0


@in_child()
def test_driver_that_another_has_opened_is_told(tmp_path):
    bench = Bench(tmp_path, is_open=False)
    bench.cufile.library.cuFileDriverOpen()
    native.cufile_open(modules_path=MODULES)
    notes = native.cufile_facts()["notes"]
    assert "somebody else" in notes[0]
    assert "compatibility mode is on" in notes[1]
    native.cufile_close()
    assert bench.cufile.stat("live.use_count") == 1


@in_child(without=("cuFileGetStatsL3",))
def test_library_without_counts_moves_bytes_all_the_same(tmp_path):
    bench = Bench(tmp_path)
    data = pattern(LARGE)
    bench.check(bench.save(data)[1], data)
    with pytest.raises(EngineUnavailableError, match="can't count"):
        native.cufile_stats()


def why_not():
    return native.cufile_load([os.environ["GDSCKPT_LIBCUFILE"]])


@in_child(without=("cuFileSetParameterBool",))
def test_library_without_a_function_is_a_reason(tmp_path):
    assert "too old: it has no cuFileSetParameterBool" in why_not()
    with pytest.raises(EngineUnavailableError, match="it has no cuFileSetParameterBool"):
        native.cufile_facts()


@in_child(without=("cuFileDriverClose_v2",))
def test_library_with_the_old_name_of_close_will_do(tmp_path):
    bench = Bench(tmp_path)
    native.cufile_close()
    assert bench.cufile.stat("live.use_count") == 0


@in_child(cufile="set version=1130")
def test_library_of_an_old_version_is_a_reason(tmp_path):
    assert "too old: version 1.13. 1.15 (CUDA 13.0) or newer is needed" in why_not()


@in_child(cufile=None)
def test_library_that_is_missing_is_a_reason(tmp_path):
    assert why_not().startswith("no cuFile: ")
    assert why_not() == native.cufile_load([])  # once for the process


@in_child()
def test_library_that_the_process_has_comes_first(tmp_path):
    ctypes.CDLL(os.environ["GDSCKPT_LIBCUFILE"])
    assert native.cufile_load(["/no/such/libcufile.so", "libcufile.so.0"]) == ""
    assert native.cufile_facts()["path"] == os.environ["GDSCKPT_LIBCUFILE"]


@in_child()
def test_close_waits_for_requests_and_the_file_goes_on_through_the_host(tmp_path):
    bench = Bench(tmp_path)
    data = pattern(8 * MiB)
    bench.cufile("hang cuFileWrite")
    file, transfer = bench.save(data)
    bench.cufile.wait_hanging("cuFileWrite", 4)
    closer = threading.Thread(target=native.cufile_close)
    closer.start()
    assert bench.cufile.stat("live.use_count") == 1
    bench.cufile("release cuFileWrite")
    closer.join()
    bench.check(transfer, data)
    assert transfer.cufile_bytes + transfer.direct_bytes == len(data)
    assert bench.cufile.stat("live.handles") == bench.cufile.stat("live.use_count") == 0
    assert bench.cufile.stat("handles_left_at_close") == 0
    # The registration is gone for good, and the transfer that is asked for now goes by the host.
    again = bench.write(file, [Extent(bench.memory(data), len(data), 0, device=0)])
    bench.check(again, data)
    assert again.cufile_bytes == 0


@in_child()
def test_exit_closes_files_then_the_driver(tmp_path):
    bench = Bench(tmp_path)
    file, transfer = bench.save(pattern(LARGE))
    base.wait(transfer)
    assert bench.cufile.stat("live.handles") == 1

    def look():
        assert file.cufile_refused == ""  # and is still there
        for name in ("use_count", "handles"):
            assert bench.cufile.stat(f"live.{name}") == 0
        for name in ("handles_left_at_close", "deregistered_twice", "deregistered_in_flight"):
            assert bench.cufile.stat(name) == 0

    cufile_last.checks.append(look)


@in_child()
def test_fork_the_child_leaves_the_driver_alone(tmp_path):
    bench = Bench(tmp_path)
    data = pattern(LARGE)
    file, transfer = bench.save(data)
    base.wait(transfer)
    calls = bench.cufile.calls("cuFileHandleDeregister")
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            for call in (file.attach_cufile, native.cufile_close, native.cufile_facts):
                with pytest.raises(EngineUnavailableError, match="forked"):
                    call()
            with pytest.raises(EngineUnavailableError):
                bench.save(data)
            assert "forked" in native.cufile_load([])
            file.abandon()
            del file, transfer
            assert bench.cufile.calls("cuFileHandleDeregister") == calls
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
    base.wait(bench.write(file, [Extent(bench.memory(data), LARGE, 0, device=0)]))
    assert bench.cufile.stat("live.handles") == 1
