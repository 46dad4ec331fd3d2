"""torch's tensors on a real GPU: save, load, in the five forms of map_location, and in order."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from states import assert_same, every_dtype, every_kind

import gdsckpt
from gdsckpt.errors import ChecksumError, TornSnapshotError

pytestmark = pytest.mark.gpu

MIB = 1 << 20
CLOCKS = 200_000_000
"""Of ``torch.cuda._sleep``: about a tenth of a second."""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "state.pt"


def bits(nbytes):
    return torch.randint(0, 256, (nbytes,), dtype=torch.uint8, device="cuda")


def on_gpu(value):
    if isinstance(value, torch.Tensor):
        return value.cuda()
    if isinstance(value, dict):
        return {key: on_gpu(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [on_gpu(inner) for inner in value]
    return value


@pytest.mark.parametrize("name", sorted(every_dtype()))
def test_every_dtype_comes_back_to_the_gpu(path, name):
    state = {"t": every_dtype()[name].cuda()}
    gdsckpt.save(state, path)
    for load in (gdsckpt.load, torch.load):
        loaded = load(path)
        assert loaded["t"].device == state["t"].device
        assert_same(on_host(state), on_host(loaded))


def on_host(state):
    return {key: value.cpu() for key, value in state.items()}


@pytest.mark.parametrize("name", ["module_state", "optimizer_state", "scheduler_state"])
def test_training_state_is_what_stock_torch_loads(path, name):
    gdsckpt.save({"s": on_gpu(every_kind()[name])}, path)
    ours = gdsckpt.load(path, map_location="cpu", weights_only=False)
    assert_same(torch.load(path, map_location="cpu", weights_only=False), ours)


def test_large_state_is_moved_without_host_tensors(path):
    state = {f"w{n}": bits(64 * MIB) for n in range(32)}
    state |= {f"b{n}": torch.randn(n + 1, device="cuda") for n in range(300)}
    torch.cuda.synchronize()
    before = _peak_bytes()
    report = gdsckpt.save(state, path)
    loaded = gdsckpt.load(path)
    assert _peak_bytes() - before < 700 * MIB
    assert report.payload_bytes == sum(tensor.nbytes for tensor in state.values())
    for name, tensor in state.items():
        assert loaded[name].device == tensor.device
        assert torch.equal(loaded[name], tensor)
    assert gdsckpt.verify(path).ok


def _peak_bytes():
    with Path("/proc/self/status").open() as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))


def test_map_location_in_all_forms(path):
    state = {"w": bits(3 * MIB), "h": torch.arange(7)}
    gdsckpt.save(state, path)
    places = [
        (None, "cuda"),
        ("cpu", "cpu"),
        ("cuda", "cuda"),
        (torch.device("cuda:0"), "cuda"),
        ({"cuda:0": "cpu"}, "cpu"),
        (lambda storage, _tag: storage.cuda(), "cuda"),
        (lambda storage, _tag: storage, "cpu"),
    ]
    for map_location, wanted in places:
        loaded = gdsckpt.load(path, map_location=map_location)
        stock = torch.load(path, map_location=map_location)
        assert loaded["w"].device.type == wanted
        assert [t.device for t in loaded.values()] == [t.device for t in stock.values()]
        assert torch.equal(loaded["w"].cpu(), state["w"].cpu())
        assert torch.equal(loaded["h"].cpu(), state["h"])


def test_keys_load_a_part_and_no_more_memory_of_the_gpu(path):
    gdsckpt.save({"big": bits(256 * MIB), "small": bits(1000)}, path)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    loaded = gdsckpt.load(path, keys="small")
    assert loaded["small"].is_cuda
    assert torch.cuda.max_memory_allocated() - before < 2 * MIB


def test_into_fills_tensors_on_the_gpu_in_place(path):
    model = torch.nn.Linear(1000, 1001, device="cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 1000, device="cuda")).sum().backward()
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    gdsckpt.save(state, path)
    wanted = {name: value.clone() for name, value in model.state_dict().items()}
    versions = [p._version for p in model.parameters()]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    addresses = [p.data_ptr() for p in model.parameters()]
    gdsckpt.load(path, into={"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    assert [p.data_ptr() for p in model.parameters()] == addresses
    assert all(p._version > v for p, v in zip(model.parameters(), versions, strict=True))
    for name, value in model.state_dict().items():
        assert torch.equal(value, wanted[name])


@pytest.mark.parametrize("own_stream", [False, True])
def test_save_takes_what_was_queued_before_it(path, own_stream):
    stream = torch.cuda.Stream() if own_stream else torch.cuda.current_stream()
    tensor = torch.zeros(8 * MIB, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(CLOCKS)
        tensor.fill_(3)
        gdsckpt.save({"t": tensor}, path)
    assert bool((gdsckpt.load(path)["t"] == 3).all())


def test_load_does_not_write_into_memory_that_is_still_in_use(path):
    gdsckpt.save({"t": torch.full((8 * MIB,), 7.0, device="cuda")}, path)
    torch.cuda.empty_cache()
    result = torch.zeros(8 * MIB, device="cuda")
    old = torch.ones(8 * MIB, device="cuda")
    torch.cuda.synchronize()
    torch.cuda._sleep(CLOCKS)
    result.copy_(old)
    del old  # the allocator gives its memory to the load, which must wait for the copy
    loaded = gdsckpt.load(path)
    assert bool((result == 1).all())
    assert bool((loaded["t"] == 7).all())


def test_save_of_storage_that_is_freed_meanwhile_is_torn(path):
    tensor = bits(64 * MIB)

    def free(_done, _total):
        tensor.untyped_storage().resize_(0)

    with pytest.raises(TornSnapshotError):
        gdsckpt.save({"w": tensor}, path, progress=free)
    assert not path.exists()


def test_load_finds_a_flipped_bit_on_its_way_to_the_gpu(path):
    gdsckpt.save({"w": bits(20 * MIB)}, path)
    with path.open("r+b") as file:
        file.seek(10 * MIB)
        byte = file.read(1)[0]
        file.seek(10 * MIB)
        file.write(bytes([byte ^ 1]))
    with pytest.raises(ChecksumError) as caught:
        gdsckpt.load(path)
    assert caught.value.fqn == "w"


EXPANDABLE = """
import sys, torch, gdsckpt
tensors = {f"t{n}": torch.randn(1000 * n + 5_000_000, device="cuda") for n in range(5)}
gdsckpt.save(tensors, sys.argv[1])
loaded = gdsckpt.load(sys.argv[1])
assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items())
"""

FORKED = """
import os, sys, torch, gdsckpt
tensor = torch.ones(10, device="cuda")
gdsckpt.save({"t": tensor}, sys.argv[1])
pid = os.fork()
if pid == 0:
    try:
        gdsckpt.save({"h": torch.ones(3)}, sys.argv[1] + ".host")
        gdsckpt.save({"t": tensor}, sys.argv[1] + ".gpu")
    except (gdsckpt.errors.GdsckptError, RuntimeError):
        os._exit(0)
    os._exit(1)
assert os.waitpid(pid, 0)[1] == 0
assert os.path.exists(sys.argv[1] + ".host") and not os.path.exists(sys.argv[1] + ".gpu")
gdsckpt.save({"t": tensor}, sys.argv[1])
"""


@pytest.mark.parametrize(
    ("code", "environ"),
    [(EXPANDABLE, {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}), (FORKED, {})],
    ids=["expandable segments", "forked"],
)
def test_in_a_process_of_its_own(path, code, environ):
    root = os.path.dirname(os.path.dirname(gdsckpt.__file__))  # noqa: PTH120
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        env={**os.environ, "PYTHONPATH": root, **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_tensors_of_several_gpus_in_one_state(path):
    state = {"a": bits(5 * MIB), "b": bits(5 * MIB).to("cuda:1"), "c": torch.ones(3)}
    gdsckpt.save(state, path)
    loaded = gdsckpt.load(path)
    assert {name: t.device for name, t in loaded.items()} == {n: t.device for n, t in state.items()}
    assert all(torch.equal(loaded[name], tensor) for name, tensor in state.items())
