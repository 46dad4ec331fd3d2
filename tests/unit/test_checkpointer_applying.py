import collections
import logging

import pytest
import torch
from states import assert_same

from gdsckpt.checkpointer.applying import apply
from gdsckpt.errors import StateMismatchError, StorageError
from gdsckpt.tensors.stateful import gathered


class Holder:
    """A Stateful object with one value; ``refuse`` is raised by load_state_dict()."""

    def __init__(self, value, refuse=None):
        self.value = value
        self.refuse = refuse
        self.num_loads = 0

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.num_loads += 1
        if self.refuse is not None:
            raise self.refuse
        self.value = state["value"]


Pair = collections.namedtuple("Pair", "a b")


def test_apply_fills_tensors_replaces_values_and_gives_objects_their_part():
    weight, model = torch.zeros(2, 2).t(), torch.nn.Linear(2, 2)
    other = torch.nn.Linear(2, 2)
    state = {"w": weight, "n": 1, "deep": [model, {"holder": Holder(1), "x": None}]}
    loaded = {
        "w": torch.arange(4.0).reshape(2, 2),
        "n": 5,
        "deep": [other.state_dict(), {"holder": {"value": 9}, "x": "y"}],
    }
    apply(state, loaded)
    assert state["w"] is weight
    assert weight.tolist() == [[0, 1], [2, 3]]
    assert state["n"] == 5
    assert torch.equal(model.weight, other.weight)
    assert state["deep"][1]["holder"].value == 9
    assert state["deep"][1]["x"] == "y"


def test_apply_object_at_the_root():
    holder = Holder(1)
    apply(holder, {"value": 2})
    assert holder.value == 2


def test_apply_objects_and_tensors_in_tuples():
    pair, weight = Pair(Holder(1), 5), torch.zeros(1)
    apply(
        {"p": pair, "t": (weight, Holder(3))},
        {"p": ({"value": 2}, 5), "t": (torch.ones(1), {"value": 4})},
    )
    assert pair.a.value == 2
    assert weight.tolist() == [1]


def test_apply_other_value_beside_an_object_in_a_tuple_is_refused():
    holder = Holder(1)
    with pytest.raises(StateMismatchError, match=r"p\.1 differs and stands in a tuple"):
        apply({"p": (holder, 5)}, {"p": ({"value": 2}, 6)})
    assert holder.value == 1


def test_apply_tuple_of_values_is_replaced():
    state = {"h": Holder(1), "betas": (0.9, 0.99)}
    apply(state, {"h": {"value": 1}, "betas": (0.5,)})
    assert state["betas"] == (0.5,)


@pytest.mark.parametrize(
    "leaf",
    [None, {}, [], (), "text", 1.5, torch.float16],
    ids=["none", "dict", "list", "tuple", "str", "float", "dtype"],
)
def test_apply_what_is_equal_on_both_sides_is_no_mismatch(leaf):
    state = {"h": Holder(1), "x": leaf}
    apply(state, {"h": {"value": 2}, "x": leaf})
    assert state["h"].value == 2
    assert state["x"] == leaf


def test_apply_tensor_subclass_and_parameter_stay_what_they_are():
    class Sub(torch.Tensor):
        pass

    sub, parameter = torch.zeros(2).as_subclass(Sub), torch.nn.Parameter(torch.zeros(2))
    state = {"h": Holder(1), "s": sub, "p": parameter}
    apply(state, {"h": {"value": 1}, "s": torch.ones(2).as_subclass(Sub), "p": torch.ones(2)})
    assert state["s"] is sub
    assert type(sub) is Sub
    assert sub.tolist() == [1, 1]
    assert parameter.tolist() == [1, 1]
    assert parameter.requires_grad


def test_apply_sparse_tensor_is_replaced():
    saved = torch.eye(3).to_sparse()
    state = {"h": Holder(1), "s": torch.zeros(3, 3).to_sparse()}
    apply(state, {"h": {"value": 1}, "s": saved})
    assert state["s"] is saved


def test_apply_object_at_two_places_is_loaded_once():
    holder = Holder(1)
    state = {"a": holder, "b": holder}
    part = {"value": 2}
    apply(state, {"a": part, "b": part})
    assert holder.num_loads == 1


# What does not fit.


def assert_refused(state, loaded, model, **fields):
    """Assert the fields of the error, and that a module in the state was not changed."""
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(StateMismatchError) as caught:
        apply(state, loaded)
    for name in ("missing", "unexpected"):
        assert getattr(caught.value, name) == fields.get(name, ())
    assert caught.value.shapes == fields.get("shapes", {})
    assert_same(dict(model.state_dict()), before)


