"""A training on a real GPU: its random numbers, and objects whose tensors are there."""

import pytest
import torch
from states import assert_same

import gdsckpt
from gdsckpt.checkpointer.gathering import TrainingState
from gdsckpt.checkpointer.restoring import load_into
from gdsckpt.tensors.stateful import gathered

pytestmark = pytest.mark.gpu


def run(seed):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    scaler = torch.amp.GradScaler("cuda")
    return TrainingState(model=model, optimizer=optimizer, scaler=scaler)


def train(state, num_steps):
    for _ in range(num_steps):
        noise = torch.randn(4, 8, device="cuda")
        state.optimizer.zero_grad()
        state.scaler.scale(state.model(noise).square().mean()).backward()
        state.scaler.step(state.optimizer)
        state.scaler.update()


def test_resumed_training_on_a_gpu_is_bit_equal(tmp_path):
    state = run(0)
    train(state, 3)
    gdsckpt.save_checkpoint(gathered(state), tmp_path / "c", step=3)
    train(state, 4)
    resumed = run(1)
    train(resumed, 1)
    load_into(tmp_path / "c", resumed)
    train(resumed, 4)
    expected, actual = gathered(state), gathered(resumed)
    assert len(expected["rng"]["cuda"]) == torch.cuda.device_count()
    assert_same(expected["rng"]["cuda"], actual["rng"]["cuda"])
    for name in ("model", "optimizer", "scaler"):
        host = [torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: t.cpu(), s[name])
                for s in (expected, actual)]  # fmt: skip
        assert_same(*host)
    assert all(p.device.type == "cuda" for p in resumed.model.parameters())
    moments = resumed.optimizer.state_dict()["state"][0]["exp_avg"]
    assert moments.device.type == "cuda"


def test_state_loaded_to_the_gpu_restores_random_numbers_all_the_same(tmp_path):
    state = run(0)
    gdsckpt.save(gathered(state), tmp_path / "a.pt")
    expected = torch.rand(3, device="cuda"), torch.rand(3)
    state.load_state_dict(gdsckpt.load(tmp_path / "a.pt", "cuda"))
    assert torch.equal(torch.rand(3, device="cuda"), expected[0])
    assert torch.equal(torch.rand(3), expected[1])
