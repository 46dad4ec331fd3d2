"""Arrays on GPUs in snapshots, over stand-ins: copied after their streams, guarded, not cloned."""

import pytest
import torch
from choosing import expect_stand_ins
from cufile_bench import in_child, pattern
from device_arrays import FakeArray
from fake_cuda.driver import Driver
from fake_cuda.stand_ins import StandIns
from snapshots import MIB, check, slots, snap, write

from gdsckpt.errors import TornSnapshotError

DATA = pattern(2 * MIB + 5000)


def cuda():
    expect_stand_ins()
    return StandIns.loaded().cuda


def bytes_of(tensor):
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


@in_child()
def test_array_is_copied_to_the_slot(tmp_path):
    state = {"w": FakeArray(cuda(), DATA), "host": torch.arange(5)}
    snapshot = snap(state, "host")
    assert (snapshot.live_bytes, snapshot.copied_bytes) == (0, len(DATA) + 40)
    state["w"].cuda.poke(state["w"].address, bytes(len(DATA)))
    loaded = write(snapshot, tmp_path / "a.pt", map_location="cpu")
    assert bytes_of(loaded["w"]) == DATA
    assert loaded["host"].tolist() == list(range(5))


@in_child()
def test_array_is_copied_after_what_its_stream_makes(tmp_path):
    """Streams of the stand-in run late: a copy that does not wait finds the bytes of before."""
    library = cuda()
    driver = Driver(library)
    with driver.on(0):
        stream = driver.stream()
        array = FakeArray(library, bytes(len(DATA)), stream=stream)
        source = FakeArray(library, DATA)
        driver.check("cuMemcpyDtoDAsync_v2", array.address, source.address, len(DATA), stream)
    snapshot = snap({"w": array}, "host")
    assert bytes_of(write(snapshot, tmp_path / "a.pt", map_location="cpu")["w"]) == DATA


@in_child()
def test_array_that_is_read_live_is_guarded(tmp_path):
    state = {"w": FakeArray(cuda(), DATA)}
    snapshot = snap(state, "host", into=slots(max_bytes=0))
    assert snapshot.live_end == 1
    check(snapshot)
    state["w"].cuda.poke(state["w"].address, bytes(len(DATA)))
    with pytest.raises(TornSnapshotError) as caught:
        write(snapshot, tmp_path / "a.pt")
    assert caught.value.names == ("w",)


@in_child()
def test_array_is_not_cloned_on_its_gpu():
    """It is not torch's to allocate there."""
    state = {"w": FakeArray(cuda(), DATA)}
    snapshot = snap(state, "device")
    assert (snapshot.mode, snapshot.copied_bytes) == ("host", len(DATA))
    check(snapshot)
