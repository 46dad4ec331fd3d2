import collections
import pickletools
import threading
import warnings

import pytest
import torch

from gdsckpt.errors import ConfigError
from gdsckpt.tensors.pickling import pickle_state


def globals_of(raw):
    return {argument for op, argument, _ in pickletools.genops(raw) if op.name == "GLOBAL"}


def test_pickle_state_plain_tensors_needs_one_rebuild_function_and_no_hooks():
    raw = pickle_state({"a": torch.ones(2), "b": torch.zeros(3, 4)}).pickle
    assert globals_of(raw) == {"torch._utils _rebuild_tensor_v2", "torch FloatStorage"}


def test_pickle_state_equal_shapes_are_held_once():
    one = pickle_state([torch.ones(5, 7)]).pickle
    many = pickle_state([torch.ones(5, 7) for _ in range(10)]).pickle
    tuples = [op.name for op, _, _ in pickletools.genops(many)].count("TUPLE2")
    assert tuples == [op.name for op, _, _ in pickletools.genops(one)].count("TUPLE2")


@pytest.mark.parametrize("requires_grad", [False, True])
def test_pickle_state_loaded_tensors_do_not_share_hooks(tmp_path, requires_grad):
    import gdsckpt

    state = [torch.ones(2, requires_grad=requires_grad) for _ in range(2)]
    gdsckpt.save(state, tmp_path / "a.pt")
    first, second = torch.load(tmp_path / "a.pt")
    assert [t.requires_grad for t in (first, second)] == [requires_grad] * 2
    first.requires_grad_(True).register_hook(lambda grad: grad * 2)
    second.requires_grad_(True)
    (first.sum() + second.sum()).backward()
    assert first.grad.tolist() == [2, 2]
    assert second.grad.tolist() == [1, 1]


class Subclass(torch.Tensor):
    pass


@pytest.mark.parametrize("weights_only", [False, True])
def test_pickle_state_view_of_another_dtype_requires_gradients_when_loaded(tmp_path, weights_only):
    import gdsckpt

    raw = torch.arange(8, dtype=torch.uint8)
    view = raw.view(torch.float32).requires_grad_()
    state = [raw, view, view, torch.zeros(2).to(torch.float8_e5m2).requires_grad_()]
    state.append(view.as_subclass(Subclass))
    gdsckpt.save(state, tmp_path / "a.pt")
    with torch.serialization.safe_globals([Subclass]):
        loaded = torch.load(tmp_path / "a.pt", weights_only=weights_only)
    assert [t.requires_grad for t in loaded] == [False, True, True, True, True]
    assert [type(t) for t in loaded] == [torch.Tensor] * 4 + [Subclass]
    assert [t.dtype for t in loaded] == [t.dtype for t in state]
    assert loaded[1] is loaded[2]
    assert loaded[1].is_leaf
    assert len({t.untyped_storage()._cdata for t in loaded}) == 2
    assert torch.equal(loaded[1].detach(), view.detach())


def test_pickle_state_tensor_with_hooks_warns_as_torch_does():
    tensor = torch.ones(2, requires_grad=True)
    tensor.register_hook(lambda grad: grad)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pickle_state([tensor])
    assert ["backward hook" in str(warning.message) for warning in caught] == [True]


def test_pickle_state_conjugate_keeps_its_mark():
    raw = pickle_state([torch.ones(2, dtype=torch.complex64).conj()]).pickle
    assert b"conj" in raw


@pytest.mark.skipif(not hasattr(torch.Tensor, "has_names"), reason="this torch has no names")
@pytest.mark.filterwarnings("ignore:Named tensors")
def test_pickle_state_tensor_with_named_dimensions_is_refused_as_by_torch():
    with pytest.raises(ConfigError, match=r"pickled: a \(Tensor\): .*Named tensors"):
        pickle_state({"a": torch.zeros(2, names=("rows",)), "b": torch.zeros(2)})


def test_pickle_state_tensor_with_attributes_keeps_them():
    tensor = torch.ones(2)
    tensor.note = "kept"
    raw = pickle_state([tensor]).pickle
    assert b"kept" in raw


class Holder:
    """An object of plain attributes."""

    def __init__(self, **attributes):
        vars(self).update(attributes)


class Refusing:
    def __reduce__(self):
        raise RuntimeError("not me")


def local_object():
    class Local:
        pass

    return Local()


def in_cycle():
    outer, inner = Holder(), Holder()
    outer.inner, inner.outer = inner, outer
    inner.lock = threading.Lock()
    return outer


Pair = collections.namedtuple("Pair", "a b")


@pytest.mark.parametrize(
    ("state", "name"),
    [
        ({"a": 1, "extra": {"fn": lambda: 1}}, "extra.fn (function)"),
        ({"a": torch.ones(2), "l": [1, (2, threading.Lock())]}, "l.1.1 (lock)"),
        ([Pair(1, (n for n in ()))], "0.1 (generator)"),
        ({"x": Refusing()}, "x (Refusing)"),
        ({"x": local_object()}, "x (Local)"),
        ({"x": threading}, "x (module)"),
        ({"x": type(local_object())}, "x (type)"),
        ({"config": Holder(rate=0.1, schedule=lambda step: step)}, "config.schedule (function)"),
        ({"o": in_cycle()}, "o.inner.lock (lock)"),
        ({"k": {local_object(): 1}}, "k (dict)"),
        (threading.Lock(), "the state itself (lock)"),
    ],
    ids=range(11),
)
def test_pickle_state_names_what_cannot_be_pickled(state, name):
    with pytest.raises(ConfigError) as caught:
        pickle_state(state)
    assert f"cannot be pickled: {name}: " in str(caught.value)
    assert caught.value.field == "obj"
    assert caught.value.__cause__ is not None


def test_pickle_state_module_with_a_lambda_names_the_attribute():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    model[1].activation = lambda x: x
    with pytest.raises(ConfigError, match=r"model\._modules\.1\.activation \(function\)"):
        pickle_state({"model": model})


def test_pickle_state_storage_that_no_location_takes_names_the_tensor(monkeypatch):
    def refuse(storage):
        if storage.nbytes() == 12:
            raise ValueError("no location for 12 bytes")

    registry = [(0, refuse, lambda storage, location: None), *torch.serialization._package_registry]
    monkeypatch.setattr(torch.serialization, "_package_registry", registry)
    with pytest.raises(ConfigError, match=r"pickled: a\.b \(Tensor\): ValueError: no location"):
        pickle_state({"a": {"b": torch.ones(3)}, "c": torch.ones(2)})


def test_pickle_state_too_deep_is_refused_without_a_search():
    state = []
    for _ in range(100_000):
        state = [state]
    with pytest.raises(ConfigError, match=r"the state itself \(list\): RecursionError"):
        pickle_state(state)


def test_pickle_state_list_that_holds_itself_names_what_cannot_be_pickled():
    state = [1]
    state += [state, threading.Lock()]
    with pytest.raises(ConfigError, match=r"pickled: 2 \(lock\)"):
        pickle_state(state)
