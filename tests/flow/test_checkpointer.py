"""The Checkpointer as training code uses it: saves, loads, order of steps, retention."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from checkpoint_cases import flip, held_up, number_of, shard_of, state

import gdsckpt
from gdsckpt import Checkpointer
from gdsckpt.errors import (
    CheckpointExistsError,
    CheckpointNotFoundError,
    ConfigError,
    DamagedCheckpointWarning,
    FormatError,
    GdsckptError,
    RootLockedError,
    SnapshotBusyError,
    StaleSaveWarning,
    StorageError,
    TornSnapshotError,
)
from gdsckpt.format import manifest as manifest_format
from gdsckpt.staging import quarantine
from gdsckpt.staging import root as roots
from gdsckpt.staging.manifests import being_read

ROOT = Path(__file__).parents[2]


def later_version(raw):
    """Give a manifest as a later gdsckpt might write it."""
    document = json.loads(raw)
    del document["crc32"]
    document["manifest_version"] += 1
    document["crc32"] = manifest_format._own_crc32(document)
    return json.dumps(document).encode()


@pytest.fixture
def root(tmp_path):
    return tmp_path / "run"


@pytest.fixture
def checkpointer(root):
    with Checkpointer(root) as made:
        yield made


def saved(checkpointer, *steps, **options):
    for step in steps:
        checkpointer.save(step, state(step), **options)


def test_save_gives_a_step_that_everything_of_ours_and_torch_reads(checkpointer, root):
    report = checkpointer.save(12, state(12))
    directory = roots.step_directory(root, 12)
    assert (report.path, report.step) == (str(directory), 12)
    assert checkpointer.steps() == [12]
    assert number_of(checkpointer.load()) == 12
    assert checkpointer.loaded_step == 12
    assert number_of(gdsckpt.load(directory)) == 12
    assert number_of(torch.load(shard_of(root, 12))) == 12
    assert gdsckpt.verify(directory).ok


def test_async_save_reaches_its_stages_and_reports(checkpointer, root):
    handle = checkpointer.async_save(3, state(3))
    report = handle.committed.result()
    assert handle.staged.result() is None
    assert report is handle.report
    assert (report.step, report.snapshot, report.nbytes) == (
        3,
        "host",
        shard_of(root, 3).stat().st_size,
    )
    assert 0 < report.stall_s <= report.seconds
    assert repr(handle) == "<SaveHandle step=3 committed>"
    with pytest.raises(ConfigError) as caught:
        handle.uploaded.result()
    assert caught.value.field == "store"
    checkpointer.wait()  # that there is no store is no failure


def test_handle_cannot_be_cancelled(checkpointer, root):
    with held_up(root, 1):
        handle = checkpointer.async_save(1, state(1))
        assert not handle.committed.cancel()
        assert repr(handle) == "<SaveHandle step=1 in flight>"
        assert handle.report is None
    assert handle.committed.result().step == 1


def test_host_snapshot_holds_the_values_of_the_call(checkpointer, root):
    current = state(1)
    with held_up(root, 1):
        handle = checkpointer.async_save(1, current, snapshot="host")
        current["w"].fill_(2)
        current["n"] = 2
    assert handle.committed.result().snapshot == "host"
    assert number_of(checkpointer.load(1)) == 1


def test_fence_lets_the_optimizer_wait_and_saves_the_values_of_the_call(checkpointer, root):
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.ones(4, 64)).sum().backward()
    optimizer.step()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with held_up(root, 7):
        handle = checkpointer.async_save(7, {"model": model}, optimizer)
        model(torch.ones(4, 64)).sum().backward()
        assert not handle.staged.done()
        stepping = threading.Thread(target=optimizer.step)
        stepping.start()
        stepping.join(0.2)
        assert stepping.is_alive()
    stepping.join()
    assert handle.staged.done()
    assert handle.committed.result().snapshot == "fence"
    loaded = checkpointer.load(7)["model"]
    assert all(torch.equal(loaded[name], before[name]) for name in before)
    assert not torch.equal(model.weight, before["weight"])


def test_torn_save_is_not_listed_and_the_last_good_one_stays(checkpointer, root):
    saved(checkpointer, 1)
    current = state(2)
    parameter = torch.nn.Parameter(current.pop("w"))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    with held_up(root, 2):
        handle = checkpointer.async_save(2, {**current, "w": parameter}, optimizer)
        parameter.data[7] = 99  # leaves the version counter as it is
        parameter.data.mul_(2)
    for stage in (handle.staged, handle.committed):
        with pytest.raises(TornSnapshotError) as caught:
            stage.result()
        assert caught.value.names == ("w",)
    assert checkpointer.steps() == [1]
    assert number_of(checkpointer.load()) == 1
    checkpointer.save(2, state(2))  # the step is free


def test_failure_that_nobody_received_is_raised_by_wait_once(checkpointer, root):
    (root / "step-00000004").write_text("in the way")
    checkpointer.async_save(4, state(4))
    with pytest.raises(StorageError) as caught:
        checkpointer.wait()
    assert caught.value.op == "mkdir"
    checkpointer.wait()


def test_failure_that_a_handle_gave_is_not_raised_again(checkpointer, root):
    (root / "step-00000004").write_text("in the way")
    handle = checkpointer.async_save(4, state(4))
    with pytest.raises(StorageError):
        handle.committed.result()
    checkpointer.wait()
    assert checkpointer.steps() == []


def test_several_failures_come_as_notes_of_the_first(checkpointer, root):
    for step in (4, 5):
        (root / f"step-0000000{step}").write_text("in the way")
        checkpointer.async_save(step, state(step))
    with pytest.raises(StorageError) as caught:
        checkpointer.close()
    assert "00000004" in caught.value.path
    assert any("00000005" in note for note in caught.value.__notes__)
    Checkpointer(root).close()  # closed all the same: the root is free


def test_exception_in_the_training_is_not_hidden_by_a_failing_save(root):
    def train():
        with Checkpointer(root) as checkpointer:
            checkpointer.save(1, state(1))
            (root / "step-00000002").write_text("in the way")
            checkpointer.async_save(2, state(2))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        train()
    assert any("mkdir" in note for note in caught.value.__notes__)
    with Checkpointer(root) as again:
        assert again.steps() == [1]


def test_exception_in_the_training_lets_a_save_in_flight_end(root):
    def train():
        with Checkpointer(root) as checkpointer:
            checkpointer.async_save(2, state(2))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train()
    with Checkpointer(root) as again:
        assert number_of(again.load()) == 2


@pytest.mark.parametrize("step", [5, 3], ids=["repeats", "goes backwards"])
def test_step_that_is_not_new_is_refused(checkpointer, root, step):
    saved(checkpointer, 3, 5)
    before = sorted(str(path) for path in root.rglob("*"))
    for call in (checkpointer.save, checkpointer.async_save):
        with pytest.raises(CheckpointExistsError) as caught:
            call(step, state(99))
        assert caught.value.path == str(roots.step_directory(root, step))
    assert sorted(str(path) for path in root.rglob("*")) == before


def test_step_in_flight_counts_as_there(checkpointer, root):
    with held_up(root, 5):
        checkpointer.async_save(5, state(5))
        with pytest.raises(CheckpointExistsError):
            checkpointer.async_save(5, state(6))
        with pytest.raises(CheckpointExistsError):
            checkpointer.save(4, state(4))


def test_overwrite_replaces_a_step(checkpointer, root):
    saved(checkpointer, 3, 5)
    old = shard_of(root, 5)
    checkpointer.save(5, state(55), overwrite=True)
    assert not old.exists()
    assert number_of(checkpointer.load(5)) == 55
    assert checkpointer.steps() == [3, 5]


def test_overwrite_that_fails_leaves_the_old_step(checkpointer, root):
    saved(checkpointer, 5)
    current = state(6)
    parameter = torch.nn.Parameter(current.pop("w"))
    with held_up(root, 5):
        handle = checkpointer.async_save(
            5, {**current, "w": parameter}, torch.optim.SGD([parameter]), overwrite=True
        )
        parameter.data.mul_(2)
    with pytest.raises(TornSnapshotError):
        handle.committed.result()
    assert number_of(checkpointer.load(5)) == 5


def test_going_back_leaves_the_later_steps_behind(root):
    with Checkpointer(root) as checkpointer:
        saved(checkpointer, 10, 20, 30)
        checkpointer.save(15, state(15), overwrite=True)
        checkpointer.wait()
        assert checkpointer.steps() == [10, 15]
        assert {(each.kind, each.step) for each in quarantine.entries(root)} == {
            ("superseded", 20),
            ("superseded", 30),
        }
    with Checkpointer(root) as again:
        assert number_of(again.load()) == 15
        again.save(16, state(16))


def test_newest_does_not_go_by_the_clock(root):
    with Checkpointer(root) as checkpointer:
        saved(checkpointer, 1)
    manifest = root / "step-00000001" / "manifest.json"
    os.utime(manifest, (2**33, 2**33))  # the clock went back by centuries since
    with Checkpointer(root) as again:
        saved(again, 2)
        assert again.latest() == 2


@pytest.mark.parametrize("step", [-1, True, 1.0, "7", None], ids=repr)
def test_step_that_is_no_number_is_refused(checkpointer, step):
    with pytest.raises(ConfigError) as caught:
        checkpointer.save(step, {})
    assert caught.value.field == "step"


def test_load_without_any_step_says_so(checkpointer, root):
    assert checkpointer.latest() is None
    with pytest.raises(CheckpointNotFoundError) as caught:
        checkpointer.load()
    assert caught.value.path == str(root)


def test_load_of_a_step_that_is_not_there_names_those_that_are(checkpointer, root):
    saved(checkpointer, 1, 2)
    with pytest.raises(CheckpointNotFoundError) as caught:
        checkpointer.load(3)
    assert caught.value.path == str(roots.step_directory(root, 3))
    assert "1, 2" in str(caught.value)
    with pytest.raises(ConfigError):
        checkpointer.load("newest")


def test_load_takes_a_part_and_fills_what_is_there(checkpointer):
    saved(checkpointer, 4)
    assert list(checkpointer.load(keys="w")) == ["w"]
    target = state(0)
    assert checkpointer.load(into=target) is target
    assert number_of(target) == 4


def test_damaged_newest_step_falls_back_loudly(root):
    with Checkpointer(root) as checkpointer:
        saved(checkpointer, 1, 2)
        flip(shard_of(root, 2))
        with pytest.warns(DamagedCheckpointWarning, match="step-00000002"):
            assert number_of(checkpointer.load()) == 1
        assert checkpointer.loaded_step == 1
        assert checkpointer.steps() == [1]
        assert [each.kind for each in quarantine.entries(root)] == ["damaged"]
        saved(checkpointer, 2)  # training comes by that step again
        assert number_of(checkpointer.load()) == 2


def test_damaged_step_that_is_asked_for_is_an_error(checkpointer, root):
    saved(checkpointer, 1, 2)
    flip(shard_of(root, 2))
    with pytest.raises(FormatError) as caught:
        checkpointer.load(2)
    assert caught.value.path == str(shard_of(root, 2))
    assert checkpointer.steps() == [1, 2]


def test_all_steps_damaged_raises_that_of_the_newest(checkpointer, root):
    saved(checkpointer, 1, 2)
    for step in (1, 2):
        flip(shard_of(root, step))
    with pytest.raises(FormatError) as caught:
        checkpointer.load()
    assert "step-00000002" in caught.value.path
    assert any("step-00000001" in note for note in caught.value.__notes__)


@pytest.mark.parametrize(
    "harm",
    [
        lambda root: (root / "step-00000002" / "manifest.json").write_text("{}"),
        lambda root: shard_of(root, 2).unlink(),
        lambda root: os.truncate(shard_of(root, 2), 1000),
    ],
    ids=["manifest", "missing shard", "short shard"],
)
def test_step_that_shows_its_damage_is_set_aside_at_the_start(root, harm):
    with Checkpointer(root) as checkpointer:
        saved(checkpointer, 1, 2)
    harm(root)
    with pytest.warns(DamagedCheckpointWarning, match="damaged.step-00000002"):
        again = Checkpointer(root)
    with again:
        assert [str(each.path.name)[:21] for each in again.recovered] == ["damaged.step-00000002"]
        assert again.steps() == [1]
        assert number_of(again.load()) == 1


def test_step_that_cannot_be_read_now_is_said_aloud_and_not_saved_over(root):
    with Checkpointer(root) as checkpointer:
        saved(checkpointer, 1, 2)
    manifest = root / "step-00000002" / "manifest.json"
    whole = manifest.read_bytes()
    manifest.write_bytes(later_version(whole))
    with pytest.warns(DamagedCheckpointWarning, match="step-00000002"):
        again = Checkpointer(root)
    with again:
        assert number_of(again.load()) == 1
        with pytest.raises(CheckpointExistsError):
            again.save(2, state(3))
    manifest.write_bytes(whole)
    with Checkpointer(root) as again:
        assert number_of(again.load()) == 2


def test_torn_step_of_a_killed_save_is_set_aside_at_the_start(root):
    with Checkpointer(root) as checkpointer:
        saved(checkpointer, 1, 2)
    (root / "step-00000002" / "manifest.json").unlink()
    with Checkpointer(root) as again:
        assert again.steps() == [1]
        assert [each.what for each in again.recovered] == ["set aside as torn"]


@pytest.mark.parametrize(
    ("options", "metrics", "kept"),
    [
        ({"keep_local": 2}, {}, [5, 6]),
        ({"keep_local": 1, "keep_every": 3}, {}, [3, 6]),
        ({"keep_local": 1, "keep_best": 2}, {1: 3.0, 2: 1.0, 3: 2.0, 4: 5.0}, [2, 3, 6]),
        (
            {"keep_local": 1, "keep_best": 1, "best": "max"},
            {1: 3.0, 2: float("nan"), 4: 5.0},
            [4, 6],
        ),
    ],
)
def test_retention_keeps_what_it_says(root, options, metrics, kept):
    with Checkpointer(root, **options) as checkpointer:
        for step in range(1, 7):
            checkpointer.save(step, state(step), metric=metrics.get(step))
        checkpointer.wait()
        assert checkpointer.steps() == kept


def test_retention_leaves_a_step_that_is_being_read(root):
    with Checkpointer(root, keep_local=1) as checkpointer:
        saved(checkpointer, 1)
        with being_read(roots.step_directory(root, 1)):
            saved(checkpointer, 2)
            checkpointer.wait()
            assert checkpointer.steps() == [1, 2]
        saved(checkpointer, 3)
        checkpointer.wait()
        assert checkpointer.steps() == [3]


def test_same_values_twice_warn(checkpointer):
    current = state(1)
    checkpointer.save(1, {**current, "step": 1, "rng": torch.get_rng_state()})
    with pytest.warns(StaleSaveWarning, match="steps 1 and 2"):
        checkpointer.save(2, {**current, "step": 2, "rng": torch.zeros(5056, dtype=torch.uint8)})
    handle = checkpointer.async_save(3, current)
    handle.committed.result()
    with pytest.warns(StaleSaveWarning, match="steps 2 and 3"):
        checkpointer.wait()
    current["w"][5] += 1
    checkpointer.save(4, current)  # one element is enough


@pytest.mark.parametrize("policy", ["raise", "skip"])
def test_no_slot_free_is_answered_as_the_setting_says(root, policy):
    config = {"snapshot_slots": 1, "snapshot_policy": policy}
    with Checkpointer(root, config=config) as checkpointer:
        with held_up(root, 1):
            first = checkpointer.async_save(1, state(1))
            if policy == "raise":
                with pytest.raises(SnapshotBusyError) as caught:
                    checkpointer.async_save(2, state(2))
            else:
                skipped = checkpointer.async_save(2, state(2))
                with pytest.raises(SnapshotBusyError) as caught:
                    skipped.committed.result()
            assert caught.value.step == 2
        first.committed.result()
        checkpointer.wait()
        assert checkpointer.steps() == [1]


def test_waits_for_a_slot_by_default(root):
    with Checkpointer(root, config={"snapshot_slots": 1}) as checkpointer:
        current = state(1)
        handles = []
        for step in range(1, 6):
            current["n"] = step
            current["w"].fill_(step)
            current["small"][0].fill_(step), current["small"][1].fill_(step)
            current["small"][2].fill_(step)
            handles.append(checkpointer.async_save(step, current))
        assert [handle.committed.result().step for handle in handles] == [1, 2, 3, 4, 5]
        checkpointer.wait()
        assert [number_of(checkpointer.load(step)) for step in (3, 4, 5)] == [3, 4, 5]


def test_state_larger_than_the_memory_for_it_is_saved_while_the_caller_waits(root):
    config = {"staging_max_bytes": "2MiB", "chunk_bytes": "64KiB", "pinned_pool_bytes": "1MiB"}
    with Checkpointer(root, config=config) as checkpointer:
        current = {f"t{n}": torch.full((262_144,), float(n)) for n in range(8)}  # 1 MiB each
        handle = checkpointer.async_save(1, current, snapshot="host")
        for tensor in current.values():
            tensor.zero_()
        handle.committed.result()
        loaded = checkpointer.load()
    assert all(bool((loaded[f"t{n}"] == n).all()) for n in range(8))


def test_forked_child_cannot_use_what_is_the_parents(checkpointer, root):
    with held_up(root, 1):
        handle = checkpointer.async_save(1, state(1))
        pid = os.fork()
        if pid == 0:
            found = 0
            for call in (
                lambda: checkpointer.save(2, {}),
                checkpointer.steps,
                checkpointer.wait,
                handle.committed.result,
                handle.staged.exception,
            ):
                try:
                    call()
                except ConfigError:
                    found += 1
            os._exit(found)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5
    assert handle.committed.result().step == 1


def test_second_checkpointer_of_a_root_is_refused(checkpointer, root):
    with pytest.raises(RootLockedError) as caught:
        Checkpointer(root)
    assert str(os.getpid()) in caught.value.holder


def test_closed_checkpointer_refuses_and_closes_again(root):
    checkpointer = Checkpointer(root)
    checkpointer.close()
    checkpointer.close()
    with pytest.raises(ConfigError) as caught:
        checkpointer.save(1, {})
    assert caught.value.field == "root"


def test_object_that_cannot_be_pickled_is_named(checkpointer):
    with pytest.raises(ConfigError, match=r"extra\.hooks\.1"):
        checkpointer.save(1, {"extra": {"hooks": [1, lambda: None]}})
    with pytest.raises(ConfigError, match=r"extra\.hooks\.1"):
        checkpointer.async_save(1, {"extra": {"hooks": [1, lambda: None]}})
    checkpointer.save(1, {})


def test_shapes_and_keys_may_change_between_saves(checkpointer):
    for step, value in enumerate(({"a": torch.ones(3)}, {"a": torch.ones(4), "b": [1]}, {})):
        checkpointer.async_save(step, value).committed.result()
        loaded = checkpointer.load()
        assert loaded.keys() == value.keys()
        assert all(
            torch.equal(torch.as_tensor(loaded[k]), torch.as_tensor(value[k])) for k in value
        )


def run(code, *arguments):
    """Run a script; gives what it printed and its standard error."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_interpreter_exit_lets_a_save_in_flight_end(root):
    code = """
import sys, torch, gdsckpt
checkpointer = gdsckpt.Checkpointer(sys.argv[1])
checkpointer.async_save(1, {"w": torch.ones(8_000_000)})
"""
    run(code, root)
    with Checkpointer(root) as again:
        assert bool((again.load()["w"] == 1).all())


