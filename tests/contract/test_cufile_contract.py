"""The ``cufile`` engine over the stand-ins: what goes by cuFile, and what becomes of its faults."""

import errno
import os
import threading
import zlib
from array import array
from pathlib import Path

import pytest
from lanes import KiB, MiB, crcs, drop_cache, error_of, extent, finish, may_leave, pattern

from gdsckpt import native
from gdsckpt.errors import (
    ChecksumError,
    CuFileError,
    EngineUnavailableError,
    ShortTransferError,
    StorageError,
)

pytestmark = pytest.mark.lanes("cufile")

NBYTES = 3 * MiB
CHUNK = 512 * KiB
REFUSALS = [5001, 5008, 5011, 5013, 5015, 5016, 5017, 5027, 5030, 5036, 5048]


def content_of(file):
    return Path(file.path).read_bytes()


def written(lane, engine, file, memory, **options):
    """Write a memory, and check the file."""
    transfer = finish(lane.write(engine, file, [extent(memory)], **options))
    assert content_of(file) == memory.data()
    assert crcs(transfer.extent_crcs()) == [zlib.crc32(memory.data())]
    assert crcs(transfer.chunk_crcs()) == lane.chunk_crcs_of(memory.data())
    return transfer


def read_back(lane, engine, file, data):
    """Read a file into new memory, and check that."""
    memory = lane.memory(bytes(len(data)))
    transfer = finish(lane.read(engine, file, [extent(memory)]))
    assert memory.data() == data
    assert memory.is_guarded()
    assert crcs(transfer.extent_crcs()) == [zlib.crc32(data)]
    return transfer


@pytest.mark.lanes("cufile", "real-cufile", "gpu-cufile")
def test_large_aligned_memory_goes_by_cufile_both_ways(lane):
    engine, file, memory = lane.engine(), lane.file(), lane.memory(pattern(NBYTES))
    assert written(lane, engine, file, memory).cufile_bytes == NBYTES
    drop_cache(file)
    assert read_back(lane, engine, file, memory.data()).cufile_bytes == NBYTES
    assert file.cufile_refused == ""


def test_bytes_that_go_by_cufile_are_not_copied_to_the_host(lane):
    engine, file, memory = lane.engine(), lane.file(), lane.memory(pattern(NBYTES))
    written(lane, engine, file, memory)
    assert lane.cuda.stat("bytes.dtoh") == 0
    assert lane.cufile.stat("device_write_bytes") == NBYTES
    assert lane.cufile.stat("unaligned") == 0
    assert lane.cufile.calls("cuFileBufRegister") == 0


@pytest.mark.parametrize(
    ("memory_offset", "file_offset", "by_cufile"),
    [(0, 4096, True), (100, 100, True), (100, 0, False), (0, 512, False), (2048, 4096, False)],
)
def test_only_what_is_aligned_both_ways_goes_by_cufile(lane, memory_offset, file_offset, by_cufile):
    data = pattern(NBYTES + 77)
    engine, file, memory = lane.engine(), lane.file(), lane.memory(data, memory_offset)
    transfer = finish(lane.write(engine, file, [extent(memory, file_offset)]))
    assert content_of(file)[file_offset:] == data
    assert crcs(transfer.extent_crcs()) == [zlib.crc32(data)]
    assert (transfer.cufile_bytes > 2 * MiB) == by_cufile
    assert by_cufile or transfer.cufile_bytes == 0
    assert lane.cufile.stat("unaligned") == 0


@pytest.mark.lanes("cufile", "real-cufile", "gpu-cufile")
def test_heads_and_tails_go_through_the_host(lane):
    data = pattern(2 * CHUNK + 300)
    memory, file = lane.memory(data, 4000), lane.file()
    transfer = finish(lane.write(lane.engine(), file, [extent(memory, 4000)]))
    assert content_of(file)[4000:] == data
    assert transfer.cufile_bytes % 4096 == 0
    assert 0 < transfer.direct_bytes + transfer.buffered_bytes == len(data) - transfer.cufile_bytes


@pytest.mark.lanes("cufile", "real-cufile", "gpu-cufile")
def test_small_extents_are_gathered(lane):
    memories = [lane.memory(pattern(100 * KiB, n)) for n in range(12)]
    file = lane.file()
    extents = [extent(memory, n * 100 * KiB) for n, memory in enumerate(memories)]
    transfer = finish(lane.write(lane.engine(), file, extents))
    assert content_of(file) == b"".join(memory.data() for memory in memories)
    assert transfer.cufile_bytes == 0


def test_extents_of_several_devices_and_the_host(lane):
    datas = [pattern(MiB, n) for n in range(4)]
    memories = [lane.memory(data, device=n % 2) for n, data in enumerate(datas)]
    engine, file = lane.engine(), lane.file()
    extents = [extent(memory, n * MiB) for n, memory in enumerate(memories)]
    transfer = finish(lane.write(engine, file, extents))
    assert content_of(file) == b"".join(datas)
    assert transfer.cufile_bytes == 4 * MiB
    assert crcs(transfer.extent_crcs()) == [zlib.crc32(data) for data in datas]


