"""Round trips of the native engine, held against a plain model in Python."""

import array
import ctypes
import os
import random
import zlib

import pytest

from gdsckpt import native

SLAB = 1 << 20
CHUNK = 1 << 16
NONE = native.NO_CRC_SLOT


class Memory:
    """A buffer with an address."""

    def __init__(self, data):
        self.buffer = ctypes.create_string_buffer(bytes(data), max(1, len(data)))
        self.nbytes = len(data)
        self.address = ctypes.addressof(self.buffer)

    def __bytes__(self):
        return self.buffer.raw[: self.nbytes]


class Opened:
    """A scratch file with a buffered and, where asked for, a direct descriptor."""

    def __init__(self, path, *, direct):
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        self.direct_fd = os.open(path, os.O_RDWR | os.O_DIRECT) if direct else -1
        self.file = native.File(str(path), self.fd, self.direct_fd, 4096)

    def read(self, nbytes, offset=0):
        return os.pread(self.fd, nbytes, offset)

    def drop_cache(self):
        os.fsync(self.fd)
        os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self):
        os.close(self.fd)
        if self.direct_fd >= 0:
            os.close(self.direct_fd)


@pytest.fixture
def engine():
    made = native.Engine(io_threads=3, slab_bytes=SLAB, num_slabs=4)
    yield made
    made.close()


@pytest.fixture(params=[False, True], ids=["buffered", "direct"])
def opened(request, tmp_path):
    made = Opened(tmp_path / "file", direct=request.param)
    yield made
    made.close()


def rows(*extents):
    """array('Q') of extents (memory, file offset, slot)."""
    flat = array.array("Q")
    for memory, offset, slot in extents:
        address = memory.address if memory.nbytes else 0
        flat.extend((address, memory.nbytes, offset, slot, native.HOST))
    return flat


def uint32s(data):
    return array.array("I", data).tolist()


def expected_file(extents):
    """The bytes that stand in the file from offset 0 after a write of these extents."""
    end = extents[-1][1] + extents[-1][0].nbytes
    whole = bytearray(end)
    for memory, offset, _ in extents:
        whole[offset : offset + memory.nbytes] = bytes(memory)
    for memory, _, slot in extents:
        if slot != NONE:
            whole[slot : slot + 4] = zlib.crc32(bytes(memory)).to_bytes(4, "little")
    return bytes(whole)


