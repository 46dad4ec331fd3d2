"""Taking snapshots: what is copied, what the slots hold, what goes back when."""

import collections
import copy
import gc
import os
import resource
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from snapshots import (
    MIB,
    check,
    give_gradients,
    layout_of,
    slots,
    snap,
    trained,
    training_state,
    write,
)
from states import assert_same

from gdsckpt.errors import ConfigError, SnapshotBusyError, StorageError, TornSnapshotError
from gdsckpt.saving import content_of
from gdsckpt.snapshot import SnapshotOptions, take


def model_with_buffers():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8))


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"mode": "magic"}, "snapshot"),
        ({"mode": "fence"}, "optimizer"),
        ({"mode": "fence", "optimizer": []}, "optimizer"),
        ({"optimizer": object()}, "optimizer"),
        ({"optimizer": [torch.nn.Linear(1, 1)]}, "optimizer"),
    ],
    ids=str,
)
def test_options_that_cannot_be_raise_config_error(options, field):
    with pytest.raises(ConfigError) as caught:
        SnapshotOptions(**options)
    assert caught.value.field == field


def test_auto_is_fence_with_an_optimizer_and_host_without():
    model = model_with_buffers()
    optimizer = trained(model, torch.optim.SGD, lr=0.1)
    state = model.state_dict()
    assert snap(state).mode == "host"
    assert snap(state, optimizer=optimizer).mode == "fence"
    assert snap(state, optimizer=[optimizer, optimizer]).mode == "fence"
    assert snap(state, optimizer=[]).mode == "host"
    assert snap(state, "host", optimizer).mode == "host"


def test_device_without_gpus_is_a_copy_in_host_memory(tmp_path):
    state = {"w": torch.arange(10.0)}
    snapshot = snap(state, "device")
    assert (snapshot.mode, snapshot.copied_bytes) == ("host", 40)
    state["w"].zero_()
    assert_same({"w": torch.arange(10.0)}, write(snapshot, tmp_path / "a.pt"))


def test_host_holds_the_state_of_the_call(tmp_path):
    model = model_with_buffers()
    optimizer = trained(model, torch.optim.AdamW, lr=0.1)
    state = training_state(model, optimizer) | {"step": 3, "none": None, "empty": torch.zeros(0)}
    expected = copy.deepcopy(state)
    snapshot = snap(state, "host")
    assert snapshot.live_bytes == 0
    assert snapshot.live_end == 0
    model(torch.randn(4, 8))
    give_gradients(model)
    optimizer.step()
    model.load_state_dict({key: torch.zeros_like(t) for key, t in model.state_dict().items()})
    assert_same(expected, write(snapshot, tmp_path / "a.pt"))


def test_fence_copies_what_the_optimizer_does_not_own(tmp_path):
    model = model_with_buffers()
    average = torch.optim.swa_utils.AveragedModel(model)
    optimizer = trained(model, torch.optim.AdamW, lr=0.1)
    state = training_state(model, optimizer) | {"ema": average.state_dict()}
    expected = copy.deepcopy(state)
    snapshot = snap(state, optimizer=optimizer)
    owned = sum(3 * p.nbytes + 4 for p in model.parameters())  # two moments and a count each
    assert snapshot.live_bytes == owned
    assert snapshot.copied_bytes == content_of(state).payload_bytes - owned
    model.train()
    model(torch.randn(4, 8))  # changes mean and variance
    average.update_parameters(model)
    assert_same(expected, write(snapshot, tmp_path / "a.pt"))


