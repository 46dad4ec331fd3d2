import pytest
import torch
from states import assert_same

import gdsckpt
from gdsckpt.checkpointer.gathering import TrainingState
from gdsckpt.checkpointer.restoring import load_into
from gdsckpt.errors import ChecksumError, ConfigError, StateMismatchError, UnsafePickleError
from gdsckpt.tensors.stateful import gathered


class Position:
    """A Stateful object."""

    def __init__(self, value):
        self.value = value

    def state_dict(self):
        return {"value": self.value, "seen": [1, 2]}

    def load_state_dict(self, state):
        self.value = state["value"]


def run(seed):
    """Give a model, and a state with it and others."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1 + seed)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    state = {
        "model": model,
        "optimizer": optimizer,
        "position": Position(seed),
        "ema": torch.full((70_000,), float(seed)),
        "epoch": seed,
    }
    return model, state


@pytest.fixture
def saved(tmp_path):
    """Save the state of a run with seed 1; gives the path and the state."""
    _, state = run(1)
    gdsckpt.save_checkpoint(gathered(state), tmp_path / "c", step=1)
    return tmp_path / "c", state


def test_load_into_nothing_gives_what_was_saved(saved):
    path, state = saved
    assert_same(gathered(state), load_into(path, None))


def test_load_into_objects_gives_each_its_state(saved):
    path, state = saved
    model, target = run(2)
    ema = target["ema"]
    assert load_into(path, target) is target
    assert_same(gathered(state), gathered(target))
    assert target["model"] is model
    assert target["ema"] is ema


def test_load_into_a_module_itself(tmp_path):
    model, other = run(1)[0], run(2)[0]
    gdsckpt.save(model.state_dict(), tmp_path / "a.pt")
    assert load_into(tmp_path / "a.pt", other) is other
    assert_same(model.state_dict(), other.state_dict())


def test_load_into_tensors_fills_in_place_without_a_second_copy(tmp_path):
    gdsckpt.save({"a": torch.ones(1 << 20)}, tmp_path / "a.pt")
    target = {"a": torch.zeros(1 << 20)}
    tensor = target["a"]
    load_into(tmp_path / "a.pt", target)
    assert target["a"] is tensor
    assert tensor.all()
    assert tensor._version > 0


@pytest.mark.parametrize("with_object", [True, False])
def test_load_into_and_map_location_contradict_each_other(saved, with_object):
    path, _ = saved
    target = run(2)[1] if with_object else {"epoch": 2}
    with pytest.raises(ConfigError) as caught:
        load_into(path, target, map_location="cpu")
    assert caught.value.field == "map_location"


def test_load_map_location_without_into(saved):
    path, _ = saved
    assert load_into(path, None, map_location="meta")["ema"].device.type == "meta"


def test_load_into_damaged_checkpoint_changes_nothing(saved):
    path, _ = saved
    [shard] = path.glob("*.pt")
    raw = bytearray(shard.read_bytes())
    raw[raw.index(torch.full((100,), 1.0).numpy().tobytes()) + 50_000] ^= 1
    shard.write_bytes(raw)
    _, target = run(2)
    _, expected = run(2)
    with pytest.raises(ChecksumError):
        load_into(path, target)
    assert_same(gathered(expected), gathered(target))


def test_load_into_missing_and_extra_names(saved):
    path, _ = saved
    _, target = run(2)
    del target["position"]
    target["mine"] = Position(1)
    before = target["model"][0].weight.clone()
    with pytest.raises(StateMismatchError) as caught:
        load_into(path, target)
    assert caught.value.missing == ("mine",)
    assert caught.value.unexpected == ("position.value", "position.seen.0", "position.seen.1")
    assert torch.equal(target["model"][0].weight, before)


def test_load_into_objects_with_code_needs_weights_only_off(tmp_path):
    class_of_ours = Position(3)
    gdsckpt.save({"p": {"value": class_of_ours}}, tmp_path / "a.pt")
    target = {"p": Position(1)}
    with pytest.raises(UnsafePickleError):
        load_into(tmp_path / "a.pt", target)
    load_into(tmp_path / "a.pt", target, weights_only=False)
    assert target["p"].value.value == 3


# Not strict.


def test_load_not_strict_module_alone_of_a_whole_checkpoint(saved):
    path, state = saved
    model, _ = run(2)
    load_into(path, {"model": model}, strict=False)
    assert_same(state["model"].state_dict(), model.state_dict())


def test_load_not_strict_reads_only_what_has_a_place(saved):
    path, state = saved
    [shard] = path.glob("*.pt")
    raw = bytearray(shard.read_bytes())
    raw[raw.index(torch.full((100,), 1.0).numpy().tobytes()) + 50_000] ^= 1  # in ema
    shard.write_bytes(raw)
    model, target = run(2)
    load_into(path, {"model": model}, strict=False)
    assert_same(state["model"].state_dict(), model.state_dict())
    with pytest.raises(ChecksumError):
        load_into(path, {"ema": target["ema"]}, strict=False)


def test_load_not_strict_plain_nest_takes_what_both_have(tmp_path):
    gdsckpt.save(
        {"a": torch.ones(2), "b": 1, "l": [1, torch.ones(1)], "t": (1, 2)}, tmp_path / "a.pt"
    )
    target = {"a": torch.zeros(2), "c": 3, "l": [0, torch.zeros(1), 5], "t": (0,)}
    load_into(tmp_path / "a.pt", target, strict=False)
    assert_same({"a": torch.ones(2), "c": 3, "l": [1, torch.ones(1), 5], "t": (1, 2)}, target)


def test_load_not_strict_training_state_of_another_make(tmp_path):
    model, state = run(1)
    optimizer = state["optimizer"]
    gdsckpt.save(
        gathered(TrainingState(model=model, optimizer=optimizer, extra={"epoch": 3})),
        tmp_path / "a.pt",
    )
    other, target = run(2)
    scaler = torch.amp.GradScaler("cpu")
    training = TrainingState(model=other, scaler=scaler, rng=False, extra={"epoch": 0, "new": 1})
    load_into(tmp_path / "a.pt", training, strict=False)
    assert_same(model.state_dict(), other.state_dict())
    assert training.extra == {"epoch": 3, "new": 1}


# Parts.


def test_load_keys_of_one_object_leaves_the_others_alone(saved):
    path, state = saved
    _, target = run(2)
    load_into(path, target, keys=["model", "epoch"])
    assert_same(state["model"].state_dict(), target["model"].state_dict())
    assert target["epoch"] == 1
    assert target["position"].value == 2
    assert target["ema"][0] == 2


def test_load_keys_of_one_object_needs_no_place_for_the_others(saved):
    path, state = saved
    model, _ = run(2)
    load_into(path, {"model": model}, keys="model")
    assert_same(state["model"].state_dict(), model.state_dict())


def test_load_keys_of_a_part_of_a_module(saved):
    path, state = saved
    model, target = run(2)
    before = model[1].weight.clone()
    load_into(path, target, keys="model.0")
    assert torch.equal(model[0].weight, state["model"][0].weight)
    assert torch.equal(model[1].weight, before)


def test_load_keys_of_a_part_that_the_module_lacks(saved):
    path, _ = saved
    model = torch.nn.Sequential(torch.nn.Linear(3, 4, bias=False))
    with pytest.raises(StateMismatchError) as caught:
        load_into(path, {"model": model}, keys="model.0")
    assert caught.value.unexpected == ("model.0.bias",)


def test_load_keys_predicate(saved):
    path, state = saved
    model, target = run(2)
    load_into(path, target, keys=lambda name: name.endswith("weight"))
    assert torch.equal(model[1].weight, state["model"][1].weight)
    assert not torch.equal(model[1].bias, state["model"][1].bias)


def test_load_keys_tuple_of_values_is_selected_as_a_whole(tmp_path):
    gdsckpt.save({"p": {"value": 1}, "t": (1, 2), "u": (3, 4)}, tmp_path / "a.pt")
    target = {"p": Position(0), "t": (0,), "u": (0,)}
    load_into(tmp_path / "a.pt", target, keys=lambda name: name in ("t", "u.0"))
    assert (target["t"], target["u"], target["p"].value) == ((1, 2), (0,), 0)


@pytest.mark.parametrize("keys", ["optimizer.state", "position.value"])
def test_load_keys_of_a_part_of_another_object_is_refused(saved, keys):
    path, _ = saved
    with pytest.raises(ConfigError, match="takes its state only as a whole") as caught:
        load_into(path, run(2)[1], keys=keys)
    assert caught.value.field == "keys"


def test_load_keys_that_select_nothing(saved):
    path, _ = saved
    with pytest.raises(StateMismatchError) as caught:
        load_into(path, run(2)[1], keys=["model", "nothing"])
    assert caught.value.missing == ("nothing",)


def test_load_keys_of_what_only_the_state_has(saved):
    path, _ = saved
    _, target = run(2)
    target["mine"] = Position(1)
    with pytest.raises(StateMismatchError) as caught:
        load_into(path, target, keys=lambda name: name in ("mine", "epoch"))
    assert caught.value.missing == ("mine",)
    assert target["epoch"] == 2


def test_load_keys_in_a_list_of_objects(tmp_path):
    models = [run(seed)[0] for seed in (1, 2)]
    gdsckpt.save(gathered({"models": models}), tmp_path / "a.pt")
    others = [run(seed)[0] for seed in (3, 4)]
    load_into(tmp_path / "a.pt", {"models": others}, keys="models.1")
    assert_same(models[1].state_dict(), others[1].state_dict())
    assert_same(run(3)[0].state_dict(), others[0].state_dict())


def test_load_from_an_url(tmp_path):
    _, state = run(1)
    gdsckpt.save_checkpoint(gathered(state), f"file://{tmp_path}/bucket/c", step=1)
    _, target = run(2)
    load_into(f"file://{tmp_path}/bucket/c", target)
    assert_same(gathered(state), gathered(target))
