"""The ``cufile`` engine over the stand-ins: what goes by cuFile, and what becomes of its faults."""

import errno
import os
import threading
import zlib
from array import array

import pytest
from lanes import (
    KiB,
    MiB,
    content_of,
    crcs,
    drop_cache,
    error_of,
    extent,
    finish,
    pattern,
    written,
)

from gdsckpt.errors import (
    ChecksumError,
    ShortTransferError,
    StorageError,
)

pytestmark = pytest.mark.lanes("cufile")

NBYTES = 3 * MiB
CHUNK = 512 * KiB
REFUSALS = [5001, 5008, 5011, 5013, 5015, 5016, 5017, 5027, 5030, 5036, 5048]


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
