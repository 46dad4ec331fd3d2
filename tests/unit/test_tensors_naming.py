import torch

from gdsckpt.tensors.naming import name_of, strided_parts, tensor_entries, walk
from gdsckpt.tensors.pickling import pickle_state


def test_tensor_entries_from_facts_of_the_pickler_are_those_without():
    base = torch.arange(24.0).reshape(4, 6)
    tied = torch.ones(3)
    state = {
        "": {"": base, "step": 3},
        "views": [base[1:], base.T, base[:, 2:4], base.view(torch.int32), torch.tensor(1.5)],
        "tied": (tied, tied),
        "parameter": torch.nn.Parameter(torch.zeros(2)),
        "conjugate": torch.ones(2, dtype=torch.complex64).conj(),
        "sparse": torch.eye(2).to_sparse(),
        "module": torch.nn.Linear(2, 1),
        7: {},
    }
    pickled = pickle_state(state)
    assert len(pickled.facts) >= 6
    found = tensor_entries(state, pickled.key_of, pickled.facts)
    assert found == tensor_entries(state, pickled.key_of, {})
    assert [entry.name for entry in found] == [
        name_of(part)
        for path, leaf in walk(state)
        if isinstance(leaf, torch.Tensor)
        for part, _ in strided_parts(path, leaf)
    ]


class Key:
    def __str__(self):
        return "key"

    def __format__(self, spec):
        raise TypeError("this key has no format")


def test_tensor_entries_name_keys_by_str_and_not_by_format():
    state = {Key(): {Key(): torch.ones(2)}, torch.tensor(7): torch.ones(2)}
    pickled = pickle_state(state)
    entries = tensor_entries(state, pickled.key_of, pickled.facts)
    assert [entry.name for entry in entries] == ["key.key", "tensor(7)"]
