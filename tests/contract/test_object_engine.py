"""The engine of objects: reads to host memory and to the memory of stand-in GPUs."""

import itertools
import zlib
from array import array

import pytest
from lanes import MiB, crcs, extent, finish, pattern, wait_for_calls

from gdsckpt import native
from gdsckpt.engine import base
from gdsckpt.remote.crew import Crew
from gdsckpt.remote.engine import ObjectEngine
from gdsckpt.remote.objects import RemoteObject
from gdsckpt.store.memory import MemoryStore

pytestmark = pytest.mark.lanes("host", "pinned")

DATA = pattern(6 * MiB) * 4


def engine_of(lane, data=DATA):
    """Make the engine of an object, and a stand-in for the file that it is not."""
    store = MemoryStore("objects")
    store.put("data", memoryview(data), crc32=native.crc32(data))
    crew = Crew(3)
    lane._stack.callback(crew.close)
    return ObjectEngine(RemoteObject.find(store, "data"), crew), lane.file(b"")


def test_object_read_fills_memory_large_and_small(lane):
    lane.engine()  # loads the lane's driver
    engine, file = engine_of(lane)
    spans = [(5, 100), (300, 70_000), (MiB, 20 * MiB + 7), (22 * MiB, 0), (23 * MiB, MiB)]
    memories = [lane.memory(bytes(nbytes)) for _, nbytes in spans]
    extents = [
        extent(memory, file_offset=offset)
        for memory, (offset, _) in zip(memories, spans, strict=True)
    ]
    transfer = lane.read(engine, file, extents)
    finish(transfer)
    expected = [DATA[offset : offset + nbytes] for offset, nbytes in spans]
    assert [memory.data() for memory in memories] == expected
    assert all(memory.is_guarded() for memory in memories)
    assert crcs(transfer.extent_crcs()) == [zlib.crc32(each) for each in expected]


@pytest.mark.lanes("pinned")
def test_object_read_comes_after_what_the_consumer_has_queued(lane):
    lane.engine()
    engine, file = engine_of(lane)
    cuda, driver = lane.cuda, lane.driver
    memory, elsewhere = lane.memory(pattern(200_000, 1)), lane.memory(bytes(200_000))
    with driver.on(0):
        consumer = driver.stream()
        cuda(f"hold stream={consumer} device=0; delay dtod us=20000; set late_us=0")
        driver.check("cuMemcpyDtoDAsync_v2", elsewhere.address, memory.address, 200_000, consumer)
        rows = base.pack_extents([extent(memory, file_offset=0)])
        streams = array("Q", itertools.chain((0, consumer)))
        transfer = engine.read(file, rows, streams=streams, owner=None)
        wait_for_calls(cuda, "cuEventSynchronize", 1)
        cuda(f"release stream={consumer} device=0")
    finish(transfer)
    assert elsewhere.data() == pattern(200_000, 1)
    assert memory.data() == DATA[:200_000]