def test_views_of_one_storage_are_copied_once_and_stay_views(tmp_path):
    base = torch.arange(1000.0)
    state = {"a": base[:10], "b": base[5:500], "c": base.view(10, 100).t()}
    snapshot = snap(state, "host")
    assert snapshot.copied_bytes == 4000
    expected = copy.deepcopy(state)
    base.zero_()
    loaded = write(snapshot, tmp_path / "a.pt")
    assert_same(expected, loaded)
    assert loaded["a"].untyped_storage()._cdata == loaded["c"].untyped_storage()._cdata


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"empty": torch.zeros(0)},
        {"n": 3, "inner": [{}, (), None]},
        {"sparse": torch.eye(3).to_sparse()},
        {"half": torch.ones(3, dtype=torch.bfloat16), "q": torch.ones(2, dtype=torch.float8_e5m2)},
        {"expanded": torch.ones(1).expand(1000)},
    ],
    ids=str,
)
def test_every_kind_of_state_can_be_taken(tmp_path, state):
    snapshot = snap(state, "host")
    assert_same(state, write(snapshot, tmp_path / "a.pt"))


def test_inference_tensors_have_no_counter_and_are_taken(tmp_path):
    with torch.inference_mode():
        state = {"w": torch.arange(5.0)}
    assert_same({"w": torch.arange(5.0)}, write(snap(state, "host"), tmp_path / "a.pt"))


def test_tensors_in_other_objects_are_copied(tmp_path):
    class Box:
        def __init__(self, tensor):
            self.tensor = tensor

        def __reduce__(self):
            return (collections.OrderedDict, ([("tensor", self.tensor)],))

    tensor = torch.arange(7.0)
    snapshot = snap({"box": Box(tensor)}, "host")
    tensor.zero_()
    assert write(snapshot, tmp_path / "a.pt")["box"]["tensor"].tolist() == list(range(7))


