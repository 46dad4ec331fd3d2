"""What of device arrays ``into=`` may fill."""

import threading
import time

import numpy
import pytest
import torch
from device_arrays import FakeArray

import gdsckpt
from gdsckpt.errors import StateMismatchError

pytestmark = pytest.mark.lanes("pinned")


class ReadOnly(FakeArray):
    """As JAX's arrays say of themselves."""

    @property
    def __cuda_array_interface__(self):
        return super().__cuda_array_interface__ | {"data": (self.address, True)}


def test_load_into_a_read_only_array_changes_nothing(lane, tmp_path):
    gdsckpt.save({"a": torch.ones(6)}, tmp_path / "state.pt")
    into = {"a": ReadOnly(lane.cuda, bytes(24), (6,), "<f4")}
    with pytest.raises(StateMismatchError, match="a is a read-only array here"):
        gdsckpt.load(tmp_path / "state.pt", into=into)
    assert into["a"].read() == bytes(24)
    gdsckpt.save(into, tmp_path / "copy.pt")  # reading it is fine


def test_load_with_a_conversion_waits_for_the_stream_that_still_writes_to_the_array(lane, tmp_path):
    path = tmp_path / "state.pt"
    gdsckpt.save({"a": torch.arange(5)}, path)
    driver = lane.driver
    with driver.on(1):
        producer = driver.stream()
        source = lane.cuda.alloc(20, 1)
        lane.cuda.poke(source, b"\xee" * 20)
        into = {"a": FakeArray(lane.cuda, bytes(20), (5,), "<f4", device=1, stream=producer)}
        lane.cuda(f"hold stream={producer}")
        driver.check("cuMemcpyDtoDAsync_v2", into["a"].address, source, 20, producer)
    loading = threading.Thread(target=gdsckpt.load, args=(path,), kwargs={"into": into})
    loading.start()
    while lane.cuda.calls("cuStreamWaitEvent") == 0 and loading.is_alive():
        time.sleep(0.001)
    lane.cuda(f"release stream={producer}")
    loading.join()
    with driver.on(1):
        driver.check("cuStreamSynchronize", producer)
    assert numpy.frombuffer(into["a"].read(), "<f4").tolist() == [0, 1, 2, 3, 4]
