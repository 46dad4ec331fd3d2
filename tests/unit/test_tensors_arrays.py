"""What an array says of itself, before anything of CUDA is asked."""

import pickle

import pytest
import torch

import gdsckpt
from gdsckpt.errors import ConfigError


class Described:
    """An array that says of itself what a test wants it to say."""

    def __init__(self, **interface):
        described = {"shape": (2,), "typestr": "<f4", "version": 3, "data": (1 << 20, False)}
        self._interface = described | interface

    @property
    def __cuda_array_interface__(self):
        return self._interface


@pytest.mark.parametrize(
    "interface",
    [
        {"data": (-4096, False)},
        {"data": (2**64 - 4, False)},
        {"data": (2**70, False)},
        {"shape": (-2,)},
        {"shape": (-2, -3)},
        {"shape": (2**62, 2**62)},
        {"shape": (2**61,)},
        {"shape": (2, 2), "strides": (2**63, 4)},
        {"shape": (2, 2), "strides": (4,)},
        {"stream": -1},
        {"stream": 2**70},
    ],
    ids=str,
)
def test_save_of_an_array_that_no_memory_can_be_raises_config_error(tmp_path, interface):
    with pytest.raises(ConfigError) as caught:
        gdsckpt.save({"a": Described(**interface)}, tmp_path / "state.pt")
    assert caught.value.field == "obj"
    assert "Described cannot be saved" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


class OnTheHost:
    """As JAX's arrays: the class has the interface, an array on the host has none."""

    def __init__(self, value):
        self.value = value

    @property
    def __cuda_array_interface__(self):
        raise AttributeError("only defined for NVIDIA GPU buffers")

    def __dlpack__(self, **_options):
        raise BufferError

    def __dlpack_device__(self):
        return (1, 0)


class OfSeveralDevices(OnTheHost):
    def __dlpack_device__(self):
        raise BufferError("not for sharded arrays")


@pytest.mark.parametrize("kind", [OnTheHost, OfSeveralDevices])
def test_arrays_that_are_not_on_a_gpu_are_pickled_as_any_object(tmp_path, kind):
    path = tmp_path / "state.pt"
    gdsckpt.save({"a": kind(7), "t": torch.ones(2)}, path)
    assert torch.load(path, weights_only=False, pickle_module=pickle)["a"].value == 7
