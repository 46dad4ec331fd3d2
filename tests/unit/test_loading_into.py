"""What ``into=`` and ``keys=`` do with states that do not just consist of dicts and tensors."""

import collections
import copy
import random

import pytest
import torch
from states import assert_same

import gdsckpt
from gdsckpt.errors import ConfigError, StateMismatchError

BIG = torch.full((200_000,), 7.0)


@pytest.fixture
def fill(tmp_path):
    """Save one state, load it into another."""

    def save_and_fill(saved, target, **options):
        gdsckpt.save(saved, tmp_path / "a.pt")
        return gdsckpt.load(tmp_path / "a.pt", into=target, **options)

    return save_and_fill


@pytest.mark.parametrize(
    ("saved", "target", "name"),
    [
        ({"ema": BIG}, {"ema": None}, "ema"),
        ({"best": torch.tensor(3.0)}, {"best": 1.0}, "best"),
        ({"n": 1}, {"n": torch.zeros(1)}, "n"),
        ([torch.ones(3)], [None], "0"),
        (torch.ones(3), 7, "the state itself"),
        (5, 7, "the state itself"),
        ({"t": (torch.ones(1), 1)}, {"t": (torch.zeros(1), 2)}, "t.1"),
        ({"a": torch.ones(4)}, {"a": torch.zeros(1).expand(4)}, "a"),
        ({"a": torch.ones(4)}, {"a": torch.empty(4, device="meta")}, "a"),
    ],
    ids=range(9),
)
def test_into_leaf_that_cannot_be_filled_is_refused_before_anything_changes(
    fill, saved, target, name
):
    both = [{"first": torch.ones(2), "x": saved}, {"first": torch.zeros(2), "x": target}]
    whole = not isinstance(saved, dict)
    saved_state, target_state = (saved, target) if whole else both
    with pytest.raises(StateMismatchError) as caught:
        fill(saved_state, target_state)
    assert caught.value.unexpected == (name if whole else f"x.{name}",)
    if not whole:
        assert not target_state["first"].any()


def test_into_same_value_at_the_root_is_no_mismatch(fill):
    assert fill(5, 5) == 5


def test_into_replaces_tuples_of_values(fill):
    saved = {"rng": random.getstate(), "betas": (0.9, 0.999), "nan": (1, float("nan"))}
    target = {"rng": random.Random(1).getstate(), "betas": (0.9, 0.95), "nan": (2, 3)}
    fill(saved, target)
    assert target["rng"] == saved["rng"]
    assert target["betas"] == (0.9, 0.999)
    assert target["nan"][1] != target["nan"][1]


def test_into_optimizer_state_with_other_betas(fill):
    def optimizer(betas):
        layer = torch.nn.Linear(3, 4)
        adam = torch.optim.AdamW(layer.parameters(), betas=betas)
        layer(torch.ones(1, 3)).sum().backward()
        adam.step()
        return adam.state_dict()

    saved, target = optimizer((0.9, 0.999)), optimizer((0.8, 0.95))
    fill(saved, target)
    assert_same(saved, target)


def test_into_nan_in_a_tuple_with_tensors_equals_itself(fill):
    saved = {"t": (torch.ones(2), float("nan"))}
    target = {"t": (torch.zeros(2), float("nan"))}
    fill(saved, target)
    assert torch.equal(target["t"][0], torch.ones(2))


@pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta state")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor, torch.quantize_per_channel and")
@pytest.mark.parametrize("kind", ["csr", "nested", "quantized", "lazy"])
def test_into_replaces_tensors_that_are_not_dense(fill, kind):
    def make(size, value):
        if kind == "csr":
            return (torch.eye(3) * value)[:, :3].to_sparse_csr()
        if kind == "nested":
            return torch.nested.nested_tensor([torch.full((size,), value), torch.ones(1)])
        if kind == "quantized":
            return torch.quantize_per_tensor(torch.full((3,), value), 0.1, 0, torch.qint8)
        return torch.nn.parameter.UninitializedParameter()

    saved, target = {"x": make(2, 2.0)}, {"x": make(3, 1.0)}
    fill(saved, target, weights_only=kind != "lazy")
    if kind == "csr":
        assert torch.equal(target["x"].to_dense(), saved["x"].to_dense())
    elif kind == "nested":
        assert [t.tolist() for t in target["x"].unbind()] == [[2.0, 2.0], [1.0]]
    elif kind == "quantized":
        assert torch.equal(target["x"].dequantize(), saved["x"].dequantize())
    else:
        assert torch.nn.parameter.is_lazy(target["x"])


def test_save_lazy_module_as_torch_does(tmp_path):
    state = {"model": torch.nn.LazyLinear(3).state_dict(), "w": torch.ones(2)}
    gdsckpt.save(state, tmp_path / "a.pt")
    for loaded in (
        gdsckpt.load(tmp_path / "a.pt", weights_only=False),
        torch.load(tmp_path / "a.pt", weights_only=False),
    ):
        assert torch.nn.parameter.is_lazy(loaded["model"]["weight"])
        assert torch.equal(loaded["w"], state["w"])


