import collections
import types

import pytest
import torch
from states import assert_same

from gdsckpt.errors import ConfigError, StorageError
from gdsckpt.tensors.stateful import (
    StatefulNest,
    expanded,
    gathered,
    is_stateful,
    statefuls,
    substituted,
)


class Counter:
    """A Stateful object that counts how often it is asked."""

    def __init__(self, value):
        self.value = value
        self.num_asked = 0

    def state_dict(self):
        self.num_asked += 1
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value = state["value"]


class Both(StatefulNest):
    """A nest of two counters; ``values`` is the user's own list."""

    def __init__(self):
        self.values = [1, Counter(2)]

    def parts(self):
        return {"one": Counter(1), "values": self.values}

    def load_state_dict(self, state, strict=True):
        raise NotImplementedError


Pair = collections.namedtuple("Pair", "a b")


class Marked(tuple):
    """A tuple with a constructor of its own, and an attribute."""

    def __new__(cls, mark, *items):
        made = super().__new__(cls, items)
        made.mark = mark
        return made


class Foreign(collections.abc.MutableMapping):
    """A mapping whose copies share what is in it."""

    def __init__(self, items):
        self._items = items

    def __getitem__(self, key):
        return self._items[key]

    def __setitem__(self, key, value):
        self._items[key] = value

    def __delitem__(self, key):
        del self._items[key]

    def __iter__(self):
        return iter(self._items)

    def __len__(self):
        return len(self._items)


def parameters():
    return [torch.nn.Parameter(torch.ones(2))]


@pytest.mark.parametrize(
    "node",
    [
        torch.nn.Linear(2, 2),
        torch.optim.SGD(parameters(), lr=0.1),
        torch.optim.lr_scheduler.StepLR(torch.optim.SGD(parameters(), lr=0.1), 2),
        torch.amp.GradScaler("cpu"),
        Counter(1),
        Both(),
    ],
    ids=lambda node: type(node).__name__,
)
def test_is_stateful_of_objects_with_a_state(node):
    assert is_stateful(node)


@pytest.mark.parametrize(
    "node",
    [
        torch.ones(1),
        torch.nn.Parameter(torch.ones(1)),
        torch.nn.UninitializedParameter(),
        {},
        [],
        None,
        3,
        "state_dict",
        torch.nn.Linear,
        types.SimpleNamespace(state_dict=dict),
        types.SimpleNamespace(state_dict={}, load_state_dict={}),
        torch.utils.data.DataLoader([1]),
    ],
    ids=range(12),
)
def test_is_stateful_not_of_others(node):
    assert not is_stateful(node)


def test_gathered_module_at_the_root_gives_its_state():
    model = torch.nn.Linear(2, 3)
    state = gathered(model)
    assert type(state) is collections.OrderedDict
    assert state._metadata == model.state_dict()._metadata
    assert state["weight"].data_ptr() == model.weight.data_ptr()


def test_gathered_replaces_at_any_depth_and_changes_nothing_of_the_users():
    tensor, plain = torch.ones(2), {"a": [1, 2]}
    inner = [Counter(1), tensor, (Counter(2), 3)]
    state = {"deep": {"list": inner, 7: Counter(3)}, "plain": plain, "none": None, "empty": []}
    found = gathered(state)
    assert_same(
        found,
        {
            "deep": {"list": [{"value": 1}, tensor, ({"value": 2}, 3)], 7: {"value": 3}},
            "plain": {"a": [1, 2]},
            "none": None,
            "empty": [],
        },
    )
    assert found["plain"] is plain
    assert found["deep"]["list"][1] is tensor
    assert [type(item) for item in inner] == [Counter, torch.Tensor, tuple]
    assert type(state["deep"][7]) is Counter


def test_gathered_state_without_objects_is_the_state_itself():
    state = {"a": [torch.ones(1), (1, 2)], "size": torch.Size([1])}
    assert gathered(state) is state


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (Pair(Counter(1), 2), Pair({"value": 1}, 2)),
        (collections.OrderedDict(b=Counter(1), a=2), collections.OrderedDict(b={"value": 1}, a=2)),
        (types.MappingProxyType({"a": Counter(1), "b": 2}), {"a": {"value": 1}, "b": 2}),
        (Foreign({"a": Counter(1), "b": 2}), {"a": {"value": 1}, "b": 2}),
    ],
    ids=["namedtuple", "ordered", "proxy", "foreign"],
)
def test_gathered_keeps_kind_and_order_of_containers(state, expected):
    found = gathered(state)
    assert type(found) is type(expected)
    assert found == expected
    assert list(found) == list(expected)