@pytest.mark.lanes("cufile", "real-cufile", "gpu-cufile")
def test_checksum_slots_are_filled_beside_cufile(lane):
    header, memory = lane.memory(bytes(64)), lane.memory(pattern(NBYTES))
    file = lane.file()
    extents = [extent(header), extent(memory, 4096, crc_offset=10)]
    transfer = finish(lane.write(lane.engine(), file, extents))
    content = content_of(file)
    assert content[10:14] == zlib.crc32(memory.data()).to_bytes(4, "little")
    assert content[4096:] == memory.data()
    assert crcs(transfer.chunk_crcs()) == lane.chunk_crcs_of(content)
    assert transfer.cufile_bytes > 0


@pytest.mark.parametrize("kind", ["mapped", "managed", "pool"])
def test_memory_that_cufile_must_not_see_goes_through_the_host(lane, kind):
    engine, file = lane.engine(), lane.file()
    memory = lane.memory(pattern(NBYTES), kind=kind)
    assert written(lane, engine, file, memory).cufile_bytes == 0
    assert file.cufile_skipped
    assert file.cufile_refused == ""


def test_write_comes_after_what_the_producer_has_queued(lane):
    cuda, driver, engine = lane.cuda, lane.driver, lane.engine()
    memory, source = lane.memory(pattern(NBYTES, 1)), lane.memory(pattern(NBYTES, 2))
    file = lane.file()
    with driver.on(0):
        producer = driver.stream()
        cuda(f"hold stream={producer}; delay dtod us=20000; set late_us=0")
        driver.check("cuMemcpyDtoDAsync_v2", memory.address, source.address, NBYTES, producer)
    records = cuda.calls("cuEventRecord")

    def release():
        while cuda.calls("cuEventRecord") == records:
            os.sched_yield()
        cuda(f"release stream={producer}")

    releasing = threading.Thread(target=release)
    releasing.start()
    streams = array("Q", [0, producer])
    transfer = finish(lane.write(engine, file, [extent(memory)], streams=streams))
    releasing.join()
    assert content_of(file) == source.data()
    assert crcs(transfer.extent_crcs()) == [zlib.crc32(source.data())]


def test_read_comes_after_what_the_consumer_has_queued(lane):
    cuda, driver, engine = lane.cuda, lane.driver, lane.engine()
    memory, elsewhere = lane.memory(pattern(NBYTES, 1)), lane.memory(bytes(NBYTES))
    file = lane.file(pattern(NBYTES, 2))
    with driver.on(0):
        consumer = driver.stream()
        cuda(f"hold stream={consumer}; delay dtod us=20000; set late_us=0")
        driver.check("cuMemcpyDtoDAsync_v2", elsewhere.address, memory.address, NBYTES, consumer)
        streams = array("Q", [0, consumer])
        transfer = lane.read(engine, file, [extent(memory)], streams=streams)
        while cuda.calls("cuEventSynchronize") == 0:
            os.sched_yield()
        cuda(f"release stream={consumer}")
        finish(transfer)
        driver.check("cuStreamSynchronize", consumer)
    assert elsewhere.data() == pattern(NBYTES, 1)
    assert memory.data() == pattern(NBYTES, 2)


# Faults of requests.


@pytest.mark.parametrize("old", [0, 1])
@pytest.mark.parametrize("nth", [1, 4])
@pytest.mark.parametrize("code", REFUSALS)
def test_write_refused_at_run_time_goes_on_through_the_host(lane, code, nth, old):
    lane.cufile(f"fault cuFileWrite code={code} nth={nth}; set old_errors={old}")
    engine, file, memory = lane.engine(), lane.file(), lane.memory(pattern(NBYTES))
    transfer = written(lane, engine, file, memory)
    assert transfer.cufile_bytes < NBYTES
    assert str(code) in file.cufile_refused
    other = lane.file()
    assert written(lane, engine, other, memory).cufile_bytes == NBYTES
    assert other.cufile_refused == ""


@pytest.mark.parametrize("nth", [1, 4])
@pytest.mark.parametrize("code", [5008, 5016, 5030])
def test_read_refused_at_run_time_goes_on_through_the_host(lane, code, nth):
    data = pattern(NBYTES)
    engine, file = lane.engine(), lane.file(data)
    drop_cache(file)
    lane.cufile(f"fault cuFileRead code={code} nth={nth}")
    assert read_back(lane, engine, file, data).cufile_bytes < NBYTES
    assert str(code) in file.cufile_refused


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
def test_write_error_of_the_kernel_is_a_storage_error_or_is_met_again(lane, code):
    """A retry through the host may succeed, but no failure goes by in silence."""
    lane.cufile(f"fault cuFileWrite code={code} nth=3")
    engine, file, memory = lane.engine(), lane.file(), lane.memory(pattern(NBYTES))
    try:
        written(lane, engine, file, memory)
    except StorageError as error:
        assert error.errno == code  # noqa: PT017 - both endings are right
        assert error.path == file.path  # noqa: PT017 - as above
    else:
        assert file.cufile_refused