class OwnList(list):
    """A list of another type."""


class OwnTuple(tuple):
    """A tuple that is not made of one iterable."""

    __slots__ = ()

    def __new__(cls, a, b):
        return super().__new__(cls, (a, b))

    def __getnewargs__(self):
        return tuple(self)


Pair = collections.namedtuple("Pair", "a b")


@pytest.fixture
def saved_containers(tmp_path):
    state = {
        "own_list": OwnList([torch.ones(1), 2]),
        "own_tuple": OwnTuple(torch.ones(1), 2),
        "pair": Pair(1, torch.zeros(2)),
        "size": torch.Size([3, 4]),
        "ordered": collections.OrderedDict(a=1, b=2),
    }
    path = tmp_path / "a.pt"
    gdsckpt.save(state, path)
    return path, state


def test_keys_that_select_all_change_no_container(saved_containers):
    path, state = saved_containers
    loaded = gdsckpt.load(path, keys=lambda name: True, weights_only=False)
    assert_same(state, loaded)


def test_keys_that_select_a_container_whole_keep_its_type(saved_containers):
    path, state = saved_containers
    for key, value in state.items():
        loaded = gdsckpt.load(path, keys=key, weights_only=False)
        assert_same({key: value}, loaded)


def test_keys_that_cut_a_container_keep_its_type_where_it_can_be_made(saved_containers):
    path, _ = saved_containers
    keys = ["own_list.1", "own_tuple.1", "pair.0", "size.0", "ordered.b"]
    loaded = gdsckpt.load(path, keys=keys, weights_only=False)
    assert_same(
        {
            "own_list": OwnList([None, 2]),
            "own_tuple": (None, 2),
            "pair": Pair(1, None),
            "size": (3, None),
            "ordered": collections.OrderedDict(b=2),
        },
        loaded,
    )


def test_keys_of_a_state_that_contains_itself_keep_the_loop(tmp_path):
    state = {"t": torch.ones(1)}
    state["self"] = state
    gdsckpt.save(state, tmp_path / "a.pt")
    loaded = gdsckpt.load(tmp_path / "a.pt", keys=lambda name: True)
    assert loaded["self"] is loaded


def test_keys_from_a_generator_are_checked_like_a_list(tmp_path):
    gdsckpt.save({"a": 1, "b": 2}, tmp_path / "a.pt")
    assert gdsckpt.load(tmp_path / "a.pt", keys=(key for key in "a")) == {"a": 1}
    with pytest.raises(StateMismatchError) as caught:
        gdsckpt.load(tmp_path / "a.pt", keys=(key for key in ["zz"]))
    assert caught.value.missing == ("zz",)


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda path: gdsckpt.load(path, keys=5), "keys"),
        (lambda path: gdsckpt.load(path, config=5), "config"),
        (lambda path: gdsckpt.load(path, config="io_threads"), "config"),
        (lambda path: gdsckpt.load(path, config={1: 2}), "1"),
        (lambda path: gdsckpt.verify(5), "f"),
        (lambda path: gdsckpt.verify(None), "f"),
        (lambda path: gdsckpt.verify("a\0b"), "f"),
        (lambda path: gdsckpt.load("a\0b"), "f"),
        (lambda path: gdsckpt.load(""), "f"),
        (lambda path: gdsckpt.save({}, "a\0b"), "f"),
        (lambda path: gdsckpt.save({}, ""), "f"),
        (lambda path: gdsckpt.save({}, f"{path}-new/"), "f"),
        (lambda path: gdsckpt.save({}, path.parent / ".gdsckpt-tmp-x"), "f"),
        (lambda path: gdsckpt.save_checkpoint({}, "", step=1), "f"),
    ],
    ids=range(14),
)
def test_wrong_argument_is_a_config_error(tmp_path, call, field):
    path = tmp_path / "a.pt"
    gdsckpt.save({"a": 1}, path)
    with pytest.raises(ConfigError) as caught:
        call(path)
    assert caught.value.field == field
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a.pt"]


def test_name_that_is_too_long_is_a_storage_error(tmp_path):
    path = tmp_path / ("x" * 256)
    for call in (gdsckpt.load, gdsckpt.verify, lambda path: gdsckpt.save({}, path)):
        with pytest.raises(gdsckpt.errors.StorageError) as caught:
            call(path)
        assert caught.value.path == str(path)


def test_deepcopy_of_a_loaded_state_fills_again(tmp_path):
    state = {"w": torch.ones(3), "r": random.getstate(), "l": [(1, 2), {"x": None}]}
    gdsckpt.save(state, tmp_path / "a.pt")
    loaded = gdsckpt.load(tmp_path / "a.pt")
    assert_same(state, gdsckpt.load(tmp_path / "a.pt", into=copy.deepcopy(loaded)))
