"""The guard finds what changes between the call and the last byte read, and names it."""

import copy
import dataclasses

import pytest
import torch
from snapshots import MIB, check, give_gradients, snap, trained, training_state, write
from states import assert_same

from gdsckpt.errors import TornSnapshotError

LARGE = 3 * MIB // 4  # float32: three samples


def fenced(model=None, make=torch.optim.AdamW, **settings):
    """Give a model, its optimizer and a snapshot that reads both live."""
    torch.manual_seed(0)
    model = model or torch.nn.Linear(8, 4)
    optimizer = trained(model, make, lr=0.1, **settings)
    state = training_state(model, optimizer)
    return model, optimizer, snap(state, optimizer=optimizer)


def torn_names(snapshot):
    with pytest.raises(TornSnapshotError) as caught:
        check(snapshot)
    return set(caught.value.names)


def step_past_the_hooks(optimizer):
    """Step as one that no hook of torch's sees."""
    type(optimizer).step.__wrapped__(optimizer)


@pytest.mark.parametrize("way", ["foreach", "fused", "capturable_off"])
def test_step_that_no_hook_sees_is_found(way):
    settings = {"foreach": {"foreach": True}, "fused": {"fused": True}}.get(way, {"foreach": False})
    model, optimizer, snapshot = fenced(**settings)
    versions = [parameter._version for parameter in model.parameters()]
    give_gradients(model)
    step_past_the_hooks(optimizer)
    names = torn_names(snapshot)
    assert {"model.weight", "model.bias"} <= names
    assert {"optimizer.state.0.exp_avg", "optimizer.state.1.exp_avg_sq"} <= names
    if way == "fused":  # torch's counters do not see it: the samples do
        assert versions == [parameter._version for parameter in model.parameters()]


def test_no_change_is_not_found(tmp_path):
    model, optimizer, snapshot = fenced()
    model(torch.randn(3, 8)).sum().backward()
    expected = copy.deepcopy(training_state(model, optimizer))
    check(snapshot)
    assert_same(expected, write(snapshot, tmp_path / "a.pt"))


def _data_write(model):
    model.weight.data.mul_(2)


def _copy(model):
    with torch.no_grad():
        model.weight.copy_(torch.zeros(4, 8))


def _load_state_dict(model):
    model.load_state_dict({"weight": torch.zeros(4, 8), "bias": model.bias.detach().clone()})


def _view_write(model):
    model.weight.detach().view(-1)[3] = 7.0


def _numpy_write(model):
    model.weight.detach().numpy()[0, 0] = 7.0


def _init(model):
    torch.nn.init.zeros_(model.weight)


@pytest.mark.parametrize("change", [_data_write, _copy, _load_state_dict, _view_write, _numpy_write,
                                    _init])  # fmt: skip
def test_write_to_a_live_tensor_is_found(change):
    model, _, snapshot = fenced()
    change(model)
    assert "model.weight" in torn_names(snapshot)


def test_write_of_the_same_value_through_the_dispatcher_is_found():
    model, _, snapshot = fenced()
    with torch.no_grad():
        model.bias.copy_(model.bias.clone())
    assert torn_names(snapshot) == {"model.bias"}


def test_change_by_a_second_optimizer_past_the_hooks_is_found():
    model, _, snapshot = fenced()
    second = torch.optim.SGD([model.bias], lr=0.5)
    give_gradients(model)
    step_past_the_hooks(second)
    assert torn_names(snapshot) == {"model.bias"}


@pytest.mark.parametrize("nbytes", [0, 4, 4 * LARGE, 1 << 26])
def test_storage_that_was_freed_or_resized_is_found(nbytes):
    model = torch.nn.Linear(1, LARGE, bias=False)
    _, _, snapshot = fenced(model)
    model.weight.untyped_storage().resize_(nbytes)
    assert torn_names(snapshot) == {"model.weight"}


def test_tensor_that_was_resized_is_found():
    model, _, snapshot = fenced()
    model.weight.data.resize_(1000, 1000)
    assert "model.weight" in torn_names(snapshot)


def test_optimizer_state_that_is_replaced_leaves_the_snapshot_whole(tmp_path):
    model, optimizer, snapshot = fenced()
    expected = copy.deepcopy(training_state(model, optimizer))
    other = trained(torch.nn.Linear(8, 4), torch.optim.AdamW, lr=0.3)
    optimizer.load_state_dict(other.state_dict())
    assert_same(expected, write(snapshot, tmp_path / "a.pt"))