@pytest.mark.parametrize("code", [errno.EINTR, errno.EAGAIN, 5039, 5040, 5043])
@pytest.mark.parametrize("op", ["cuFileWrite", "cuFileRead"])
def test_passing_refusal_is_repeated(lane, op, code):
    engine, file, memory = lane.engine(), lane.file(), lane.memory(pattern(NBYTES))
    written(lane, engine, lane.file(), memory)
    lane.cufile(f"fault {op} code={code} count=2")
    written(lane, engine, file, memory)
    drop_cache(file)
    read_back(lane, engine, file, memory.data())
    assert lane.cufile.stat("fired") == 2
    assert file.cufile_refused == ""


def test_refusal_that_never_passes_ends_the_use_of_cufile(lane):
    lane.cufile("fault cuFileWrite code=5043 count=-1")
    engine, file, memory = lane.engine(), lane.file(), lane.memory(pattern(MiB))
    assert written(lane, engine, file, memory).cufile_bytes == 0
    assert "5043" in file.cufile_refused


@pytest.mark.parametrize("nbytes", [4096, 65536, 5000])
@pytest.mark.parametrize("op", ["cuFileWrite", "cuFileRead"])
def test_short_transfer_is_continued(lane, op, nbytes):
    data = pattern(NBYTES)
    lane.cufile(f"short {op} bytes={nbytes} count=6")
    engine, file, memory = lane.engine(), lane.file(), lane.memory(data)
    assert written(lane, engine, file, memory).cufile_bytes == NBYTES
    drop_cache(file)
    assert read_back(lane, engine, file, data).cufile_bytes == NBYTES


@pytest.mark.parametrize("nbytes", [0, 511])
@pytest.mark.parametrize("op", ["cuFileWrite", "cuFileRead"])
def test_transfer_without_progress_is_an_error(lane, op, nbytes):
    engine, memory = lane.engine(), lane.memory(pattern(NBYTES))
    file = lane.file()
    lane.cufile(f"short {op} bytes={nbytes} count=-1")
    if op == "cuFileRead":
        written(lane, engine, file, memory)
        drop_cache(file)
        error = error_of(ShortTransferError, finish, lane.read(engine, file, [extent(memory)]))
    else:
        error = error_of(ShortTransferError, finish, lane.write(engine, file, [extent(memory)]))
    assert error.actual_bytes < error.expected_bytes


def test_read_beyond_the_end_by_cufile_is_a_short_transfer(lane):
    engine, file = lane.engine(), lane.file(pattern(2 * MiB))
    drop_cache(file)
    memory = lane.memory(bytes(NBYTES))
    error_of(ShortTransferError, finish, lane.read(engine, file, [extent(memory)]))
    assert memory.is_guarded()


# Silent damage: the checksums of the write are those of the device, so the next read finds it.


@pytest.mark.parametrize(
    "damage", ["flip cuFileWrite nth=2 bit=77", "misplace cuFileWrite bytes=4096"]
)
def test_silent_damage_of_a_write_is_found_by_its_checksums(lane, damage):
    lane.cufile(damage)
    data = pattern(NBYTES)
    engine, file, memory = lane.engine(), lane.file(), lane.memory(data)
    transfer = finish(lane.write(engine, file, [extent(memory)]))
    assert crcs(transfer.extent_crcs()) == [zlib.crc32(data)]
    scan = finish(engine.scan(file, 0, NBYTES, chunk_bytes=CHUNK))
    assert crcs(scan.chunk_crcs()) != crcs(transfer.chunk_crcs())


def test_silent_damage_of_a_read_is_found_by_its_checksums(lane):
    data = pattern(NBYTES)
    engine, file, memory = lane.engine(), lane.file(), lane.memory(data)
    written(lane, engine, file, memory)
    drop_cache(file)
    lane.cufile("flip cuFileRead nth=3 bit=1")
    transfer = finish(lane.read(engine, file, [extent(memory)]))
    assert crcs(transfer.extent_crcs()) != [zlib.crc32(data)]


def test_bit_flipped_on_the_way_to_the_host_is_an_error(lane):
    """Bytes that are gathered are compared with what the device has said of them."""
    lane.cuda("flip dtoh nth=2 bit=12345")
    memory = lane.memory(pattern(NBYTES), 100)  # not aligned: all through the host
    engine, file = lane.engine(), lane.file()
    error = error_of(ChecksumError, finish, lane.write(engine, file, [extent(memory)]))
    assert error.path == file.path
    assert error.expected != error.actual


def test_memory_changed_after_its_checksum_is_an_error_where_the_host_sees_it(lane):
    engine, file = lane.engine(), lane.file()
    memory = lane.memory(pattern(NBYTES), 100)
    take = engine._checksums.crc32_pieces

    def take_and_change(*arguments, **options):
        found = take(*arguments, **options)
        memory.fill(b"changed")
        return found

    engine._checksums.crc32_pieces = take_and_change
    error_of(ChecksumError, finish, lane.write(engine, file, [extent(memory)]))


# Registration, driver, library.


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
