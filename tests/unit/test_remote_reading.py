import ctypes
import random
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from remote_cases import MiB

from gdsckpt import native
from gdsckpt.engine import base
from gdsckpt.engine.base import Extent
from gdsckpt.errors import EngineUnavailableError, StoreError
from gdsckpt.format.checksum import unpack_crcs
from gdsckpt.remote.engine import ObjectEngine
from gdsckpt.remote.objects import RemoteObject
from gdsckpt.remote.reading import GAP_BYTES_MAX, SMALL_BYTES, group_extents, memory_at
from gdsckpt.store.answers import Answer
from gdsckpt.testing.faulty_store import Fault, FaultyStore

DATA = random.Random(2).randbytes(40 * MiB)
NO_FILE = native.File("an object", 0)


def extents_of(*spans):
    return [Extent(1, nbytes, offset) for offset, nbytes in spans]


def test_group_extents_puts_small_neighbours_together():
    assert group_extents(extents_of((0, 10), (20, 10), (30, 0), (100, 5))) == [[0, 1, 3]]


def test_group_extents_sorts_by_offset():
    assert group_extents(extents_of((100, 5), (0, 10))) == [[1, 0]]


def test_group_extents_leaves_large_ones_alone():
    assert group_extents(extents_of((0, 10), (10, SMALL_BYTES), (10 + SMALL_BYTES, 10))) == [
        [0],
        [1],
        [2],
    ]


def test_group_extents_ends_a_group_at_a_large_gap():
    far = 10 + GAP_BYTES_MAX
    assert group_extents(extents_of((0, 10), (far, 10))) == [[0, 1]]
    assert group_extents(extents_of((0, 10), (far + 1, 10))) == [[0], [1]]


@given(st.lists(st.tuples(st.integers(0, 60 * MiB), st.integers(0, 6 * MiB)), max_size=40))
def test_group_extents_takes_each_extent_once_in_requests_of_bounded_size(spans):
    extents = extents_of(*spans)
    groups = group_extents(extents)
    wanted = [n for n, (_, nbytes) in enumerate(spans) if nbytes]
    assert sorted(n for group in groups for n in group) == wanted
    for group in groups:
        if len(group) > 1:
            begin = min(extents[n].file_offset for n in group)
            end = max(extents[n].file_offset + extents[n].nbytes for n in group)
            assert end - begin <= 16 * MiB
            assert all(extents[n].nbytes < SMALL_BYTES for n in group)


@pytest.fixture
def stored(bucket):
    bucket.put("data", DATA)
    return bucket.store


def read(engine, spans):
    """Read spans into fresh memory; gives their bytes and the transfer's checksums."""
    buffers = [ctypes.create_string_buffer(max(1, nbytes)) for _, nbytes in spans]
    rows = base.pack_extents(
        [
            Extent(ctypes.addressof(buffer), nbytes, offset)
            for buffer, (offset, nbytes) in zip(buffers, spans, strict=True)
        ]
    )
    transfer = engine.read(NO_FILE, rows, streams=base.NO_STREAMS, owner=buffers)
    base.wait(transfer)
    found = [buffer.raw[:nbytes] for buffer, (_, nbytes) in zip(buffers, spans, strict=True)]
    return found, list(unpack_crcs(transfer.extent_crcs()))


SPANS = [(5, 100), (200, 3), (300, 0), (MiB, 20 * MiB + 7), (39 * MiB, MiB), (30 * MiB, 5 * MiB)]


def test_engine_read_gives_the_bytes_and_their_checksums(stored, crew):
    engine = ObjectEngine(RemoteObject.find(stored, "data"), crew)
    found, crcs = read(engine, SPANS)
    assert found == [DATA[offset : offset + nbytes] for offset, nbytes in SPANS]
    assert crcs == [zlib.crc32(each) for each in found]


@pytest.mark.parametrize(
    ("begin", "end", "chunk_bytes"),
    [(0, 40 * MiB, MiB), (0, 40 * MiB, 64 * MiB), (3, 40 * MiB - 5, 24 * MiB), (7, 7, MiB)],
)
def test_engine_scan_gives_the_checksum_of_each_chunk(stored, crew, begin, end, chunk_bytes):
    engine = ObjectEngine(RemoteObject.find(stored, "data"), crew)
    transfer = engine.scan(NO_FILE, begin, end, chunk_bytes=chunk_bytes)
    base.wait(transfer)
    edges = [begin, *range((begin // chunk_bytes + 1) * chunk_bytes, end, chunk_bytes), end]
    expected = [zlib.crc32(DATA[a:b]) for a, b in zip(edges, edges[1:], strict=False) if b > a]
    assert list(unpack_crcs(transfer.chunk_crcs())) == expected
    assert transfer.done_bytes == end - begin


def test_engine_read_failure_is_raised_by_the_wait(stored, crew):
    faulty = FaultyStore(stored, Fault("get_range", Answer(500, "InternalError"), skip=1))
    engine = ObjectEngine(RemoteObject.find(faulty, "data"), crew)
    with pytest.raises(StoreError) as caught:
        read(engine, SPANS)
    assert caught.value.status == 500


def test_engine_read_of_a_replaced_object_says_so(stored, bucket, crew):
    engine = ObjectEngine(RemoteObject.find(stored, "data"), crew)
    bucket.put("data", DATA[::-1])
    with pytest.raises(StoreError, match="was replaced while it was read") as caught:
        read(engine, SPANS)
    assert caught.value.status == 412


def test_engine_write_is_refused(stored, crew):
    engine = ObjectEngine(RemoteObject.find(stored, "data"), crew)
    with pytest.raises(EngineUnavailableError):
        engine.write(
            NO_FILE,
            base.pack_extents([]),
            chunk_bytes=MiB,
            streams=base.NO_STREAMS,
            owner=None,
        )


def test_memory_at_is_the_memory_itself():
    buffer = ctypes.create_string_buffer(b"abcdef")
    memory_at(ctypes.addressof(buffer) + 2, 2)[:] = b"XY"
    assert buffer.value == b"abXYef"
