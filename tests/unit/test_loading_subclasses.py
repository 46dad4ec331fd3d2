import subprocess
import sys
import textwrap

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

import gdsckpt
from gdsckpt.errors import ChecksumError


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "a.pt"
    gdsckpt.save({"t": TwoTensor(torch.arange(200_000.0), torch.ones(200_000))}, path)
    return path


@pytest.mark.parametrize("map_location", [None, "cpu", torch.device("cpu"), {"cpu": "cpu"}])
def test_load_wrapper_subclass_equals_torch(saved, map_location):
    loaded = gdsckpt.load(saved, map_location, weights_only=False)["t"]
    stock = torch.load(saved, map_location, weights_only=False)["t"]
    assert type(loaded) is type(stock) is TwoTensor
    assert torch.equal(loaded.a, torch.arange(200_000.0))
    assert torch.equal(loaded.b, torch.ones(200_000))


def test_load_damaged_wrapper_subclass_names_its_part(saved):
    with saved.open("r+b") as file:
        file.seek(5000)
        file.write(b"\xff\xff\xff\xff")
    with pytest.raises(ChecksumError) as caught:
        gdsckpt.load(saved, weights_only=False)
    assert caught.value.fqn == "t.a"


def test_load_keys_of_wrapper_subclass(saved):
    loaded = gdsckpt.load(saved, keys="t", weights_only=False)["t"]
    assert torch.equal(loaded.a, torch.arange(200_000.0))


def test_load_distributed_tensor_equals_torch(tmp_path):
    code = """
        import sys, torch, gdsckpt
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Shard, distribute_tensor

        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        mesh = init_device_mesh("cpu", (1,))
        whole = torch.arange(300_000.0).reshape(300, 1000)
        state = {"d": distribute_tensor(whole, mesh, [Shard(0)]), "plain": torch.ones(3)}
        gdsckpt.save(state, sys.argv[1])
        for weights_only in (True, False):
            loaded = gdsckpt.load(sys.argv[1], weights_only=weights_only)
            stock = torch.load(sys.argv[1], weights_only=weights_only)
            assert type(loaded["d"]) is type(stock["d"]) is type(state["d"])
            assert loaded["d"].placements == stock["d"].placements
            assert torch.equal(loaded["d"].to_local(), whole)
            assert torch.equal(loaded["plain"], state["plain"])
        dist.destroy_process_group()
        print("equal")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), tmp_path / "a.pt"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "equal\n", done.stderr
