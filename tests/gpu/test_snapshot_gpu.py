"""Snapshots of torch's tensors on a real GPU: order with streams, clones, pinned slots, guard."""

import copy
import ctypes

import pytest
import torch
from snapshots import MIB, check, give_gradients, slots, snap, trained, training_state, write
from states import assert_same

from gdsckpt import native
from gdsckpt.errors import FallbackWarning, TornSnapshotError
from gdsckpt.snapshot.samples import Look, Memory, Places
from gdsckpt.staging.content import Buffer

pytestmark = pytest.mark.gpu

CLOCKS = 200_000_000
"""Of ``torch.cuda._sleep``: about a tenth of a second."""


def bits(nbytes):
    return torch.randint(0, 256, (nbytes,), dtype=torch.uint8, device="cuda")


def memory_of(tensors, device):
    buffers = [Buffer(t.data_ptr(), t.nbytes, t.untyped_storage(), device) for t in tensors]
    return Memory(list(range(len(tensors))), buffers)


def test_samples_are_those_of_the_host():
    tensors = [bits(nbytes) for nbytes in (1, 4095, 4096, 4097, MIB + 1, 5 * MIB + 5000)]
    on_gpu = Look(Places(memory_of(tensors, 0)), 7)
    on_host = Look(Places(memory_of([each.cpu() for each in tensors], native.HOST)), 7)
    assert on_gpu.crcs() == on_host.crcs()


@pytest.mark.parametrize("mode", ["host", "device"])
def test_copy_is_of_what_was_queued_at_the_call(mode, tmp_path):
    weight = torch.zeros(4 * MIB, device="cuda")
    torch.cuda._sleep(CLOCKS)
    weight.fill_(1)
    snapshot = snap({"w": weight}, mode)
    assert snapshot.mode == mode
    weight.fill_(2)
    assert write(snapshot, tmp_path / "a.pt")["w"].unique().tolist() == [1]
    snapshot.release()


def test_device_takes_no_time_that_the_stream_has_queued(tmp_path):
    weight = torch.ones(MIB, device="cuda")
    torch.cuda._sleep(20 * CLOCKS)
    snapshot = snap({"w": weight}, "device")
    assert not torch.cuda.current_stream().query()  # the call did not wait for it
    assert write(snapshot, tmp_path / "a.pt")["w"].unique().tolist() == [1]


def test_device_without_room_falls_back_to_the_host():
    free, _ = torch.cuda.mem_get_info()
    weight = torch.empty(free // 10 * 6, dtype=torch.uint8, device="cuda")
    with pytest.warns(FallbackWarning, match="no room"):
        snapshot = snap({"w": weight}, "device", into=slots(max_bytes=0))
    assert (snapshot.mode, snapshot.live_end) == ("host", 1)
    snapshot.release()


@pytest.mark.parametrize("fused", [False, True])
def test_fenced_step_waits_and_the_file_is_of_the_call(fused, tmp_path):
    model = torch.nn.Linear(1000, 1000, device="cuda")
    optimizer = trained(model, torch.optim.AdamW, lr=0.1, fused=fused)
    state = training_state(model, optimizer)
    expected = copy.deepcopy(state)
    snapshot = snap(state, optimizer=optimizer)
    model(torch.randn(8, 1000, device="cuda")).sum().backward()
    loaded = write(snapshot, tmp_path / "a.pt")
    snapshot.staged()
    give_gradients(model)
    optimizer.step()
    assert_same(expected, loaded)


def test_change_of_a_live_tensor_is_found(tmp_path):
    model = torch.nn.Linear(1000, 1000, device="cuda")
    optimizer = trained(model, torch.optim.AdamW, lr=0.1, fused=True)
    snapshot = snap(training_state(model, optimizer), optimizer=optimizer)
    model.weight.data.add_(1)
    torch.cuda.synchronize()
    with pytest.raises(TornSnapshotError) as caught:
        write(snapshot, tmp_path / "a.pt")
    assert "model.weight" in caught.value.names


def test_slot_for_a_gpu_is_page_locked():
    ours = slots(num_slots=1)
    weight = torch.ones(MIB, device="cuda")
    snapshot = snap({"w": weight}, "host", into=ours)
    copied = snapshot.content.storages[0]
    memory = (ctypes.c_char * copied.nbytes).from_address(copied.address)
    assert torch.frombuffer(memory, dtype=torch.float32).is_pinned()
    check(snapshot)
