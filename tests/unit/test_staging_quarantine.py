import os

import pytest
from root_cases import LEFT_SHARD, save_step, shard_of, states, tear_step

from gdsckpt.errors import CheckpointNotFoundError
from gdsckpt.staging import files, manifests, pruning, quarantine, root
from gdsckpt.staging.root_lock import RootLock


@pytest.fixture
def place(tmp_path):
    """A root whose lock is held."""
    with RootLock.acquire(tmp_path / "root") as lock:
        yield lock.root


def kinds(where):
    return [(entry.kind, entry.step) for entry in quarantine.entries(where)]


def done(findings):
    """Give what was done, by the name of what it was done to."""
    return [(finding.path.name.rsplit(".", 1)[0], finding.what) for finding in findings]


def test_recover_of_an_empty_root_finds_nothing(place):
    assert quarantine.recover(place) == []


def test_recover_of_no_root_raises(tmp_path):
    with pytest.raises(CheckpointNotFoundError):
        quarantine.recover(tmp_path / "absent")


def test_recover_of_complete_steps_changes_nothing(place):
    path = save_step(place, 1, sequence=1)
    before = sorted(path.iterdir())
    assert quarantine.recover(place) == []
    assert sorted(path.iterdir()) == before


def test_recover_sets_a_torn_step_aside_and_deletes_it_the_next_time(place):
    save_step(place, 1)
    tear_step(place, 2)
    (finding,) = quarantine.recover(place)
    assert finding.what == "set aside as torn"
    assert finding.path.parent == place / ".gdsckpt" / "quarantine"
    assert "no save into it was completed" in str(finding)
    assert (finding.path / LEFT_SHARD).exists()
    assert states(place) == {1: "complete"}
    assert kinds(place) == [("torn", 2)]
    (deleted,) = quarantine.recover(place)
    assert (deleted.path, deleted.what) == (finding.path, "deleted")
    assert kinds(place) == []
    assert quarantine.recover(place) == []


def test_recover_sets_a_damaged_step_aside_and_never_deletes_it(place):
    path = save_step(place, 1)
    save_step(place, 2)
    shard_of(path).unlink()
    (finding,) = quarantine.recover(place)
    assert finding.what == "set aside as damaged"
    assert states(place) == {2: "complete"}
    for _ in range(5):
        assert quarantine.recover(place) == []
    assert kinds(place) == [("damaged", 1)]
    (entry,) = quarantine.entries(place)
    assert entry.manifest.step == 1
    assert entry.nbytes == (entry.path / "manifest.json").stat().st_size


def test_recover_sets_superseded_steps_aside_and_keeps_the_newest_three(place):
    for step, sequence in ((10, 9), (20, 4), (30, 5), (40, 6), (50, 7), (60, 8)):
        save_step(place, step, sequence=sequence)
    findings = quarantine.recover(place)
    assert states(place) == {10: "complete"}
    assert done(findings) == [
        *(
            (f"superseded.step-000000{step}", "set aside as superseded")
            for step in range(20, 61, 10)
        ),
        ("superseded.step-00000020", "deleted"),
        ("superseded.step-00000030", "deleted"),
    ]
    assert kinds(place) == [("superseded", 40), ("superseded", 50), ("superseded", 60)]
    # Those of a later branch push out the older ones, whatever their steps.
    save_step(place, 15, sequence=10)
    save_step(place, 12, sequence=11)
    quarantine.recover(place)
    assert kinds(place) == [("superseded", 15), ("superseded", 50), ("superseded", 60)]
    assert states(place) == {10: "complete", 12: "complete"}


def test_recover_sets_the_same_step_aside_again_and_again(place):
    for sequence in (2, 4):
        save_step(place, 20, sequence=sequence)
        save_step(place, 10, sequence=sequence + 1)
        quarantine.recover(place)
    assert kinds(place) == [("superseded", 20)] * 2
    assert [entry.sequence for entry in quarantine.entries(place)] == [2, 4]


def test_recover_removes_what_killed_saves_left_in_a_complete_step(place):
    path = save_step(place, 1)
    before = sorted(path.iterdir())
    (path / LEFT_SHARD).write_bytes(b"half a shard")
    (path / f"{files.TEMPORARY_PREFIX}0-1").write_bytes(b"half a file")
    (path / "notes.txt").write_text("mine")
    findings = quarantine.recover(place)
    assert {finding.path.name for finding in findings} == {
        LEFT_SHARD,
        f"{files.TEMPORARY_PREFIX}0-1",
    }
    assert {finding.what for finding in findings} == {"removed"}
    assert sorted(path.iterdir()) == sorted([*before, path / "notes.txt"])


def test_recover_leaves_what_is_being_saved_into(place):
    torn, whole = tear_step(place, 1), save_step(place, 2)
    (whole / LEFT_SHARD).write_bytes(b"of a save under way")
    with pruning.locked(torn), pruning.locked(whole):
        findings = quarantine.recover(place)
    assert done(findings) == [("step-00000001", "left alone"), ("step-00000002", "left alone")]
    assert (whole / LEFT_SHARD).exists()
    assert states(place) == {1: "torn", 2: "complete"}


def test_recover_leaves_a_superseded_step_that_is_being_read(place):
    save_step(place, 1, sequence=2)
    path = save_step(place, 2, sequence=1)
    with manifests.being_read(path):
        (finding,) = quarantine.recover(place)
    assert (finding.path, finding.what) == (path, "left alone")
    assert states(place) == {1: "complete", 2: "superseded"}


def test_recover_names_what_it_skips(place):
    path = tear_step(place, 1)
    (path / ".metadata").write_bytes(b"of DCP")
    (finding,) = quarantine.recover(place)
    assert (finding.path, finding.what) == (path, "skipped")
    assert "'.metadata'" in finding.why
    assert (path / ".metadata").exists()


def test_recover_deletes_what_was_pruned_by_half(place):
    moved = pruning.take_off(place, save_step(place, 1))
    (moved / "manifest.json").unlink()
    (finding,) = quarantine.recover(place)
    assert (finding.path, finding.what) == (moved, "deleted")
    assert not moved.exists()


def test_recover_does_as_much_as_it_can(place):
    tear_step(place, 1)
    moved = pruning.take_off(place, save_step(place, 2))
    (place / ".gdsckpt" / "quarantine").write_bytes(b"in the way")
    findings = quarantine.recover(place)
    assert [finding.what for finding in findings] == ["deleted", "left alone"]
    assert findings[0].path == moved
    assert states(place) == {1: "torn"}


def test_set_aside_superseded_keeps_them_off_when_their_successor_goes(place):
    save_step(place, 10, sequence=2)
    save_step(place, 20, sequence=1)
    quarantine.set_aside_superseded(place)
    assert pruning.prune(place, root.step_directory(place, 10))
    assert states(place) == {}
    assert kinds(place) == [("superseded", 20)]


def test_entries_leaves_out_other_names(place):
    quarantine.set_aside(place, save_step(place, 7), "damaged")
    where = place / ".gdsckpt" / "quarantine"
    for name in ("damaged.step-7.00000000", "lost.step-00000007.00000000", "notes", b"\xff"):
        os.mkdir(os.path.join(os.fsencode(where), os.fsencode(name)))  # noqa: PTH102, PTH118
    assert kinds(place) == [("damaged", 7)]
