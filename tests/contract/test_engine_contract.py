"""What every engine promises, over memory of every kind: bytes, checksums, errors, lifetimes."""

import errno
import gc
import os
import resource
import signal
import threading
import weakref
import zlib
from array import array
from pathlib import Path

import pytest
from lanes import (
    CUFILE_LANES,
    HostMemory,
    KiB,
    content_of,
    crcs,
    extent,
    finish,
    part,
    pattern,
)

from gdsckpt import native
from gdsckpt.engine import base
from gdsckpt.engine.kvikio_transfer import KvikioTransfer
from gdsckpt.errors import (
    ConfigError,
    EngineUnavailableError,
    ShortTransferError,
    StorageError,
)

SIZES = [1, 511, 4096, 4097, 64 * KiB, 64 * KiB + 1, 200_001, 512 * KiB, 3_000_001]


def num_fds():
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("nbytes", SIZES)
def test_write_one_extent_gives_its_bytes_and_checksums(lane, nbytes):
    data = pattern(nbytes)
    memory, file = lane.memory(data), lane.file()
    transfer = finish(lane.write(lane.engine(), file, [extent(memory)]))
    assert content_of(file) == data
    assert crcs(transfer.extent_crcs()) == [zlib.crc32(data)]
    assert crcs(transfer.chunk_crcs()) == lane.chunk_crcs_of(data)
    assert memory.data() == data


@pytest.mark.parametrize("nbytes", SIZES)
def test_read_one_extent_gives_its_bytes_and_checksum(lane, nbytes):
    data = pattern(nbytes)
    memory = lane.memory(bytes(nbytes))
    transfer = finish(lane.read(lane.engine(), lane.file(data), [extent(memory)]))
    assert memory.data() == data
    assert memory.is_guarded()
    assert crcs(transfer.extent_crcs()) == [zlib.crc32(data)]


@pytest.mark.parametrize(("memory_offset", "file_offset"), [(0, 1), (1, 0), (3, 4099), (2048, 512)])
def test_write_unaligned_memory_and_offsets_gives_their_bytes(lane, memory_offset, file_offset):
    data = pattern(300_007)
    memory, file = lane.memory(data, memory_offset), lane.file()
    transfer = finish(lane.write(lane.engine(), file, [extent(memory, file_offset)]))
    assert content_of(file) == bytes(file_offset) + data
    assert crcs(transfer.chunk_crcs()) == lane.chunk_crcs_of(data, file_offset)


@pytest.mark.parametrize(("memory_offset", "file_offset"), [(0, 1), (1, 0), (3, 4099), (2048, 512)])
def test_read_unaligned_memory_and_offsets_gives_their_bytes(lane, memory_offset, file_offset):
    data = pattern(300_007)
    memory = lane.memory(bytes(len(data)), memory_offset)
    file = lane.file(bytes(file_offset) + data + b"more")
    finish(lane.read(lane.engine(), file, [extent(memory, file_offset)]))
    assert memory.data() == data
    assert memory.is_guarded()


def test_write_fills_gaps_with_zeros(lane):
    first, second = lane.memory(pattern(5000, 1)), lane.memory(pattern(70_000, 2))
    file = lane.file(b"\xff" * 300_000)
    extents = [extent(first, 100), extent(second, 200_000)]
    transfer = finish(lane.write(lane.engine(), file, extents))
    written = first.data() + bytes(200_000 - 5100) + second.data()
    content = content_of(file)
    assert content[100:270_000] == written
    assert set(content[:100]) == set(content[270_000:]) == {0xFF}
    assert crcs(transfer.extent_crcs()) == [zlib.crc32(first.data()), zlib.crc32(second.data())]
    assert crcs(transfer.chunk_crcs()) == lane.chunk_crcs_of(written, 100)