def test_interpreter_exit_logs_a_failure_that_nobody_received(root):
    code = """
import sys, torch, gdsckpt
from pathlib import Path
checkpointer = gdsckpt.Checkpointer(sys.argv[1])
Path(sys.argv[1], "step-00000001").write_text("in the way")
checkpointer.async_save(1, {"w": torch.ones(1000)})
"""
    _, errors = run(code, root)
    assert "a save failed, and nobody asked for it" in errors
    assert "step-00000001" in errors


def test_preemption_by_signal_saves_at_the_step_boundary(root):
    code = """
import json, os, signal, sys, torch, gdsckpt
with gdsckpt.Checkpointer(sys.argv[1]) as checkpointer:
    checkpointer.watch_preemption(grace_s=60)
    w = torch.zeros(1000)
    for step in range(1, 100):
        w += 1
        if step == 7:
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)
        ended = checkpointer.step(step, lambda: {"w": w})
        if ended:
            print(json.dumps({**ended.as_dict(), "steps": checkpointer.steps()}))
            break
"""
    out, _ = run(code, root)
    report = json.loads(out)
    assert (report["step"], report["steps"], report["failures"]) == (7, [7], [])
    assert report["reason"] == "signal SIGTERM"
    with Checkpointer(root) as again:
        assert bool((again.load()["w"] == 7).all())


