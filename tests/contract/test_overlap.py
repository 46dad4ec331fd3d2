"""The pinned pipeline overlaps: copies, checksums and writes are under way at the same time."""

import ctypes
import os
from pathlib import Path

import pytest
from lanes import extent, finish, pattern

from gdsckpt import native

pytestmark = [
    pytest.mark.lanes("pinned"),
    pytest.mark.stand_ins(stages=True),
    pytest.mark.skipif(not native.nvtx_compiled(), reason="built without NVTX's headers"),
]

NUM_WINDOWS = 24
COPY, CHECKSUM, WRITE = range(3)


class Clock:
    """The clock of stage_clock.cpp: each stage of each window takes one tick of it."""

    def __init__(self):
        self._library = ctypes.CDLL(os.environ["NVTX_INJECTION64_PATH"])
        for name in ("stage_clock_now", "stage_clock_done"):
            getattr(self._library, name).restype = ctypes.c_long

    @property
    def now(self):
        return self._library.stage_clock_now()

    def done(self, stage):
        return self._library.stage_clock_done(stage)


def ticks_of_write(lane, num_threads):
    """Write windows, and give the ticks that it took."""
    lane.cuda("set late_us=0")
    data = pattern(NUM_WINDOWS * lane.chunk_bytes)
    memory, file = lane.memory(data), lane.file()
    engine = lane.engine(io_threads=num_threads, num_slabs=num_threads)
    clock = Clock()
    finish(lane.write(engine, file, [extent(memory)]))
    assert Path(file.path).read_bytes() == data
    assert [clock.done(stage) for stage in (COPY, CHECKSUM, WRITE)] == [NUM_WINDOWS] * 3
    return clock.now


def test_three_stages_are_busy_at_once(lane):
    ticks = ticks_of_write(lane, 4)
    assert NUM_WINDOWS <= ticks <= 1.3 * NUM_WINDOWS, f"{ticks} ticks for {NUM_WINDOWS} windows"


def test_one_thread_does_one_stage_at_a_time(lane):
    """What the test above would see of a pipeline that does not overlap."""
    assert ticks_of_write(lane, 1) == 3 * NUM_WINDOWS