def test_write_many_small_extents_keeps_their_order(lane):
    pieces = [pattern(1 + 37 * n % 500, n) for n in range(300)]
    memory = lane.memory(b"".join(pieces))
    extents, begin, place = [], 0, 0
    for piece in pieces:
        extents.append(part(memory, begin, len(piece), place))
        begin += len(piece)
        place += len(piece) + begin % 3
    file = lane.file()
    transfer = finish(lane.write(lane.engine(), file, extents))
    content = content_of(file)
    for piece, one in zip(pieces, extents, strict=True):
        assert content[one.file_offset : one.file_offset + one.nbytes] == piece
    assert crcs(transfer.extent_crcs()) == [zlib.crc32(piece) for piece in pieces]
    assert crcs(transfer.chunk_crcs()) == lane.chunk_crcs_of(content)


def test_read_many_small_extents_fills_each_and_nothing_else(lane):
    data = pattern(400_000)
    memory = lane.memory(bytes(300 * 1000))
    extents = [part(memory, n * 1000 + n % 7, 900, n * 1300 + n % 5) for n in range(300)]
    transfer = finish(lane.read(lane.engine(), lane.file(data), extents))
    wanted = bytearray(memory.nbytes)
    for n, one in enumerate(extents):
        begin = n * 1000 + n % 7
        wanted[begin : begin + 900] = data[one.file_offset : one.file_offset + 900]
    assert memory.data() == bytes(wanted)
    assert memory.is_guarded()
    assert crcs(transfer.extent_crcs()) == [
        zlib.crc32(data[one.file_offset : one.file_offset + 900]) for one in extents
    ]


def test_write_empty_extents_are_no_bytes(lane):
    data = pattern(1000)
    memory, file = lane.memory(data), lane.file()
    nothing = base.Extent(0, 0, 0)
    transfer = finish(lane.write(lane.engine(), file, [nothing, extent(memory, 0)]))
    assert content_of(file) == data
    assert crcs(transfer.extent_crcs()) == [0, zlib.crc32(data)]


def test_write_leaves_checksums_in_their_slots(lane):
    header = HostMemory(bytes(64))
    data = [pattern(150_000, 1), pattern(70_001, 2)]
    memories = [lane.memory(each) for each in data]
    file = lane.file()
    extents = [
        extent(header),
        extent(memories[0], 4096, crc_offset=10),
        extent(memories[1], 200_000, crc_offset=20),
    ]
    transfer = finish(lane.write(lane.engine(), file, extents))
    content = content_of(file)
    for slot, each in ((10, data[0]), (20, data[1])):
        assert content[slot : slot + 4] == zlib.crc32(each).to_bytes(4, "little")
    assert crcs(transfer.chunk_crcs()) == lane.chunk_crcs_of(content)


def test_write_host_and_lane_memory_in_one_file(lane):
    parts = [pattern(33_333, n) for n in range(6)]
    memories = [(HostMemory if n % 2 else lane.memory)(each) for n, each in enumerate(parts)]
    extents = [extent(memory, n * 40_000) for n, memory in enumerate(memories)]
    file = lane.file()
    finish(lane.write(lane.engine(), file, extents))
    assert content_of(file) == (bytes(6667).join(parts))


def test_read_to_host_and_lane_memory_from_one_file(lane):
    data = pattern(240_000)
    memories = [(HostMemory if n % 2 else lane.memory)(bytes(33_333)) for n in range(6)]
    extents = [extent(memory, n * 40_000) for n, memory in enumerate(memories)]
    finish(lane.read(lane.engine(), lane.file(data), extents))
    for n, memory in enumerate(memories):
        assert memory.data() == data[n * 40_000 : n * 40_000 + 33_333]


def test_scan_gives_the_checksum_of_each_chunk(lane):
    data = pattern(500_000)
    transfer = lane.engine().scan(lane.file(data), 1000, 400_000, chunk_bytes=lane.chunk_bytes)
    assert crcs(finish(transfer).chunk_crcs()) == lane.chunk_crcs_of(data[1000:400_000], 1000)


