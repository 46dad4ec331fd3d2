import collections
import random

import numpy as np
import pytest
import torch
from states import assert_same

import gdsckpt
from gdsckpt.checkpointer.gathering import TrainingState
from gdsckpt.checkpointer.random_state import RandomState
from gdsckpt.errors import ConfigError, FallbackWarning, StateMismatchError

# Parts.


def parts(seed=0):
    torch.manual_seed(seed)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    model(torch.ones(1, 3)).sum().backward()
    for _ in range(seed + 1):
        optimizer.step()
        scheduler.step()
    return model, optimizer, scheduler


def state_of(found, **others):
    model, optimizer, scheduler = found
    return TrainingState(model=model, optimizer=optimizer, scheduler=scheduler, **others)


def test_training_state_state_dict_has_the_state_of_each_part():
    found = parts()
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    state = state_of(found, scaler=scaler, extra={"epoch": 3}).state_dict()
    assert list(state) == ["model", "optimizer", "scheduler", "scaler", "extra", "rng"]
    for name, part in zip(("model", "optimizer", "scheduler"), found, strict=True):
        assert_same(part.state_dict(), state[name])
    assert state["scaler"]["scale"] == 8.0
    assert state["extra"] == {"epoch": 3}
    assert state["model"]["weight"].data_ptr() == found[0].weight.data_ptr()


def test_training_state_leaves_out_what_is_not_given():
    assert TrainingState(rng=False).state_dict() == {}
    assert list(TrainingState().state_dict()) == ["rng"]


def test_training_state_lists_and_dicts_of_objects(tmp_path):
    def make(seed):
        (m1, o1, _), (m2, o2, _) = parts(seed), parts(seed + 1)
        return TrainingState(model={"g": m1, "d": m2}, optimizer=[o1, None, o2], rng=False)

    saved, target = make(0), make(5)
    gdsckpt.save(saved.state_dict(), tmp_path / "a.pt")
    target.load_state_dict(gdsckpt.load(tmp_path / "a.pt"))
    assert_same(saved.state_dict(), target.state_dict())


def test_training_state_load_gives_each_part_its_state(tmp_path):
    saved, target = state_of(parts(0)), state_of(parts(2))
    gdsckpt.save(saved.state_dict(), tmp_path / "a.pt")
    target.load_state_dict(torch.load(tmp_path / "a.pt", weights_only=True))
    expected, actual = saved.state_dict(), target.state_dict()
    assert_same(expected, actual)


@pytest.mark.parametrize(
    ("field", "value", "place"),
    [
        ("model", torch.nn.Linear(2, 2).state_dict(), "model.weight is of type Tensor"),
        ("optimizer", [1], "optimizer.0 is of type int"),
        ("scheduler", lambda step: 1.0, "scheduler is of type function"),
        ("scaler", torch.amp.GradScaler, "scaler is of type type"),
        ("dataloader", torch.utils.data.DataLoader([1]), "dataloader is of type DataLoader"),
    ],
)
def test_training_state_object_without_a_state_is_refused(field, value, place):
    with pytest.raises(ConfigError) as caught:
        TrainingState(**{field: value})
    assert str(caught.value).startswith(place)
    assert caught.value.field == field


def test_training_state_plain_dataloader_says_what_to_pass():
    with pytest.raises(ConfigError, match="StatefulDataLoader"):
        TrainingState(dataloader=torch.utils.data.DataLoader([1]))


@pytest.mark.parametrize("extra", [[1], 5, (("a", 1),)])
def test_training_state_extra_that_cannot_be_changed_is_refused(extra):
    with pytest.raises(ConfigError, match="must be a mapping") as caught:
        TrainingState(extra=extra)
    assert caught.value.field == "extra"