def expected_chunk_crcs(whole, begin, chunk_bytes):
    edges = [begin, *range((begin // chunk_bytes + 1) * chunk_bytes, len(whole), chunk_bytes)]
    ends = [*edges[1:], len(whole)]
    return [zlib.crc32(whole[a:b]) for a, b in zip(edges, ends, strict=True) if a < b]


def check_round_trip(engine, opened, extents, chunk_bytes=CHUNK):
    begin = extents[0][1]
    whole = expected_file(extents)
    transfer = engine.write(opened.file, rows(*extents), chunk_bytes=chunk_bytes)
    transfer.result()
    assert opened.read(len(whole) - begin, begin) == whole[begin:]
    crcs = [zlib.crc32(bytes(memory)) for memory, _, _ in extents]
    assert uint32s(transfer.extent_crcs()) == crcs
    chunk_crcs = expected_chunk_crcs(whole, begin, chunk_bytes)
    assert uint32s(transfer.chunk_crcs()) == chunk_crcs
    assert transfer.done_bytes == transfer.total_bytes == len(whole) - begin
    assert transfer.buffered_bytes + transfer.direct_bytes == transfer.total_bytes
    for is_cold in (False, True):
        if is_cold:
            opened.drop_cache()
        scan = engine.scan(opened.file, begin, len(whole), chunk_bytes=chunk_bytes)
        assert uint32s(scan.chunk_crcs()) == chunk_crcs
        opened.drop_cache()
        check_read(engine, opened, extents, whole)
    return transfer


def check_read(engine, opened, extents, whole):
    # A byte of guard on both sides of every destination.
    guarded = [(Memory(b"\xee" * (memory.nbytes + 2)), offset) for memory, offset, _ in extents]
    flat = array.array("Q")
    for (memory, offset), (source, _, _) in zip(guarded, extents, strict=True):
        flat.extend((memory.address + 1, source.nbytes, offset, NONE, native.HOST))
    transfer = engine.read(opened.file, flat, gap_bytes=4096)
    transfer.result()
    wanted = [whole[offset : offset + source.nbytes] for source, offset, _ in extents]
    got = [bytes(memory) for memory, _ in guarded]
    assert [g[1:-1] for g in got] == wanted
    assert all(g[0] == g[-1] == 0xEE for g in got)
    assert uint32s(transfer.extent_crcs()) == [zlib.crc32(w) for w in wanted]
    assert transfer.done_bytes == transfer.total_bytes == sum(len(w) for w in wanted)
    assert transfer.buffered_bytes + transfer.direct_bytes == transfer.total_bytes


def random_extents(seed):
    """Headers with slots and payloads, gaps now and then, like a zip file but wilder."""
    rng = random.Random(seed)
    offset = rng.choice([0, 1, 4095, 4096, CHUNK - 2, 3 * CHUNK + 17])
    extents = []
    for _ in range(rng.randrange(1, 40)):
        offset += rng.choice([0, 0, 1, 64, 5000, rng.randrange(3 * CHUNK)])
        header = bytearray(rng.randbytes(rng.randrange(30, 100)))
        slot_at = rng.randrange(len(header) - 3)
        header[slot_at : slot_at + 4] = bytes(4)
        extents.append((Memory(header), offset, NONE))
        slot = offset + slot_at if rng.random() < 0.8 else NONE
        offset += len(header) + rng.choice([0, 0, 7, 4096])
        nbytes = rng.choice([0, 1, rng.randrange(9000), rng.randrange(4 * CHUNK), CHUNK])
        extents.append((Memory(rng.randbytes(nbytes)), offset, slot))
        offset += nbytes
    return extents


@pytest.mark.parametrize("seed", range(12))
def test_round_trip_of_random_extents(engine, opened, seed):
    check_round_trip(engine, opened, random_extents(seed))


@pytest.mark.parametrize("chunk_bytes", [4096, 12288, SLAB])
def test_round_trip_with_other_chunks(engine, opened, chunk_bytes):
    check_round_trip(engine, opened, random_extents(99), chunk_bytes)


@pytest.mark.parametrize(
    ("slot", "payload_offset"),
    [
        (10, 100),  # same window
        (10, CHUNK + 5),  # an earlier window
        (CHUNK - 1, CHUNK + 8),  # straddles the edge by one byte
        (CHUNK - 3, 3 * CHUNK),  # by three
    ],
)
def test_write_fills_the_slot(engine, opened, slot, payload_offset):
    header = Memory(bytes(min(payload_offset, CHUNK + 4)))
    payload = Memory(random.Random(3).randbytes(500))
    check_round_trip(engine, opened, [(header, 0, NONE), (payload, payload_offset, slot)])


def test_write_fills_a_slot_of_an_extent_that_crosses_windows(engine, opened):
    payload = Memory(random.Random(4).randbytes(5 * CHUNK + 3))
    check_round_trip(engine, opened, [(Memory(bytes(30)), 0, NONE), (payload, 64, 14)])


def test_write_fills_a_slot_in_a_gap(engine, opened):
    extents = [(Memory(b"head"), 0, NONE), (Memory(b"payload"), 50, 20)]
    check_round_trip(engine, opened, extents)


def test_write_leaves_the_rest_of_the_file_alone(engine, opened):
    os.pwrite(opened.fd, b"\xaa" * 300_000, 0)
    payload = random.Random(5).randbytes(150_001)
    memory = Memory(payload)
    transfer = engine.write(opened.file, rows((memory, 70_001, NONE)), chunk_bytes=CHUNK)
    transfer.result()
    whole = opened.read(300_000)
    assert whole == b"\xaa" * 70_001 + payload + b"\xaa" * (300_000 - 220_002)


def test_write_direct_sends_only_the_unaligned_ends_buffered(engine, tmp_path):
    opened = Opened(tmp_path / "file", direct=True)
    payload = Memory(random.Random(6).randbytes(5 * CHUNK))
    transfer = engine.write(opened.file, rows((payload, 100, NONE)), chunk_bytes=CHUNK)
    transfer.result()
    if opened.file.direct_refused:
        pytest.skip(f"this file system refuses direct I/O: {opened.file.direct_refused}")
    assert transfer.buffered_bytes == 4096 - 100 + 100
    assert transfer.direct_bytes == 5 * CHUNK - 4096
    opened.close()


def test_read_of_cached_bytes_goes_through_the_cache(engine, tmp_path):
    opened = Opened(tmp_path / "file", direct=True)
    os.pwrite(opened.fd, bytes(200_000), 0)
    target = Memory(b"x" * 200_000)
    transfer = engine.read(opened.file, rows((target, 0, NONE)))
    transfer.result()
    assert transfer.buffered_bytes == 200_000
    assert bytes(target) == bytes(200_000)
    opened.close()


def test_transfers_queued_at_once_all_arrive(engine, tmp_path):
    payloads = [random.Random(seed).randbytes(3 * CHUNK + seed) for seed in range(8)]
    memories = [Memory(payload) for payload in payloads]
    files = [Opened(tmp_path / str(i), direct=i % 2 == 0) for i in range(len(payloads))]
    transfers = [
        engine.write(opened.file, rows((memory, 0, NONE)), chunk_bytes=CHUNK)
        for opened, memory in zip(files, memories, strict=True)
    ]
    for transfer, opened, payload in zip(transfers, files, payloads, strict=True):
        transfer.result()
        assert opened.read(len(payload) + 1) == payload
        opened.close()


def test_write_of_many_tiny_extents(engine, opened):
    payload = random.Random(7).randbytes(4096)
    memory = Memory(payload)
    num_extents = 100_000
    flat = array.array("Q")
    for i in range(num_extents):
        slot = NONE if i % 2 == 0 else (i - 1) * 128 + 100
        flat.extend((memory.address, 64, i * 128, slot, native.HOST))
    transfer = engine.write(opened.file, flat, chunk_bytes=CHUNK)
    transfer.result()
    crc = zlib.crc32(payload[:64])
    assert set(uint32s(transfer.extent_crcs())) == {crc}
    pair = payload[:64] + bytes(36) + crc.to_bytes(4, "little") + bytes(24) + payload[:64]
    whole = (pair + bytes(64)) * (num_extents // 2)
    whole = whole[:-64]
    assert opened.read(len(whole) + 1) == whole
    assert uint32s(transfer.chunk_crcs()) == expected_chunk_crcs(whole, 0, CHUNK)


def test_transfer_of_nothing_ends_at_once(engine, opened):
    for transfer in (
        engine.write(opened.file, array.array("Q"), chunk_bytes=CHUNK),
        engine.write(opened.file, rows((Memory(b""), 7, NONE)), chunk_bytes=CHUNK),
        engine.read(opened.file, rows((Memory(b""), 7, NONE))),
        engine.scan(opened.file, 9, 9, chunk_bytes=CHUNK),
    ):
        assert transfer.wait(0)
        transfer.result()
        assert transfer.total_bytes == 0


def test_wait_returns_whether_the_transfer_has_ended(engine, opened):
    memory = Memory(random.Random(8).randbytes(20 * CHUNK))
    transfer = engine.write(opened.file, rows((memory, 0, NONE)), chunk_bytes=CHUNK)
    assert transfer.wait(float("inf"))
    assert transfer.wait(-1.0)


def test_fallocate_reserves_space(opened):
    assert native.fallocate(opened.fd, 0)
    if not native.fallocate(opened.fd, 100_000):
        pytest.skip("this file system has no fallocate")
    assert os.fstat(opened.fd).st_size == 100_000


def test_direct_alignment_is_a_power_of_two_or_zero(opened):
    alignment = native.direct_alignment(opened.fd)
    assert alignment & (alignment - 1) == 0
    assert alignment <= 65536


def test_populate_takes_any_range_and_keeps_its_content():
    content = bytes(range(256)) * 400
    memory = Memory(content)
    native.populate(memory.address, memory.nbytes)
    native.populate(memory.address, 1)
    native.populate(0, 0)
    assert ctypes.string_at(memory.address, memory.nbytes) == content


def test_advise_hugepages_takes_any_range():
    memory = Memory(bytes(100_000))
    native.advise_hugepages(memory.address, memory.nbytes)
    native.advise_hugepages(memory.address, 1)