def test_write_then_read_back_on_one_engine(lane):
    data = pattern(1_500_000)
    engine, file = lane.engine(), lane.file()
    finish(lane.write(engine, file, [extent(lane.memory(data, 5), 4096)]))
    back = lane.memory(bytes(len(data)), 9)
    finish(lane.read(engine, file, [extent(back, 4096)]))
    assert back.data() == data


def test_write_without_direct_io_goes_through_the_page_cache(lane):
    data = pattern(300_000)
    file = lane.file(direct=False)
    transfer = finish(lane.write(lane.engine(), file, [extent(lane.memory(data))]))
    assert content_of(file) == data
    assert (transfer.buffered_bytes, transfer.direct_bytes) == (300_000, 0)


def test_transfer_counts_the_bytes_of_the_file(lane):
    file = lane.file()
    memory = lane.memory(pattern(400_000))
    transfer = finish(lane.write(lane.engine(), file, [extent(memory, 4096)]))
    assert transfer.total_bytes == transfer.done_bytes == 400_000
    ways = (transfer.direct_bytes, transfer.buffered_bytes, transfer.cufile_bytes)
    assert sum(ways) == 400_000
    assert (transfer.cufile_bytes > 0) == (lane.name in CUFILE_LANES)
    assert isinstance(transfer, KvikioTransfer) == (lane.name == "kvikio")


def test_write_with_one_slab_and_one_thread(lane):
    data = pattern(900_000)
    engine = lane.engine(io_threads=1, num_slabs=1, slab_bytes=lane.chunk_bytes)
    file = lane.file()
    finish(lane.write(engine, file, [extent(lane.memory(data))]))
    assert content_of(file) == data


def test_write_with_fewer_slabs_than_threads(lane):
    data = pattern(900_000)
    engine = lane.engine(io_threads=8, num_slabs=2, slab_bytes=lane.chunk_bytes)
    file = lane.file()
    finish(lane.write(engine, file, [extent(lane.memory(data))]))
    assert content_of(file) == data


def test_transfers_at_the_same_time_do_not_mix(lane):
    engine = lane.engine()
    jobs = []
    for n in range(8):
        data = pattern(200_000 + n, n)
        file = lane.file()
        memory = lane.memory(data)
        jobs.append((data, file, memory, lane.write(engine, file, [extent(memory)])))
    for data, file, _, transfer in reversed(jobs):
        finish(transfer)
        assert content_of(file) == data


def test_transfers_of_several_threads_do_not_mix(lane):
    engine = lane.engine()
    wrong = []

    def work(n):
        data = pattern(300_000 + n, n)
        file = lane.file()
        finish(lane.write(engine, file, [extent(lane.memory(data))]))
        back = lane.memory(bytes(len(data)))
        finish(lane.read(engine, file, [extent(back)]))
        if content_of(file) != data or back.data() != data:
            wrong.append(n)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_owner_lives_until_the_end_and_no_longer(lane):
    class Owner:
        pass

    owner = Owner()
    alive = weakref.ref(owner)
    file, memory = lane.file(), lane.memory(pattern(500_000))
    transfer = lane.write(lane.engine(), file, [extent(memory)], owner=owner)
    del owner
    finish(transfer)
    del transfer
    gc.collect()
    assert alive() is None


def test_cancelled_transfer_says_so_and_leaves_the_engine_usable(lane):
    engine, file = lane.engine(io_threads=1), lane.file()
    transfer = lane.write(engine, file, [extent(lane.memory(pattern(4_000_000)))])
    transfer.cancel()
    with pytest.raises(StorageError) as caught:
        transfer.result()
    assert caught.value.errno == errno.ECANCELED
    data = pattern(100_000)
    again = lane.file()
    finish(lane.write(engine, again, [extent(lane.memory(data))]))
    assert content_of(again) == data


def test_closed_engine_has_ended_its_transfers(lane):
    engine = lane.engine(io_threads=1)
    memory = lane.memory(pattern(3_000_000))
    transfer = lane.write(engine, lane.file(), [extent(memory)])
    lane.close_engine(engine)
    assert transfer.wait(0)
    with pytest.raises(EngineUnavailableError):
        lane.write(engine, lane.file(), [extent(memory)])