def test_training_state_missing_and_extra_parts_are_named_and_nothing_changes():
    model, optimizer, _ = parts(0)
    saved = TrainingState(model=parts(1)[0], scaler=torch.amp.GradScaler("cpu"), rng=False)
    before = torch.clone(model.weight)
    with pytest.raises(StateMismatchError) as caught:
        TrainingState(model=model, optimizer=optimizer, rng=False).load_state_dict(
            saved.state_dict()
        )
    assert caught.value.missing == ("optimizer",)
    assert caught.value.unexpected == (
        "scaler.scale",
        "scaler.growth_factor",
        "scaler.backoff_factor",
        "scaler.growth_interval",
        "scaler._growth_tracker",
    )
    assert torch.equal(model.weight, before)


def test_training_state_not_strict_takes_what_both_have():
    model, optimizer, _ = parts(0)
    other = parts(1)[0]
    saved = TrainingState(model=other, scaler=torch.amp.GradScaler("cpu"), rng=False)
    target = TrainingState(model=model, optimizer=optimizer, rng=False)
    target.load_state_dict(saved.state_dict(), strict=False)
    assert torch.equal(model.weight, other.weight)


# Extra values.


def test_extra_plain_entries_are_replaced_whatever_their_structure():
    history, table = [], {"best": None}
    extra = {"epoch": 0, "history": history, "table": table, "note": None, "betas": (1, 2)}
    saved = {
        "epoch": 3,
        "history": [1.5, {"loss": 2.0}],
        "table": {"best": 0.5, "steps": [1, 2]},
        "note": torch.ones(2),
        "betas": (3,),
    }
    TrainingState(rng=False, extra=extra).load_state_dict({"extra": saved})
    assert_same(saved, extra)
    assert extra["history"] is history
    assert extra["table"] is table


def test_extra_tensors_are_filled_and_objects_get_their_state():
    ema, mask = torch.zeros(3), torch.eye(2).to_sparse()
    model = torch.nn.Linear(2, 2)
    extra = {"ema": ema, "mask": mask, "critic": {"net": model, "n": 0}}
    other = torch.nn.Linear(2, 2)
    saved = {
        "ema": torch.ones(3),
        "mask": torch.ones(2, 2).to_sparse(),
        "critic": {"net": other.state_dict(), "n": 7},
    }
    TrainingState(rng=False, extra=extra).load_state_dict({"extra": saved})
    assert extra["ema"] is ema
    assert ema.tolist() == [1, 1, 1]
    assert extra["mask"] is saved["mask"]
    assert torch.equal(model.weight, other.weight)
    assert extra["critic"]["n"] == 7
    assert extra["critic"]["net"] is model


def test_extra_user_dict_gets_the_values():
    extra = collections.UserDict(epoch=0)
    TrainingState(rng=False, extra=extra).load_state_dict({"extra": {"epoch": 4}})
    assert extra["epoch"] == 4


@pytest.mark.parametrize(
    ("own", "saved", "missing", "unexpected"),
    [
        ({"a": 1, "b": 2}, {"a": 1}, ("extra.b",), ()),
        ({"a": 1}, {"a": 1, "b": [2, 3]}, (), ("extra.b.0", "extra.b.1")),
        ({}, {"a": 1}, (), ("extra.a",)),
        ({"a": 1}, {}, ("extra.a",), ()),
    ],
)
def test_extra_missing_and_extra_entries_are_named(own, saved, missing, unexpected):
    before = dict(own)
    with pytest.raises(StateMismatchError) as caught:
        TrainingState(rng=False, extra=own).load_state_dict({"extra": saved})
    assert (caught.value.missing, caught.value.unexpected) == (missing, unexpected)
    assert own == before


def test_extra_empty_fits_empty():
    extra = {}
    TrainingState(rng=False, extra=extra).load_state_dict({"extra": {}})
    assert extra == {}


# Random numbers.


def draw():
    return random.random(), random.gauss(0, 1), float(np.random.normal()), torch.rand(2).tolist()


def test_random_state_restored_draws_the_same(tmp_path):
    random.gauss(0, 1)  # each of these keeps a second number for the next call
    np.random.normal()
    gdsckpt.save(RandomState().state_dict(), tmp_path / "a.pt")
    expected = [draw() for _ in range(5)]
    draw()
    RandomState().load_state_dict(gdsckpt.load(tmp_path / "a.pt"))
    assert [draw() for _ in range(5)] == expected