def test_cap_leaves_the_first_storages_live_and_tells_how_far_to_wait():
    state = {name: torch.full((MIB // 4,), 1.0) for name in "abcd"}
    snapshot = snap(state, "host", into=slots(num_slots=2, max_bytes=4 * MIB))
    assert (snapshot.live_bytes, snapshot.copied_bytes) == (2 * MIB, 2 * MIB)
    assert snapshot.live_end == 2
    layout = layout_of(snapshot)
    ends = {record.name[-1]: record.end_offset for record in layout.records}
    assert snapshot.prefix_end(layout) == ends["1"]
    state["c"].zero_()
    check(snapshot)


def test_cap_with_a_fence_waits_only_for_what_is_not_fenced():
    weights = [torch.nn.Parameter(torch.zeros(MIB // 4)) for _ in range(2)]
    optimizer = torch.optim.SGD(weights, lr=0.1)
    state = {"first": weights[0], "ema": torch.zeros(MIB // 4), "last": weights[1]}
    snapshot = snap(state, optimizer=optimizer, into=slots(max_bytes=MIB))
    assert (snapshot.live_bytes, snapshot.copied_bytes) == (3 * MIB, 0)
    layout = layout_of(snapshot)
    ends = {record.name[-1]: record.end_offset for record in layout.records}
    assert snapshot.prefix_end(layout) == ends["1"]
    free = snap(state, optimizer=optimizer)
    assert (free.live_end, free.prefix_end(layout)) == (0, 0)


def test_what_was_waited_for_may_change_once_it_was_read():
    state = {"a": torch.zeros(MIB // 4)}
    snapshot = snap(state, "host", into=slots(max_bytes=0))
    snapshot.prefix_read()
    snapshot.prefix_read()
    state["a"].add_(1)
    check(snapshot)


def test_what_was_waited_for_may_not_change_before():
    state = {"a": torch.zeros(MIB // 4)}
    snapshot = snap(state, "host", into=slots(max_bytes=0))
    state["a"].add_(1)
    snapshot.prefix_read()
    with pytest.raises(TornSnapshotError) as caught:
        check(snapshot)
    assert caught.value.names == ("a",)


def test_slot_is_held_until_the_release():
    ours = slots(num_slots=1, policy="raise")
    state = {"w": torch.zeros(3)}
    snapshot = snap(state, "host", into=ours)
    snapshot.staged()
    with pytest.raises(SnapshotBusyError):
        snap(state, "host", into=ours, step=9)
    snapshot.release()
    snapshot.release()
    snap(state, "host", into=ours).release()


def test_snapshot_that_is_forgotten_gives_its_slot_back():
    ours = slots(num_slots=1)
    snap({"w": torch.zeros(3)}, "host", into=ours)
    gc.collect()
    assert ours.num_in_flight == 0


def test_check_after_the_release_is_an_error():
    snapshot = snap({"w": torch.zeros(3)}, "host")
    snapshot.release()
    with pytest.raises(AssertionError):
        check(snapshot)


def test_snapshots_in_flight_do_not_overwrite_each_other(tmp_path):
    ours = slots(num_slots=3)
    weight = torch.zeros(MIB)
    taken = []
    for step in range(3):
        weight.fill_(step)
        taken.append(snap({"w": weight}, "host", into=ours))
    for step, snapshot in enumerate(taken):
        assert write(snapshot, tmp_path / "a.pt")["w"].unique().tolist() == [step]
        snapshot.release()


def test_release_after_a_failed_write_makes_room(tmp_path):
    ours = slots(num_slots=1, policy="raise")
    for _ in range(3):
        snapshot = snap({"w": torch.zeros(3)}, "host", into=ours)
        with pytest.raises(StorageError):
            write(snapshot, tmp_path / "absent" / "a.pt")
        snapshot.release()


def test_take_that_fails_gives_the_slot_back_and_lifts_the_fence():
    """A state that another thread changes all the while."""
    model = torch.nn.Linear(4, 4)
    optimizer = trained(model, torch.optim.SGD, lr=0.1)
    ours = slots(num_slots=1, policy="raise")
    state = model.state_dict() | {"busy": torch.zeros(2 * MIB)}
    begun, stop = threading.Event(), threading.Event()

    def change():
        while not stop.is_set():
            state["busy"].add_(1)
            begun.set()

    changer = threading.Thread(target=change)
    changer.start()
    begun.wait()
    try:
        torn = None
        while torn is None:  # as a rule the first time
            try:
                snap(state, optimizer=optimizer, into=ours).release()
            except TornSnapshotError as error:
                torn = error
    finally:
        stop.set()
        changer.join()
    assert torn.names == ("busy",)
    assert ours.num_in_flight == 0
    optimizer.step()  # waits for nothing


def test_thousand_snapshots_need_no_more_memory_than_ten():
    ours = slots(num_slots=2)
    model = torch.nn.Linear(300, 300)
    optimizer = trained(model, torch.optim.AdamW, lr=0.1)
    state = training_state(model, optimizer) | {"ema": torch.zeros(MIB)}

    def save(times):
        for _ in range(times):
            snapshot = snap(state, optimizer=optimizer, into=ours)
            check(snapshot)
            snapshot.staged()
            snapshot.release()
        return _resident_bytes()

    before = save(10)
    assert save(1000) - before < 2 * MIB  # one copy is 4 MiB
    assert ours.mapped_bytes == 4 * MIB


def _resident_bytes():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def test_take_without_memory_for_the_copy_reads_live_and_says_so():
    code = """
import resource, warnings, torch
from pathlib import Path
from snapshots import MIB, check, slots, snap
from gdsckpt.errors import FallbackWarning
state = {"w": torch.zeros(64 * MIB)}
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 128 * MIB, resource.RLIM_INFINITY))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    snapshot = snap(state, "host", into=slots(max_bytes=1024 * MIB))
assert [each.category for each in caught] == [FallbackWarning], caught
assert (snapshot.live_bytes, snapshot.live_end) == (256 * MIB, 1)
check(snapshot)
"""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code], env=environ, check=True, timeout=100)


def test_content_without_changes_is_what_was_planned():
    state = {"w": torch.arange(4.0)}
    content = content_of(state)
    snapshot = take(state, content, SnapshotOptions(mode="host"), slots(), step=1)
    assert snapshot.content.pickle == content.pickle
    assert snapshot.content.tensors == content.tensors
    assert [buffer.nbytes for buffer in snapshot.content.storages] == [16]
    assert snapshot.content.storages[0].address != content.storages[0].address