def test_parameter_that_gets_other_memory_leaves_the_snapshot_whole(tmp_path):
    model, optimizer, snapshot = fenced()
    expected = copy.deepcopy(training_state(model, optimizer))
    model.weight.data = torch.zeros(4, 8)
    assert_same(expected, write(snapshot, tmp_path / "a.pt"))


def test_large_tensor_that_changes_everywhere_is_found_by_its_samples():
    model = torch.nn.Linear(1, LARGE, bias=False)
    _, _, snapshot = fenced(model)
    model.weight.data.add_(1)
    assert "model.weight" in torn_names(snapshot)


def test_tensors_on_one_storage_are_all_named():
    flat = torch.nn.Parameter(torch.zeros(10))
    optimizer = torch.optim.SGD([flat], lr=0.1)
    state = {"flat": flat, "head": flat.detach()[:3], "other": torch.zeros(1)}
    snapshot = snap(state, optimizer=optimizer)
    flat.data[9] = 1
    assert torn_names(snapshot) == {"flat", "head"}


def test_tensor_without_a_name_is_told_as_such():
    class Box:
        def __init__(self, tensor):
            self.tensor = tensor

        def __reduce__(self):
            return (list, ([self.tensor],))

    weight = torch.nn.Parameter(torch.zeros(3))
    snapshot = snap({"box": Box(weight)}, optimizer=torch.optim.SGD([weight], lr=0.1))
    weight.data.fill_(1)
    with pytest.raises(TornSnapshotError, match="a tensor that has no name") as caught:
        check(snapshot)
    assert caught.value.names == ()


def test_message_names_a_few_of_many():
    model = torch.nn.ModuleList([torch.nn.Linear(2, 2) for _ in range(4)])
    _, _, snapshot = fenced(model)
    for parameter in model.parameters():
        parameter.data.add_(1)
    with pytest.raises(TornSnapshotError, match="and 5 more changed while") as caught:
        check(snapshot)
    assert len(caught.value.names) == 8


def test_copies_may_change_once_they_are_made():
    state = {"buffer": torch.zeros(LARGE)}
    snapshot = snap(state, "host")
    state["buffer"].add_(1)
    state["buffer"].untyped_storage().resize_(0)
    check(snapshot)


class TestChangeAndChangeBack:
    """Past torch's counters, and undone before the check: only the file tells."""

    def write(self, path, *, while_reading, before_check):
        weight = torch.nn.Parameter(torch.full((8 * MIB,), 1.0))  # 32 MiB: two samples are read
        optimizer = torch.optim.SGD([weight], lr=0.1)
        snapshot = snap({"w": weight}, optimizer=optimizer)
        guarded = snapshot.content.require_unchanged

        def check_later(fd, layout):
            before_check(weight)
            guarded(fd, layout)

        snapshot.content = dataclasses.replace(snapshot.content, require_unchanged=check_later)
        while_reading(weight)
        return write(snapshot, path)

    def test_is_found_in_the_file(self, tmp_path):
        with pytest.raises(TornSnapshotError) as caught:
            self.write(
                tmp_path / "a.pt",
                while_reading=lambda weight: weight.data.fill_(2),
                before_check=lambda weight: weight.data.fill_(1),
            )
        assert caught.value.names == ("w",)
        assert list(tmp_path.iterdir()) == []

    def test_is_not_found_where_nothing_changed(self, tmp_path):
        loaded = self.write(
            tmp_path / "a.pt",
            while_reading=lambda weight: None,
            before_check=lambda weight: None,
        )
        assert loaded["w"].unique().tolist() == [1]

    def test_undone_before_the_read_is_no_harm(self, tmp_path):
        def change(weight):
            weight.data.fill_(2)
            weight.data.fill_(1)

        loaded = self.write(
            tmp_path / "a.pt", while_reading=change, before_check=lambda weight: None
        )
        assert loaded["w"].unique().tolist() == [1]


def test_torn_snapshot_leaves_the_file_that_was_there(tmp_path):
    model, optimizer, first = fenced()
    expected = copy.deepcopy(training_state(model, optimizer))
    write(first, tmp_path / "a.pt")
    first.release()
    second = snap(training_state(model, optimizer), optimizer=optimizer)
    model.weight.data.zero_()
    with pytest.raises(TornSnapshotError):
        write(second, tmp_path / "a.pt")
    assert_same(expected, torch.load(tmp_path / "a.pt"))
    assert [path.name for path in tmp_path.iterdir()] == ["a.pt"]
