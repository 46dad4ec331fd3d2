"""The cufile engine over the stand-ins: which bytes cuFile moves, and in which order.

What every engine has to do is in tests/contract.
"""

import os
import zlib
from array import array

import pytest
from cufile_bench import (
    CHUNK_BYTES,
    LARGE,
    Bench,
    KnownChecksums,
    MiB,
    address_of,
    crcs,
    in_child,
    pattern,
    spin_until,
    written,
)

from gdsckpt import native
from gdsckpt.config import Config
from gdsckpt.engine import base, cufile
from gdsckpt.engine.base import Extent
from gdsckpt.errors import (
    ConfigError,
)


@in_child()
def test_write_large_memory_goes_by_cufile_alone(tmp_path):
    bench = Bench(tmp_path)
    data = pattern(LARGE)
    file, transfer = bench.save(data)
    bench.check(transfer, data)
    assert (transfer.cufile_bytes, transfer.done_bytes) == (LARGE, LARGE)
    assert (transfer.direct_bytes, transfer.buffered_bytes) == (0, 0)
    assert bench.cuda.stat("live.host_registrations") == 0  # no slab was needed
    assert bench.cufile.stat("transfers_in_wrong_context") == 0
    stats = native.cufile_stats()
    assert (stats["p2p_writes"], stats["posix_writes"]) == (LARGE // CHUNK_BYTES, 0)
    assert file.cufile_refused == file.cufile_skipped == ""


@in_child(cufile="set path=1")
def test_write_by_nvidia_fs_is_counted_as_such(tmp_path):
    bench = Bench(tmp_path)
    data = pattern(LARGE)
    base.wait(bench.save(data)[1])
    assert native.cufile_stats()["nvfs_writes"] == LARGE // CHUNK_BYTES


@in_child()
def test_write_what_is_not_aligned_or_large_is_gathered(tmp_path):
    bench = Bench(tmp_path)
    pieces = [
        pattern(64, 1),  # a small one, then an aligned one with an odd end over several chunks
        pattern(4032, 2),
        pattern(2 * MiB + 4097, 3),
        pattern(4095, 4),
        pattern(MiB + 8192, 5),  # its memory is not aligned as the file is
        pattern(100, 6),
    ]
    shifts = (0, 0, 0, 0, 512, 0)
    extents = []
    offset = 0
    for data, shift in zip(pieces, shifts, strict=True):
        extents.append(Extent(bench.memory(data, shift=shift), len(data), offset, device=0))
        offset += len(data)
    transfer = bench.write(bench.open(), extents)
    bench.check(transfer, *pieces)
    # From 4096 to the end of the chunk, a whole chunk, and 4096 bytes more, which are too few.
    assert transfer.cufile_bytes == 2 * MiB - 4096
    assert bench.cufile.stat("unaligned_transfers") == 0


@in_child()
def test_write_checksum_slots_are_filled(tmp_path):
    bench = Bench(tmp_path)
    data = pattern(LARGE)
    header = bytearray(4096)
    address = address_of(header)
    extents = [
        Extent(address, len(header), 0),
        Extent(bench.memory(data), LARGE, 4096, crc_offset=14, device=0),
    ]
    transfer = bench.write(bench.open(), extents)
    base.wait(transfer)
    header[14:18] = zlib.crc32(data).to_bytes(4, "little")
    content = bytes(header) + data
    assert bench.path.read_bytes() == content
    assert transfer.cufile_bytes > 0
    assert crcs(transfer.chunk_crcs()) == [
        zlib.crc32(content[begin : begin + CHUNK_BYTES])
        for begin in range(0, len(content), CHUNK_BYTES)
    ]


@in_child()
def test_write_a_slot_in_device_memory_keeps_it_from_cufile(tmp_path):
    bench = Bench(tmp_path)
    first, second = bytearray(pattern(MiB)), pattern(MiB, 2)
    first[5000:5004] = bytes(4)
    extents = [
        Extent(bench.memory(first), MiB, 0, device=0),
        Extent(bench.memory(second), MiB, MiB, crc_offset=5000, device=0),
    ]
    transfer = bench.write(bench.open(), extents)
    base.wait(transfer)
    first[5000:5004] = zlib.crc32(second).to_bytes(4, "little")
    assert bench.path.read_bytes() == bytes(first) + second
    assert transfer.cufile_bytes == MiB
    assert crcs(transfer.chunk_crcs()) == [zlib.crc32(first), zlib.crc32(second)]


@in_child()
def test_write_memory_of_two_devices(tmp_path):
    bench = Bench(tmp_path)
    pieces = [pattern(MiB + 4096, seed) for seed in range(4)]
    extents = [
        Extent(bench.memory(data, device=i % 2), len(data), i * len(data), device=i % 2)
        for i, data in enumerate(pieces)
    ]
    transfer = bench.write(bench.open(), extents)
    bench.check(transfer, *pieces)
    assert transfer.cufile_bytes > 3 * MiB
    assert bench.cufile.stat("transfers_in_wrong_context") == 0
    assert sorted(device for device, _, _ in bench.checksums.calls) == [0, 1]


@in_child()
def test_write_waits_for_the_producer(tmp_path):
    data = pattern(MiB)
    bench = Bench(tmp_path, checksums=KnownChecksums(data))
    address = bench.memory(bytes(MiB))
    with bench.driver.on(0):
        stream = bench.driver.stream()
        bench.cuda(f"hold stream={stream}")
        bench.driver.check("cuMemcpyHtoDAsync_v2", address, data, MiB, stream)
    file = bench.open()
    transfer = bench.write(
        file, [Extent(address, MiB, 0, device=0)], streams=array("Q", [0, stream])
    )
    spin_until(lambda: bench.cuda.calls("cuEventSynchronize") > 0)
    assert bench.cufile.calls("cuFileWrite") == 0
    bench.cuda(f"release stream={stream}")
    bench.check(transfer, data)
    assert transfer.cufile_bytes == MiB


@in_child()
def test_write_checksums_follow_all_producers(tmp_path):
    bench = Bench(tmp_path)
    data = pattern(MiB)
    address = bench.memory(bytes(MiB))
    with bench.driver.on(0):
        streams = [bench.driver.stream(), bench.driver.stream()]
        for i, stream in enumerate(streams):
            half = data[i * MiB // 2 : (i + 1) * MiB // 2]
            bench.driver.check(
                "cuMemcpyHtoDAsync_v2", address + i * MiB // 2, half, MiB // 2, stream
            )
    rows = array("Q", [0, streams[0], 1, 77, 0, streams[1]])
    transfer = bench.write(bench.open(), [Extent(address, MiB, 0, device=0)], streams=rows)
    bench.check(transfer, data)
    assert bench.checksums.calls == [(0, None, 1)]  # after a wait for both


@in_child()
def test_write_one_producer_is_left_to_the_kernel(tmp_path):
    bench = Bench(tmp_path)
    data = pattern(MiB)
    address = bench.memory(data)
    with bench.driver.on(0):
        stream = bench.driver.stream()
    rows = array("Q", [0, stream])
    base.wait(bench.write(bench.open(), [Extent(address, MiB, 0, device=0)], streams=rows))
    assert bench.checksums.calls == [(0, stream, 1)]


@pytest.mark.parametrize("kind", ["mapped", "managed", "pool"])
@in_child()
def test_write_memory_that_is_not_for_cufile_is_gathered(tmp_path, kind):
    bench = Bench(tmp_path)
    fit, unfit = pattern(MiB, 1), pattern(MiB, 2)
    extents = [
        Extent(bench.memory(fit), MiB, 0, device=0),
        Extent(bench.memory(unfit, kind=kind), MiB, MiB, device=0),
    ]
    file = bench.open()
    transfer = bench.write(file, extents)
    bench.check(transfer, fit, unfit)
    assert (transfer.cufile_bytes, transfer.direct_bytes) == (MiB, MiB)
    assert ("managed" if kind == "managed" else "expandable_segments") in file.cufile_skipped
    assert file.cufile_refused == ""


@in_child()
def test_write_checksums_that_are_too_few_are_rejected(tmp_path):
    bench = Bench(tmp_path)
    engine = native.Engine(io_threads=1, slab_bytes=CHUNK_BYTES, num_slabs=1)
    rows = base.pack_extents([Extent(bench.memory(pattern(LARGE)), LARGE, 0, device=0)])
    for given in (array("I", [1, 2]), array("Q", [1, 2, 3])):
        with pytest.raises(ConfigError) as raised:
            engine.write(bench.open(), rows, chunk_bytes=CHUNK_BYTES, device_crcs=given)
        assert raised.value.field == "device_crcs"


@in_child()
def test_write_without_checksums_goes_through_the_host(tmp_path):
    bench = Bench(tmp_path)
    data = pattern(LARGE)
    engine = native.Engine(io_threads=2, slab_bytes=CHUNK_BYTES, num_slabs=2)
    file = bench.open()
    assert file.attach_cufile()
    rows = base.pack_extents([Extent(bench.memory(data), LARGE, 0, device=0)])
    transfer = engine.write(file, rows, chunk_bytes=CHUNK_BYTES)
    bench.check(transfer, data)
    assert transfer.cufile_bytes == 0


@in_child()
def test_write_host_memory_does_not_touch_cufile(tmp_path):
    bench = Bench(tmp_path, is_open=False)
    data = bytearray(pattern(LARGE))
    file = bench.open()
    transfer = bench.write(file, [Extent(address_of(data), LARGE, 0)])
    bench.check(transfer, bytes(data))
    assert bench.cufile.calls("cuFileHandleRegister") == 0


@in_child()
def test_write_file_without_direct_io_goes_through_the_host(tmp_path):
    bench = Bench(tmp_path)
    data = pattern(LARGE)
    fd = os.open(bench.path, os.O_RDWR | os.O_CREAT)
    file = native.File(str(bench.path), fd)
    os.close(fd)
    transfer = bench.write(file, [Extent(bench.memory(data), LARGE, 0, device=0)])
    bench.check(transfer, data)
    assert "direct I/O" in file.cufile_refused


@in_child()
def test_read_large_memory_goes_by_cufile(tmp_path):
    bench = Bench(tmp_path)
    head, data, tail = pattern(4096, 1), pattern(LARGE, 2), pattern(1001, 3)
    written(bench, head + data + tail)
    places = [bench.memory(bytes(len(piece))) for piece in (head, data, tail)]
    extents = [
        Extent(places[0], len(head), 0, device=0),
        Extent(places[1], len(data), 4096, device=0),
        Extent(places[2], len(tail), 4096 + LARGE, device=0),
    ]
    transfer = bench.read(bench.open(), extents)
    base.wait(transfer)
    assert bench.cuda.peek(places[0], len(head)) == head
    assert bench.cuda.peek(places[1], LARGE) == data
    assert bench.cuda.peek(places[2], len(tail)) == tail
    expected = [zlib.crc32(piece) for piece in (head, data, tail)]
    assert crcs(transfer.extent_crcs()) == expected == crcs(transfer.extent_crcs())
    assert bench.checksums.calls == [(0, None, 1)]  # what passed the host has its checksum already
    # The last 4096 bytes lie in a chunk of their own, and are too few.
    assert (transfer.cufile_bytes, transfer.done_bytes) == (LARGE - 4096, transfer.total_bytes)
    assert transfer.cufile_bytes + transfer.direct_bytes + transfer.buffered_bytes == len(
        head + data + tail
    )


@in_child()
def test_read_what_is_in_the_page_cache_comes_from_there(tmp_path):
    bench = Bench(tmp_path)
    data = pattern(LARGE)
    bench.path.write_bytes(data)
    place = bench.memory(bytes(LARGE))
    transfer = bench.read(bench.open(), [Extent(place, LARGE, 0, device=0)])
    base.wait(transfer)
    assert bench.cuda.peek(place, LARGE) == data
    assert (transfer.cufile_bytes, transfer.buffered_bytes) == (0, LARGE)
    assert crcs(transfer.extent_crcs()) == [zlib.crc32(data)]
    assert bench.checksums.calls == []


@in_child()
def test_shared_engine_is_one_for_a_configuration(tmp_path):
    Bench(tmp_path)
    engine = cufile.shared_engine(Config())
    assert engine is cufile.shared_engine(Config())
    assert engine is not cufile.shared_engine(Config(), slab_bytes=64 * MiB)
    cufile._shared._forget()
    assert engine is not cufile.shared_engine(Config())
