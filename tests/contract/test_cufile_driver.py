"""Registration of files, cuFile's driver and its library, over the stand-ins."""

import errno
import os
import threading

import pytest
from lanes import (
    KiB,
    MiB,
    content_of,
    error_of,
    extent,
    finish,
    may_leave,
    pattern,
    written,
)

from gdsckpt import native
from gdsckpt.errors import (
    CuFileError,
    EngineUnavailableError,
    StorageError,
)

pytestmark = pytest.mark.lanes("cufile")

NBYTES = 3 * MiB
CHUNK = 512 * KiB


@pytest.mark.parametrize("code", [5008, 5018, 5027, 5028, 5030])
def test_file_that_cufile_does_not_take_goes_through_the_host(lane, code):
    lane.cufile(f"fault cuFileHandleRegister code={code}")
    engine, file, memory = lane.engine(), lane.file(), lane.memory(pattern(NBYTES))
    assert written(lane, engine, file, memory).cufile_bytes == 0
    assert str(code) in file.cufile_refused
    assert written(lane, engine, lane.file(), memory).cufile_bytes == NBYTES


def test_file_is_registered_once_and_until_it_is_closed(lane):
    engine, file, memory = lane.engine(), lane.file(), lane.memory(pattern(NBYTES))
    for _ in range(3):
        written(lane, engine, file, memory)
    assert lane.cufile.calls("cuFileHandleRegister") == 1
    assert lane.cufile.stat("live.handles") == 1
    file.close()
    assert lane.cufile.stat("live.handles") == 0


def test_file_without_direct_io_goes_through_the_host(lane):
    file, memory = lane.file(direct=False), lane.memory(pattern(NBYTES))
    assert written(lane, lane.engine(), file, memory).cufile_bytes == 0
    assert file.cufile_refused
    assert lane.cufile.calls("cuFileHandleRegister") == 0


def test_driver_closed_in_flight_waits_and_the_rest_goes_through_the_host(lane):
    cufile = lane.cufile
    engine, file, memory = lane.engine(io_threads=2), lane.file(), lane.memory(pattern(NBYTES))
    cufile("hang cuFileWrite")
    transfer = lane.write(engine, file, [extent(memory)])
    cufile.wait_hanging("cuFileWrite", 2)
    closing = threading.Thread(target=native.cufile_close)
    closing.start()
    cufile("release cuFileWrite")
    closing.join()
    finish(transfer)
    assert content_of(file) == memory.data()
    assert cufile.stat("live.use_count") == 0


def test_cancel_while_a_request_hangs_ends_when_the_request_does(lane):
    cufile = lane.cufile
    engine, file, memory = lane.engine(io_threads=2), lane.file(), lane.memory(pattern(NBYTES))
    cufile("hang cuFileWrite")
    transfer = lane.write(engine, file, [extent(memory)])
    cufile.wait_hanging("cuFileWrite", 2)
    transfer.cancel()
    assert not transfer.wait(0)
    cufile("release cuFileWrite")
    assert error_of(StorageError, finish, transfer).errno == errno.ECANCELED


def test_child_of_a_fork_is_refused_and_takes_nothing_from_the_parent(lane):
    engine, file, memory = lane.engine(), lane.file(), lane.memory(pattern(NBYTES))
    written(lane, engine, file, memory)
    pid = os.fork()
    if pid == 0:
        answers = 0
        for call in (file.attach_cufile, native.cufile_close, native.cufile_stats):
            try:
                call()
            except EngineUnavailableError:
                answers += 1
        file.close()
        os._exit(answers)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
    assert written(lane, engine, file, memory).cufile_bytes == NBYTES


@pytest.mark.parametrize(("path", "way"), [(0, "p2p"), (1, "nvfs")])
def test_statistics_tell_which_way_the_bytes_went(lane, path, way):
    lane.cufile(f"set path={path}")
    written(lane, lane.engine(), lane.file(), lane.memory(pattern(NBYTES)))
    stats = native.cufile_stats()
    assert {name: n for name, n in stats.items() if n} == {f"{way}_writes": NBYTES // CHUNK}


def test_statistics_tell_a_silent_way_through_the_host(lane):
    lane.cufile("set silent_posix=1")
    written(lane, lane.engine(), lane.file(), lane.memory(pattern(NBYTES)))
    stats = native.cufile_stats()
    assert stats["posix_writes"] == NBYTES // CHUNK
    assert stats["p2p_writes"] == stats["nvfs_writes"] == 0


def opening_fails(lane, **options):
    """Give the reason why the driver cannot be opened."""
    native.cufile_load([os.environ["GDSCKPT_LIBCUFILE"]])
    error = error_of(EngineUnavailableError, lambda: native.cufile_open(**options))
    return str(error)


@pytest.mark.parametrize("code", [5001, 5002, 5004, 5025])
def test_driver_that_does_not_open_says_why(lane, code):
    lane.cufile(f"fault cuFileDriverOpen code={code}")
    assert str(code) in opening_fails(lane, modules_path="/")


def test_driver_without_gds_is_not_opened_in_compatibility_mode(lane):
    lane.cufile("set gds=0")
    assert "5001" in opening_fails(lane, modules_path="/")
    assert lane.cufile.stat("live.use_count") == 0


def test_kernel_without_modules_is_known_before_the_library_waits_for_them(lane):
    missing = str(lane.directory / "modules")
    assert missing in opening_fails(lane, modules_path=missing)
    assert lane.cufile.calls("cuFileDriverOpen") == 0


def test_library_that_is_too_old_is_not_used(lane):
    lane.cufile("set version=1140")
    assert "1.14" in opening_fails(lane, modules_path="/")
    assert lane.cufile.calls("cuFileDriverOpen") == 0


@pytest.mark.stand_ins(without=["cuFileSetParameterBool"])
def test_library_that_lacks_a_symbol_names_it(lane):
    assert "cuFileSetParameterBool" in opening_fails(lane, modules_path="/")


@pytest.mark.stand_ins(cufile=None)
def test_library_that_is_not_there_is_named(lane):
    assert "there-is-no-libcufile.so" in opening_fails(lane, modules_path="/")


@pytest.mark.stand_ins(without=["cuFileGetStatsL3", "cuFileStatsStart"])
def test_library_that_cannot_count_is_used_and_says_so(lane):
    engine, file, memory = lane.engine(), lane.file(), lane.memory(pattern(NBYTES))
    assert written(lane, engine, file, memory).cufile_bytes == NBYTES
    assert any("count" in note for note in native.cufile_facts()["notes"])
    error_of(EngineUnavailableError, native.cufile_stats)


@may_leave
def test_driver_opened_by_somebody_else_keeps_their_settings(lane):
    lane.cufile.library.cuFileDriverOpen()
    lane.open_cufile()
    facts = native.cufile_facts()
    assert facts["allows_compat_mode"]
    assert any("somebody else" in note for note in facts["notes"])


def test_driver_that_does_not_close_is_an_error(lane):
    lane.open_cufile()
    lane.cufile("fault cuFileDriverClose code=5030")
    error = error_of(CuFileError, native.cufile_close)
    assert (error.op, error.code) == ("cuFileDriverClose", 5030)
    lane.cufile.library.cuFileDriverClose_v2()


def test_closing_the_driver_comes_after_the_files(lane):
    engine, file, memory = lane.engine(), lane.file(), lane.memory(pattern(NBYTES))
    written(lane, engine, file, memory)
    native.cufile_close()
    assert lane.cufile.stat("handles_left_at_close") == 0
    assert lane.cufile.stat("live.handles") == 0
