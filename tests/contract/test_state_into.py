"""What of device arrays ``into=`` may fill."""

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
