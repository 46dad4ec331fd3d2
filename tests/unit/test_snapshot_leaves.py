"""The tensors of a nest with their storages, in columns."""

import collections

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

from gdsckpt.saving import content_of
from gdsckpt.snapshot.leaves import leaves_of
from gdsckpt.snapshot.source import Source
from gdsckpt.snapshot.watch import counters_of


def storage_of(tensor):
    return tensor.untyped_storage()._cdata


def rows_of(root):
    """Give (tensor, part, storage), of tensors and parts their ids."""
    leaves = leaves_of(root)
    return {(id(tensor), id(part), storage) for tensor, part, storage in zip(*leaves, strict=True)}


def test_plain_tensors_of_every_container_are_found():
    weight = torch.nn.Parameter(torch.zeros(2))
    model = torch.nn.BatchNorm1d(3)
    tensors = [torch.zeros(1) for _ in range(4)]
    root = {
        "list": [tensors[0], 3, None, "text"],
        "tuple": (weight, {"deep": tensors[1]}),
        "ordered": collections.OrderedDict(a=tensors[2]),
        "model": model,
        4: tensors[3],
        "object": object(),
    }
    expected = [*tensors, weight, *model.state_dict(keep_vars=True).values()]
    assert rows_of(root) == {(id(each), id(each), storage_of(each)) for each in expected}


@pytest.mark.parametrize("root", [{}, [], None, 3, {"a": [{}, ()]}], ids=str)
def test_nests_without_tensors_have_no_leaves(root):
    assert leaves_of(root) == ([], [], [])


def test_tensor_alone_is_a_nest():
    tensor = torch.zeros(1)
    assert rows_of(tensor) == {(id(tensor), id(tensor), storage_of(tensor))}


def test_uninitialized_tensors_have_no_storage():
    lazy = torch.nn.LazyBatchNorm1d()
    expected = lazy.num_batches_tracked
    assert rows_of(lazy) == {(id(expected), id(expected), storage_of(expected))}


def test_container_in_itself_is_entered_once():
    tensor = torch.zeros(1)
    root = {"a": tensor}
    root["self"] = [root]
    assert leaves_of(root).storages == [storage_of(tensor)]


def test_tensor_of_two_parts_stands_twice_beside_plain_ones():
    plain, first, second = torch.zeros(1), torch.zeros(2), torch.zeros(2)
    whole = TwoTensor(first, second)
    leaves = leaves_of({"plain": plain, "two": whole})
    assert [id(each) for each in leaves.tensors] == [id(plain), id(whole), id(whole)]
    assert leaves.storages == [storage_of(each) for each in (plain, first, second)]


def test_sparse_tensor_is_its_indices_and_values():
    plain, sparse = torch.zeros(1), torch.eye(3).to_sparse()
    leaves = leaves_of([plain, sparse])
    assert sorted(leaves.storages) == sorted(
        storage_of(each) for each in (plain, sparse._indices(), sparse._values())
    )
    assert {id(each) for each in leaves.tensors} == {id(plain), id(sparse)}


def test_counters_of_some_storages_tell_of_no_others():
    state = {"a": torch.zeros(3), "b": torch.zeros(3)}
    with torch.inference_mode():
        state["c"] = torch.zeros(3)
    counters = counters_of(Source(state, content_of(state)))
    some = counters.among([0])
    assert counters.among([0, 1, 2]) is counters
    state["b"].add_(1)
    with torch.inference_mode():
        state["c"].add_(1)
    assert some.changed() == set()
    assert counters.changed() == {1}
    state["a"].add_(1)
    assert some.changed() == {0}