def linear_state(model, **changed):
    state = {**{n: torch.full_like(t, 7.0) for n, t in model.state_dict().items()}, **changed}
    return {name: value for name, value in state.items() if value is not None}


@pytest.mark.parametrize(
    ("changed", "fields"),
    [
        ({"bias": None}, {"missing": ("m.bias",)}),
        ({"more": torch.ones(1)}, {"unexpected": ("m.more",)}),
        ({"weight": torch.ones(2, 3)}, {"shapes": {"m.weight": ((2, 3), (2, 2))}}),
        ({"bias": 3}, {"unexpected": ("m.bias",)}),
    ],
    ids=["missing", "unexpected", "shape", "no_tensor"],
)
def test_apply_module_that_does_not_fit_is_refused_before_anything_changes(changed, fields):
    first, model = torch.nn.Linear(1, 1), torch.nn.Linear(2, 2)
    state = {"first": first, "m": model, "n": 1}
    loaded = {"first": linear_state(first), "m": linear_state(model, **changed), "n": 2}
    assert_refused(state, loaded, first, **fields)
    assert state["n"] == 1


def test_apply_all_that_does_not_fit_is_named_at_once():
    model, holder = torch.nn.Linear(2, 2), Holder(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = {"m": model, "o": optimizer, "h": holder, "t": torch.ones(1), "n": 1}
    groups = [{"params": [0], "lr": 1.0}, {"params": [1], "lr": 1.0}]
    loaded = {
        "m": linear_state(model, bias=None),
        "o": {"state": {}, "param_groups": groups},
        "t": torch.ones(2),
        "more": {"a": 1, "b": torch.ones(1)},
    }
    assert_refused(
        state,
        loaded,
        model,
        missing=("n", "h", "m.bias", "o.param_groups.0.params.1"),
        unexpected=("more.a", "more.b", "o.param_groups.1.params.0"),
        shapes={"t": ((2,), (1,))},
    )


def test_apply_where_the_checkpoint_has_a_leaf_for_a_container_is_refused():
    model = torch.nn.Linear(2, 2)
    assert_refused({"a": [model]}, {"a": 5}, model, missing=("a.0",), unexpected=("a",))


def test_apply_module_on_meta_is_refused():
    model = torch.nn.Linear(2, 2, device="meta")
    with pytest.raises(StateMismatchError, match=r"m\.weight is on the meta device"):
        apply({"m": model}, {"m": torch.nn.Linear(2, 2).state_dict()})


def test_apply_batch_norm_of_an_old_state_is_taken_as_torch_does():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    saved = collections.OrderedDict(model.state_dict())
    del saved["1.num_batches_tracked"]  # as before version 2 of the module
    saved["1.running_mean"] = torch.full((2,), 3.0)
    apply({"m": model}, {"m": saved})
    assert model[1].running_mean.tolist() == [3, 3]
    del saved["1.running_var"]
    assert_refused({"m": model}, {"m": saved}, model, missing=("m.1.running_var",))


def test_apply_module_of_torch_0_3_takes_one_element_for_a_scalar():
    model = torch.nn.Module()
    model.scale = torch.nn.Parameter(torch.tensor(0.0))
    apply({"m": model}, {"m": {"scale": torch.tensor([2.0])}})
    assert model.scale.tolist() == 2


class Renaming(torch.nn.Linear):
    """A module that was once called otherwise."""

    def _load_from_state_dict(self, state, prefix, *rest):
        if prefix + "old" in state:
            state[prefix + "weight"] = state.pop(prefix + "old")
        super()._load_from_state_dict(state, prefix, *rest)


def test_apply_module_that_renames_is_left_to_itself():
    model = torch.nn.Sequential(Renaming(2, 2), torch.nn.Linear(2, 2))
    saved = dict(model.state_dict())
    saved["0.old"] = torch.ones(2, 2)
    del saved["0.weight"]
    apply({"m": model}, {"m": saved})
    assert model[0].weight.tolist() == [[1, 1], [1, 1]]
    assert_refused(
        {"m": model},
        {"m": {name: value for name, value in saved.items() if name != "1.bias"}},
        model,
        missing=("m.1.bias",),
    )


def test_apply_module_with_hooks_is_left_to_itself():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))

    def rename(_module, state, prefix, *_rest):
        state[prefix + "weight"] = state.pop(prefix + "w")

    model[0].register_load_state_dict_pre_hook(rename)
    saved = {"0.w": torch.ones(2, 2), "0.bias": torch.ones(2)}
    apply({"m": model}, {"m": saved})
    assert model[0].weight.tolist() == [[1, 1], [1, 1]]


