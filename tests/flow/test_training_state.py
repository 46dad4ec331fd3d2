"""Training resumed from a saved TrainingState is bit-equal to one that was never stopped."""

import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import gdsckpt
from gdsckpt.checkpointer.gathering import TrainingState
from gdsckpt.checkpointer.restoring import load_into
from gdsckpt.demo.training import deterministic, fingerprint
from gdsckpt.errors import ConfigError, StateMismatchError
from gdsckpt.tensors.stateful import gathered

NUM_STEPS = 12
STOP_AT = 7


class Loader:
    """Batches in shuffled order, whose place in the epoch can be saved (as StatefulDataLoader)."""

    def __init__(self, num_samples, batch):
        self._data = (
            torch.arange(num_samples * 6, dtype=torch.float32).reshape(num_samples, 6) / 100
        )
        self._batch = batch
        self._order = []

    def next_batch(self):
        if not self._order:
            self._order = torch.randperm(len(self._data)).tolist()
        chosen, self._order = self._order[: self._batch], self._order[self._batch :]
        return self._data[chosen]

    def state_dict(self):
        return {"order": list(self._order)}

    def load_state_dict(self, state):
        torch.rand(7)  # as loaders that seed their workers
        self._order = list(state["order"])


class Run:
    """A training that uses everything that has a state."""

    def __init__(self, optimizer, **options):
        random.seed(0)
        np.random.seed(0)
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(6, 16), torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.3),
            torch.nn.Linear(16, 1),
        )  # fmt: skip
        self.optimizer = optimizer(self.model.parameters(), **options)
        self.scheduler = torch.optim.lr_scheduler.OneCycleLR(
            self.optimizer, 0.05, total_steps=NUM_STEPS + 1
        )
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
        self.loader = Loader(20, 4)
        self.ema = torch.optim.swa_utils.AveragedModel(self.model, use_buffers=True)
        self.extra = {"step": 0, "losses": [], "ema": self.ema}
        self.state = TrainingState(
            model=self.model,
            optimizer=self.optimizer,
            scheduler=self.scheduler,
            scaler=self.scaler,
            dataloader=self.loader,
            extra=self.extra,
        )

    def train(self, until):
        while self.extra["step"] < until:
            batch = self.loader.next_batch()
            batch = batch + random.gauss(0, 0.1) + float(np.random.normal(0, 0.1))
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = (self.model(batch) - batch.mean(1, keepdim=True)).square().mean()
            self.optimizer.zero_grad()
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.scheduler.step()
            self.ema.update_parameters(self.model)
            self.extra["step"] += 1
            self.extra["losses"].append(float(loss.detach()))


OPTIMIZERS = {
    "adamw": (torch.optim.AdamW, {"lr": 0.01}),
    "adamw_fused": (torch.optim.AdamW, {"lr": 0.01, "fused": True}),
    "adamw_amsgrad": (torch.optim.AdamW, {"lr": 0.01, "amsgrad": True}),
    "sgd_momentum": (torch.optim.SGD, {"lr": 0.01, "momentum": 0.9, "foreach": True}),
}


@pytest.fixture(autouse=True)
def one_result():
    with deterministic(1):
        yield


@pytest.fixture(params=OPTIMIZERS)
def make(request):
    optimizer, options = OPTIMIZERS[request.param]
    return lambda: Run(optimizer, **options)


def test_resumed_training_is_bit_equal(make, tmp_path):
    run = make()
    run.train(STOP_AT)
    gdsckpt.save_checkpoint(gathered(run.state), tmp_path / "c", step=STOP_AT)
    run.train(NUM_STEPS)

    resumed = make()
    load_into(tmp_path / "c", resumed.state)
    assert resumed.extra["step"] == STOP_AT
    resumed.train(NUM_STEPS)
    assert resumed.extra["losses"] == run.extra["losses"]
    assert fingerprint(gathered(resumed.state)) == fingerprint(gathered(run.state))


def test_resumed_training_of_a_run_that_went_on_is_bit_equal(make, tmp_path):
    run = make()
    run.train(STOP_AT)
    gdsckpt.save_checkpoint(gathered(run.state), tmp_path / "c", step=STOP_AT)
    run.train(NUM_STEPS)
    expected = fingerprint(gathered(run.state))
    load_into(tmp_path / "c", run.state)
    run.train(NUM_STEPS)
    assert fingerprint(gathered(run.state)) == expected


def test_stock_torch_can_resume_too(make, tmp_path):
    run = make()
    run.train(STOP_AT)
    gdsckpt.save(gathered(run.state), tmp_path / "a.pt")
    run.train(NUM_STEPS)
    resumed = make()
    resumed.state.load_state_dict(torch.load(tmp_path / "a.pt", weights_only=True))
    resumed.train(NUM_STEPS)
    assert fingerprint(gathered(resumed.state)) == fingerprint(gathered(run.state))


RESUME = """
import sys
sys.path.insert(0, sys.argv[1])
from test_training_state import *
with deterministic(1):
    run = Run(torch.optim.AdamW, lr=0.01)
    load_into(sys.argv[2], run.state)
    run.train(NUM_STEPS)
    print(fingerprint(gathered(run.state)))
"""


def test_training_resumed_in_another_process_is_bit_equal(tmp_path):
    run = Run(torch.optim.AdamW, lr=0.01)
    run.train(STOP_AT)
    gdsckpt.save_checkpoint(gathered(run.state), tmp_path / "c", step=STOP_AT)
    run.train(NUM_STEPS)
    done = subprocess.run(
        [sys.executable, "-c", RESUME, str(Path(__file__).parent), str(tmp_path / "c")],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == fingerprint(gathered(run.state))


def test_state_of_a_changed_model_is_refused_and_the_run_goes_on_as_before(make, tmp_path):
    run = make()
    run.train(STOP_AT)
    other = make()
    other.model[3] = torch.nn.Linear(16, 2)
    gdsckpt.save_checkpoint(gathered(other.state), tmp_path / "c", step=1)
    before = fingerprint(gathered(run.state))
    with pytest.raises(StateMismatchError) as caught:
        load_into(tmp_path / "c", run.state)
    assert caught.value.shapes == {
        "model.3.weight": ((2, 16), (1, 16)),
        "model.3.bias": ((2,), (1,)),
    }
    assert fingerprint(gathered(run.state)) == before


def test_failing_loader_stops_the_save_and_is_named(make, tmp_path):
    run = make()
    run.loader.state_dict = lambda: 1 / 0
    with pytest.raises(ConfigError, match=r"state_dict\(\) of dataloader \(Loader\) failed"):
        gdsckpt.save_checkpoint(gathered(run.state), tmp_path / "c", step=1)
    assert not (tmp_path / "c").exists()
