"""States that hold arrays on GPUs: saved without a host copy, opened by torch, filled in place."""

import io
import os
import threading
import time

import numpy
import pytest
import torch
from device_arrays import FakeArray
from lanes import pattern

import gdsckpt
from gdsckpt.errors import (
    ConfigError,
    CudaError,
    EngineUnavailableError,
    StateMismatchError,
    TornSnapshotError,
)

pytestmark = pytest.mark.lanes("pinned")

LARGE = 3 * (1 << 20) + 40


def array(lane, nbytes, seed=0, **options):
    return FakeArray(lane.cuda, pattern(nbytes, seed), **options)


def stock(path):
    return torch.load(path, map_location="cpu", weights_only=True)


def bytes_of(tensor):
    return tensor.contiguous().numpy().tobytes()


def test_save_device_arrays_open_in_stock_torch(lane, tmp_path):
    state = {
        "large": array(lane, LARGE, 1, shape=(LARGE // 4,), typestr="<f4"),
        "nest": [array(lane, 24, 2, shape=(2, 3), typestr="<i4"), {"x": 1, "t": torch.arange(9)}],
        "half": array(lane, 10, 3, shape=(5,), typestr="<f2"),
        "odd": array(lane, 7, 4, offset=3),
        "none": FakeArray(lane.cuda, b"", (0, 4), "<f8"),
        "scalar": array(lane, 8, 5, shape=(), typestr="<i8"),
        "unsigned": array(lane, 8, 6, shape=(2,), typestr="<u4"),
    }
    path = tmp_path / "state.pt"
    report = gdsckpt.save(state, path)
    loaded = stock(path)
    assert bytes_of(loaded["large"]) == pattern(LARGE, 1)
    assert loaded["large"].dtype == torch.float32
    assert (
        loaded["nest"][0].tolist() == numpy.frombuffer(pattern(24, 2), "<i4").reshape(2, 3).tolist()
    )
    assert loaded["nest"][1]["t"].tolist() == list(range(9))
    assert (loaded["half"].dtype, loaded["half"].shape) == (torch.float16, (5,))
    assert bytes_of(loaded["odd"]) == pattern(7, 4)
    assert loaded["none"].shape == (0, 4)
    assert loaded["scalar"].shape == ()
    assert loaded["unsigned"].dtype == torch.uint32
    assert report.num_tensors == 8
    assert gdsckpt.verify(path).ok
    tensors = gdsckpt.load(path, map_location="cpu")
    assert bytes_of(tensors["large"]) == pattern(LARGE, 1)


def test_save_copies_each_device_byte_once_and_from_page_locked_memory(lane, tmp_path):
    state = {"a": array(lane, LARGE), "b": array(lane, 999, device=1)}
    gdsckpt.save(state, tmp_path / "state.pt")
    assert lane.cuda.stat("bytes.dtoh") == LARGE + 999
    assert lane.cuda.stat("pageable_copies") == 0


def test_save_views_with_gaps_keep_their_strides(lane, tmp_path):
    view = FakeArray(lane.cuda, pattern(96), (3, 2), "<i4", strides=(32, 8))
    gdsckpt.save({"v": view}, tmp_path / "state.pt")
    whole = numpy.frombuffer(pattern(96), "<i4").reshape(3, 8)
    assert stock(tmp_path / "state.pt")["v"].tolist() == whole[:, 0:4:2].tolist()


def test_save_the_same_array_twice_stores_it_once(lane, tmp_path):
    one = array(lane, LARGE)
    report = gdsckpt.save({"a": one, "b": one}, tmp_path / "state.pt")
    assert report.payload_bytes == LARGE
    short = FakeArray(lane.cuda, pattern(8))
    longer = FakeArray(lane.cuda, pattern(16))
    longer.address = short.address  # two lengths of one memory are two things
    with pytest.raises(CudaError):
        gdsckpt.save({"a": short, "b": longer}, tmp_path / "other.pt")


@pytest.mark.parametrize("late_device", [0, 1])
def test_save_waits_for_the_stream_that_makes_an_array(lane, tmp_path, late_device):
    driver = lane.driver
    with driver.on(late_device):
        producer = driver.stream()
        source = lane.cuda.alloc(LARGE, late_device)
        lane.cuda.poke(source, pattern(LARGE, 7))
        made = array(lane, LARGE, 1, device=late_device, stream=producer)
        lane.cuda(f"hold stream={producer}")
        driver.check("cuMemcpyDtoDAsync_v2", made.address, source, LARGE, producer)
    path = tmp_path / "state.pt"
    saving = threading.Thread(target=gdsckpt.save, args=({"a": made}, path))
    saving.start()
    while lane.cuda.calls("cuStreamWaitEvent") == 0:
        time.sleep(0.001)
    lane.cuda(f"release stream={producer}")
    saving.join()
    assert bytes_of(stock(path)["a"]) == pattern(LARGE, 7)


def test_save_to_a_file_object_and_a_directory(lane, tmp_path):
    state = {"a": array(lane, LARGE, 3), "b": torch.ones(5)}
    sink = io.BytesIO()
    gdsckpt.save(state, sink)
    loaded = torch.load(io.BytesIO(sink.getvalue()), map_location="cpu", weights_only=True)
    assert bytes_of(loaded["a"]) == pattern(LARGE, 3)
    gdsckpt.save_checkpoint(state, tmp_path / "step", step=4)
    assert gdsckpt.verify(tmp_path / "step").ok


def test_load_into_device_arrays_fills_them(lane, tmp_path):
    path = tmp_path / "state.pt"
    values = {
        "large": torch.frombuffer(bytearray(pattern(LARGE, 1)), dtype=torch.float32),
        "small": torch.arange(6).reshape(2, 3),
        "view": torch.arange(100)[10:13],
        "step": 3,
    }
    gdsckpt.save(values, path)
    into = {
        "large": FakeArray(lane.cuda, bytes(LARGE), (LARGE // 4,), "<f4", device=1, offset=4),
        "small": FakeArray(lane.cuda, bytes(48), (2, 3), "<i8"),
        "view": FakeArray(lane.cuda, bytes(24), (3,), "<i8"),
        "step": 0,
    }
    assert gdsckpt.load(path, into=into) is into
    assert into["large"].read() == pattern(LARGE, 1)
    assert into["small"].read() == values["small"].numpy().tobytes()
    assert into["view"].read() == values["view"].numpy().tobytes()
    assert into["step"] == 3


def test_load_into_device_arrays_converts_the_type(lane, tmp_path):
    gdsckpt.save({"a": torch.arange(5)}, tmp_path / "state.pt")
    into = {"a": FakeArray(lane.cuda, bytes(20), (5,), "<f4")}
    gdsckpt.load(tmp_path / "state.pt", into=into)
    assert numpy.frombuffer(into["a"].read(), "<f4").tolist() == [0, 1, 2, 3, 4]


def test_load_into_an_array_with_gaps_or_another_shape_changes_nothing(lane, tmp_path):
    gdsckpt.save({"a": torch.arange(6).reshape(3, 2)}, tmp_path / "state.pt")
    gaps = FakeArray(lane.cuda, bytes(192), (3, 2), "<i8", strides=(64, 16))
    other = FakeArray(lane.cuda, bytes(48), (2, 3), "<i8")
    for into in (gaps, other):
        with pytest.raises(StateMismatchError):
            gdsckpt.load(tmp_path / "state.pt", into={"a": into})
        assert set(into.read()) == {0}


def test_save_of_an_array_that_was_freed_raises_and_leaves_nothing(lane, tmp_path):
    path = tmp_path / "state.pt"
    gdsckpt.save({"old": 1}, path)
    gone = array(lane, LARGE)
    lane.cuda("fault cuMemcpyDtoHAsync code=700")
    with pytest.raises(CudaError) as caught:
        gdsckpt.save({"a": gone}, path)
    assert (caught.value.op, caught.value.code) == ("cuMemcpyDtoHAsync", 700)
    assert stock(path) == {"old": 1}
    assert os.listdir(tmp_path) == ["state.pt"]  # noqa: PTH208 - names only


def test_save_with_a_lost_device_raises_cuda_error(lane, tmp_path):
    made = {"a": array(lane, LARGE), "b": array(lane, 99, device=1)}
    lane.cuda("lose device=1 code=719")
    with pytest.raises(CudaError) as caught:
        gdsckpt.save(made, tmp_path / "state.pt")
    assert caught.value.code == 719
    assert os.listdir(tmp_path) == []  # noqa: PTH208


def test_load_checks_the_bytes_before_it_says_that_all_is_well(lane, tmp_path):
    path = tmp_path / "state.pt"
    gdsckpt.save({"a": array(lane, LARGE, 1)}, path)
    raw = bytearray(path.read_bytes())
    raw[raw.index(pattern(64, 1)) + 1000] ^= 4
    path.write_bytes(raw)
    with pytest.raises(gdsckpt.errors.ChecksumError) as caught:
        gdsckpt.load(path, into={"a": array(lane, LARGE)})
    assert caught.value.fqn == "a"


class Described:
    """An array that says of itself what a test wants it to say."""

    def __init__(self, **interface):
        self._interface = {"shape": (2,), "typestr": "<f4", "version": 3, **interface}

    @property
    def __cuda_array_interface__(self):
        return self._interface


@pytest.mark.parametrize(
    "interface",
    [
        {"typestr": "|V2"},
        {"typestr": ">f4"},
        {"strides": (-4,)},
        {"strides": (6,)},
        {"mask": object()},
        {"data": None},
        {"shape": None},
    ],
)
def test_save_of_an_array_that_torch_cannot_hold_raises_config_error(lane, tmp_path, interface):
    room = array(lane, 64)
    made = Described(**{"data": (room.address, False), **interface})
    with pytest.raises(ConfigError) as caught:
        gdsckpt.save({"a": made}, tmp_path / "state.pt")
    assert caught.value.field == "obj"


def test_save_of_an_address_that_is_no_device_memory_raises_cuda_error(lane, tmp_path):
    made = Described(data=(0x1000, False))
    with pytest.raises(CudaError):
        gdsckpt.save({"a": made}, tmp_path / "state.pt")


@pytest.mark.lanes("host")
def test_save_of_a_device_array_without_a_driver_says_why(lane, tmp_path):
    with pytest.raises(EngineUnavailableError) as caught:
        gdsckpt.save({"a": Described(data=(0x1000, False))}, tmp_path / "state.pt")
    assert "there-is-no-libcuda.so" in caught.value.reasons[0]


@pytest.mark.lanes("host")
@pytest.mark.parametrize("nbytes", [0, 64 << 10, 4 << 20])
def test_save_of_a_storage_that_is_resized_meanwhile_is_torn(lane, tmp_path, nbytes):
    path = tmp_path / "state.pt"
    gdsckpt.save({"old": 1}, path)
    tensor = torch.ones(1 << 18)

    def resize(_done, _total):
        tensor.untyped_storage().resize_(nbytes)

    with pytest.raises(TornSnapshotError) as caught:
        gdsckpt.save({"model": {"w": tensor}}, path, progress=resize)
    assert caught.value.names == ("model.w",)
    assert stock(path) == {"old": 1}