def test_apply_module_with_extra_state():
    class Extra(torch.nn.Linear):
        extra = None

        def get_extra_state(self):
            return {"a": 1}

        def set_extra_state(self, state):
            self.extra = state

    model = torch.nn.Sequential(Extra(2, 2))
    apply({"m": model}, {"m": model.state_dict()})
    assert model[0].extra == {"a": 1}


def test_apply_lazy_module_takes_its_shapes_from_the_state():
    model = torch.nn.Sequential(torch.nn.LazyLinear(3))
    apply({"m": model}, {"m": torch.nn.Sequential(torch.nn.Linear(2, 3)).state_dict()})
    assert model[0].weight.shape == (3, 2)


@pytest.mark.parametrize("error", [KeyError("position"), RuntimeError("not now")])
def test_apply_object_that_refuses_its_part_is_named(error):
    first, later = Holder(1), Holder(1, refuse=error)
    with pytest.raises(StateMismatchError) as caught:
        apply({"a": first, "l": [later]}, {"a": {"value": 2}, "l": [{"value": 2}]})
    assert caught.value.unexpected == ("l.0",)
    assert caught.value.__cause__ is error
    assert f"load_state_dict() of l.0 (Holder) failed: {type(error).__name__}" in str(caught.value)
    assert "loaded in part" in str(caught.value)
    assert first.value == 2


@pytest.mark.parametrize("error", [MemoryError("full"), StorageError("disk", op="read")])
def test_apply_error_of_ours_or_of_memory_keeps_its_class(error):
    with pytest.raises(type(error)) as caught:
        apply({"h": Holder(1, refuse=error)}, {"h": {"value": 2}})
    assert caught.value is error
    assert error.__notes__ == ["in load_state_dict() of h (Holder)"]


def test_apply_disabled_scaler_into_an_enabled_one_is_refused():
    disabled = torch.amp.GradScaler("cpu", enabled=False)
    with pytest.raises(StateMismatchError, match=r"s \(GradScaler\) failed: RuntimeError"):
        apply({"s": torch.amp.GradScaler("cpu")}, {"s": disabled.state_dict()})


# Not strict.


def test_apply_not_strict_takes_what_both_have_and_logs_the_rest(caplog):
    model, holder = torch.nn.Linear(2, 2), Holder(1)
    weight = torch.zeros(2)
    state = {"m": model, "h": holder, "w": weight, "n": 1, "mine": 3, "list": [1, 2, 3]}
    loaded = {
        "m": linear_state(model, bias=None, more=torch.ones(1)),
        "w": torch.ones(2),
        "n": 2,
        "yours": 4,
        "list": [7],
    }
    bias = model.bias.clone()
    with caplog.at_level(logging.INFO, logger="gdsckpt"):
        apply(state, loaded, strict=False)
    assert model.weight.tolist() == [[7, 7], [7, 7]]
    assert torch.equal(model.bias, bias)
    assert weight.tolist() == [1, 1]
    assert (state["n"], state["mine"], state["list"], holder.value) == (2, 3, [7, 2, 3], 1)
    assert "yours" not in state
    [record] = caplog.records
    assert sorted(record.args[0]) == ["h", "list.1", "list.2", "m.bias", "mine"]
    assert sorted(record.args[1]) == ["m.more", "yours"]


def test_apply_not_strict_other_shape_or_group_is_refused_all_the_same():
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = model.weight.clone()
    with pytest.raises(StateMismatchError) as caught:
        apply({"m": model}, {"m": linear_state(model, weight=torch.ones(3, 3))}, strict=False)
    assert caught.value.shapes == {"m.weight": ((3, 3), (2, 2))}
    groups = {"state": {}, "param_groups": [{"params": [0], "lr": 1.0}]}
    with pytest.raises(StateMismatchError) as caught:
        apply({"m": model, "o": optimizer}, {"m": linear_state(model), "o": groups}, strict=False)
    assert caught.value.missing == ("o.param_groups.0.params.1",)
    assert torch.equal(model.weight, before)


def test_apply_strict_is_told_to_those_who_ask():
    class Asking(Holder):
        def load_state_dict(self, state, strict=True):
            self.strict = strict

    asking = Asking(1)
    apply({"a": asking}, {"a": {"value": 1}}, strict=False)
    assert asking.strict is False
    apply({"a": asking}, {"a": {"value": 1}})
    assert asking.strict is True


def test_apply_optimizer_of_a_fresh_run_gets_its_state():
    def make():
        model = torch.nn.Linear(2, 2)
        return model, torch.optim.AdamW(model.parameters())

    (trained, optimizer), (model, fresh) = make(), make()
    trained(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    state = {"m": model, "o": fresh}
    apply(state, gathered({"m": trained, "o": optimizer}))
    assert_same(optimizer.state_dict(), fresh.state_dict())