def test_preemption_by_file_takes_the_save_that_is_there(checkpointer, root, tmp_path):
    checkpointer.watch_preemption(signals=(), file=tmp_path / "end", grace_s=60)
    assert checkpointer.step(1, {}) is None
    checkpointer.async_save(2, state(2))
    checkpointer._watch._file._looked_at = float("-inf")  # it is looked at once a second
    (tmp_path / "end").touch()
    ended = checkpointer.step(2, state(99))
    assert (ended.step, ended.failures) == (2, ())
    assert number_of(checkpointer.load()) == 2


def test_preemption_gives_up_what_does_not_end_in_time(checkpointer, root, tmp_path):
    saved(checkpointer, 1)
    (tmp_path / "end").touch()
    checkpointer.watch_preemption(signals=(), file=tmp_path / "end", grace_s=0.2)
    os.utime(tmp_path / "end", (1, 1))
    checkpointer._watch._file._looked_at = float("-inf")
    ended = checkpointer.step(2, state(2))
    assert ended.step is None
    assert "did not end in its time" in ended.failures[0]
    assert checkpointer.steps() == [1]
    checkpointer.wait()  # the report has the failure


class TestStore:
    """With a store; that of files is as good as any here."""

    @pytest.fixture
    def store(self, tmp_path):
        return f"file://{tmp_path}/store"

    def test_committed_step_is_uploaded(self, root, store):
        with Checkpointer(root, store=store) as checkpointer:
            handle = checkpointer.async_save(1, state(1))
            report = handle.uploaded.result()
            assert report.url == f"{store}/step-00000001"
            assert repr(handle) == "<SaveHandle step=1 uploaded>"
        assert number_of(gdsckpt.load(f"{store}/step-00000001")) == 1

    def test_new_node_goes_on_from_the_store(self, root, store, tmp_path):
        with Checkpointer(root, store=store, keep_local=1) as checkpointer:
            saved(checkpointer, 1, 2, 3)
            checkpointer.wait()
            assert checkpointer.steps() == [1, 2, 3]
        with Checkpointer(tmp_path / "other", store=store) as again:
            assert number_of(again.load()) == 3
            with pytest.raises(CheckpointExistsError):
                again.save(3, state(33))
            saved(again, 4)
            again.wait()
            assert again.steps() == [1, 2, 3, 4]
            again.save(2, state(22), overwrite=True)
            again.wait()
            assert again.steps() == [1, 2]
            assert number_of(again.load()) == 22

    def test_damaged_local_copy_is_replaced_by_the_one_in_the_store(self, root, store):
        with Checkpointer(root, store=store) as checkpointer:
            saved(checkpointer, 1, 2)
            checkpointer.wait()
            flip(shard_of(root, 2))
            with pytest.warns(DamagedCheckpointWarning, match="store/step-00000002"):
                assert number_of(checkpointer.load()) == 2

    def test_failed_upload_leaves_the_step_committed_and_is_not_silent(self, root, store, tmp_path):
        checkpointer = Checkpointer(root, store=store)
        (tmp_path / "store").write_text("no directory")
        handle = checkpointer.async_save(1, state(1))
        assert handle.committed.result().step == 1
        with pytest.raises(GdsckptError):
            checkpointer.close()
        assert repr(handle) == "<SaveHandle step=1 failed>"
        assert handle.report.step == 1
        with Checkpointer(root) as again:
            assert number_of(again.load()) == 1