def test_random_state_is_tensors_and_plain_values(tmp_path):
    state = RandomState().state_dict()
    assert set(state) == {"python", "numpy", "torch", "cuda"}
    torch.save(state, tmp_path / "a.pt")
    assert_same(torch.load(tmp_path / "a.pt", weights_only=True), state)


@pytest.mark.parametrize("kind", ["PCG64", "Philox", "SFC64", "MT19937"])
def test_random_state_other_bit_generators_of_numpy(kind):
    before = np.random.get_bit_generator()
    np.random.set_bit_generator(getattr(np.random, kind)(3))
    try:
        state = RandomState().state_dict()
        expected = np.random.randint(0, 1 << 30, 5).tolist()
        RandomState().load_state_dict(state)
        assert np.random.randint(0, 1 << 30, 5).tolist() == expected
    finally:
        np.random.set_bit_generator(before)


def test_random_state_saved_without_numpy_leaves_numpy_alone():
    state = RandomState().state_dict()
    del state["numpy"]
    np.random.seed(1)
    expected = np.random.rand()
    np.random.seed(1)
    RandomState().load_state_dict(state)
    assert np.random.rand() == expected


def test_random_state_load_without_numpy_warns(monkeypatch):
    state = RandomState().state_dict()
    monkeypatch.setitem(__import__("sys").modules, "numpy.random", None)
    assert "numpy" not in RandomState().state_dict()
    with pytest.warns(FallbackWarning, match="numpy is not installed"):
        RandomState().load_state_dict(state)


class Gpus:
    """Stands for torch's generators of some GPUs: a build of torch without CUDA has none."""

    def __init__(self, monkeypatch, num_gpus, is_initialized=True):
        self.states = [torch.full((16,), n, dtype=torch.uint8) for n in range(num_gpus)]
        monkeypatch.setattr(torch.cuda, "is_available", lambda: num_gpus > 0)
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: is_initialized)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: num_gpus)
        monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: list(self.states))
        monkeypatch.setattr(torch.cuda, "set_rng_state", self.set)

    def set(self, state, device):
        self.states[device] = state


def test_random_state_of_all_gpus_is_restored(monkeypatch):
    gpus = Gpus(monkeypatch, 2)
    state = RandomState().state_dict()
    gpus.states = [torch.zeros(16, dtype=torch.uint8)] * 2
    RandomState().load_state_dict(state)
    assert [int(one[0]) for one in gpus.states] == [0, 1]


def test_random_state_does_not_start_cuda(monkeypatch):
    Gpus(monkeypatch, 2, is_initialized=False)
    assert RandomState().state_dict()["cuda"] == []


@pytest.mark.parametrize("num_gpus", [0, 1, 3])
def test_random_state_of_another_number_of_gpus_warns(monkeypatch, num_gpus):
    Gpus(monkeypatch, 2)
    state = RandomState().state_dict()
    gpus = Gpus(monkeypatch, num_gpus)
    gpus.states = [torch.full((16,), 9, dtype=torch.uint8) for _ in range(num_gpus)]
    with pytest.warns(FallbackWarning, match=f"of 2 GPUs, and this process has {num_gpus} GPUs"):
        RandomState().load_state_dict(state)
    assert [int(one[0]) for one in gpus.states] == [0, 1, 9][:num_gpus]


def test_random_state_saved_without_gpus_is_silent_where_there_are_some(monkeypatch):
    state = RandomState().state_dict()
    gpus = Gpus(monkeypatch, 2)
    RandomState().load_state_dict(state)
    assert [int(one[0]) for one in gpus.states] == [0, 1]


def test_training_state_random_numbers_come_last():
    class Drawing:
        def state_dict(self):
            return {}

        def load_state_dict(self, state):
            torch.rand(10)
            random.random()

    def make():
        return {
            "run": TrainingState(dataloader=Drawing()),
            "later": TrainingState(model=Drawing(), rng=False),
        }

    from gdsckpt.checkpointer.applying import apply
    from gdsckpt.tensors.stateful import gathered

    state = gathered(make())
    expected = draw()
    apply(make(), state)
    assert draw() == expected