def test_file_closed_early_stays_open_for_its_transfer(lane):
    data = pattern(1_000_000)
    file = lane.file()
    transfer = lane.write(lane.engine(io_threads=1), file, [extent(lane.memory(data))])
    file.close()
    finish(transfer)
    assert content_of(file) == data


def test_write_beyond_the_file_size_limit_names_place_and_reason(lane):
    file = lane.file()
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    memory = lane.memory(pattern(900_000))
    engine = lane.engine()
    resource.setrlimit(resource.RLIMIT_FSIZE, (256 * KiB, resource.RLIM_INFINITY))
    with pytest.raises(StorageError) as caught:
        finish(lane.write(engine, file, [extent(memory)]))
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert caught.value.path == file.path
    # Libcufile 1.20 in compatibility mode makes EPERM of it: the host finds out what it was.
    assert caught.value.errno == errno.EFBIG


def test_read_beyond_the_end_is_a_short_transfer(lane):
    memory = lane.memory(bytes(300_000))
    with pytest.raises(ShortTransferError) as caught:
        finish(lane.read(lane.engine(), lane.file(pattern(200_000)), [extent(memory)]))
    assert caught.value.actual_bytes < caught.value.expected_bytes
    assert memory.is_guarded()


def test_failed_transfers_leave_no_descriptor_and_a_usable_engine(lane):
    engine = lane.engine()
    memory = lane.memory(bytes(300_000))
    finish(lane.read(engine, lane.file(pattern(300_000)), [extent(memory)]))
    before = num_fds()
    for _ in range(20):
        file = lane.file(pattern(100))
        with pytest.raises(ShortTransferError):
            finish(lane.read(engine, file, [extent(memory)]))
        file.close()
    assert num_fds() == before
    data = pattern(300_000, 3)
    finish(lane.read(engine, lane.file(data), [extent(memory)]))
    assert memory.data() == data


def rows(*numbers):
    return array("Q", numbers)


@pytest.mark.parametrize(
    "name",
    [
        "overlapping extents",
        "extents out of order",
        "half a row",
        "chunks that are not aligned",
        "chunks larger than a slab",
    ],
)
def test_write_refuses_what_cannot_be(lane, name):
    memory = lane.memory(pattern(10_000))
    address, device = memory.address, memory.device
    no_slot = native.NO_CRC_SLOT
    cases = {
        "overlapping extents": rows(
            *(address, 5000, 0, no_slot, device), *(address, 5000, 4999, no_slot, device)
        ),
        "extents out of order": rows(
            *(address, 100, 9000, no_slot, device), *(address, 100, 0, no_slot, device)
        ),
        "half a row": rows(address, 100),
    }
    chunks = {"chunks that are not aligned": 1000, "chunks larger than a slab": 1 << 24}
    packed = cases.get(name, base.pack_extents([extent(memory)]))
    with pytest.raises(ConfigError):
        lane.engine().write(
            lane.file(),
            packed,
            chunk_bytes=chunks.get(name, lane.chunk_bytes),
            streams=base.NO_STREAMS,
            owner=None,
        )


def test_child_of_a_fork_is_refused_and_the_parent_goes_on(lane):
    engine, data = lane.engine(), pattern(400_000)
    memory, file = lane.memory(data), lane.file()
    transfer = lane.write(engine, file, [extent(memory)])
    pid = os.fork()
    if pid == 0:
        answers = 0
        for call in (
            lambda: lane.write(engine, file, [extent(memory)]),
            lambda: transfer.wait(0),
            lambda: engine.scan(file, 0, 10, chunk_bytes=lane.chunk_bytes),
        ):
            try:
                call()
            except EngineUnavailableError:
                answers += 1
        os._exit(answers)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
    finish(transfer)
    assert content_of(file) == data
