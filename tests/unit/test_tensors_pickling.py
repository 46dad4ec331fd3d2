import pickletools
import warnings

import pytest
import torch

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


def test_pickle_state_tensor_with_attributes_keeps_them():
    tensor = torch.ones(2)
    tensor.note = "kept"
    raw = pickle_state([tensor]).pickle
    assert b"kept" in raw