def test_gathered_defaultdict_keeps_its_factory():
    found = gathered(collections.defaultdict(list, a=Counter(1)))
    assert found["new"] == []
    assert found["a"] == {"value": 1}


def test_gathered_user_dict_is_not_changed():
    state = Foreign({"a": Counter(1)})
    gathered(state)
    assert type(state["a"]) is Counter


def test_gathered_tuple_with_a_constructor_of_its_own_keeps_its_attributes():
    found = gathered({"t": Marked("m", Counter(1), 2)})["t"]
    assert type(found) is Marked
    assert (found.mark, tuple(found)) == ("m", ({"value": 1}, 2))


def test_gathered_list_subclass_keeps_its_kind():
    class Items(list):
        pass

    state = Items([Counter(1), 2])
    found = gathered(state)
    assert type(found) is Items
    assert found == [{"value": 1}, 2]
    assert type(state[0]) is Counter


def test_gathered_object_at_two_places_is_asked_once():
    counter = Counter(1)
    found = gathered({"a": counter, "b": [counter]})
    assert counter.num_asked == 1
    assert found["a"] is found["b"][0]


def test_gathered_container_at_two_places_stays_one():
    shared = [Counter(1)]
    found = gathered({"a": shared, "b": shared})
    assert found["a"] is found["b"]


def test_gathered_takes_what_state_dict_gives_as_it_is():
    class Opaque(Counter):
        def state_dict(self):
            return self.value

    inner = Counter(1)
    assert gathered([Opaque(inner)])[0] is inner


class Broken(Counter):
    """A Stateful object whose methods raise."""

    def state_dict(self):
        raise self.value


def test_gathered_failure_names_the_place_and_the_type():
    cause = RuntimeError("gone")
    with pytest.raises(ConfigError) as caught:
        gathered({"a": 1, "deep": [Counter(1), Broken(cause)]})
    assert str(caught.value).startswith(
        "state_dict() of deep.1 (Broken) failed: RuntimeError: gone."
    )
    assert caught.value.field == "state"
    assert caught.value.__cause__ is cause


@pytest.mark.parametrize("error", [MemoryError("full"), StorageError("disk", op="read")])
def test_gathered_failure_of_ours_or_of_memory_keeps_its_class(error):
    with pytest.raises(type(error)) as caught:
        gathered({"loader": Broken(error)})
    assert caught.value is error
    assert error.__notes__ == ["in state_dict() of loader (Broken)"]


def test_gathered_interrupt_is_left_alone():
    with pytest.raises(KeyboardInterrupt):
        gathered([Broken(KeyboardInterrupt())])


def test_gathered_container_in_itself_beside_objects_is_refused():
    state = {"m": Counter(1), "l": [1]}
    state["l"].append(state["l"])
    with pytest.raises(ConfigError, match=r"l\.1 in the state is a container that contains itself"):
        gathered(state)


def test_gathered_container_in_itself_without_objects_is_left_to_pickle():
    state = [1]
    state.append(state)
    assert gathered(state) is state


def test_gathered_deep_nest_does_not_overflow():
    state = []
    for _ in range(3000):
        state = [state]
    assert gathered(state) is state


def test_statefuls_come_in_the_order_of_the_nest():
    state = {"b": [Counter(1), {"x": Counter(2)}], "a": Counter(3)}
    assert [path for path, _ in statefuls(state)] == [("b", 0), ("b", 1, "x"), ("a",)]


def test_expanded_nest_of_objects_is_replaced_by_its_parts():
    both = Both()
    expansion = expanded({"both": both, "c": Counter(3)})
    paths = [path for path, _ in expansion.statefuls]
    assert paths == [("both", "one"), ("both", "values", 1), ("c",)]
    assert expansion.nest["both"]["values"] is both.values


def test_expanded_copies_know_the_users_containers():
    state = {"list": [Both(), 1]}
    expansion = expanded(state)
    copied = expansion.nest["list"]
    assert copied is not state["list"]
    assert expansion.original_of[id(copied)] is state["list"]
    assert type(state["list"][0]) is Both


def test_stateful_nest_failure_names_the_part():
    class Failing(Both):
        def parts(self):
            return {"loader": Broken(ValueError("no"))}

    with pytest.raises(ConfigError, match=r"state_dict\(\) of run\.loader \(Broken\) failed"):
        gathered({"run": Failing()})
    with pytest.raises(ConfigError, match=r"state_dict\(\) of loader \(Broken\) failed"):
        Failing().state_dict()


def test_substituted_at_the_root_gives_the_value():
    assert substituted({"a": 1}, {(): 5}) == 5
