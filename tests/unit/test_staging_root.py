import dataclasses
import errno
import json
import os

import pytest
from root_cases import LEFT_SHARD, save_step, shard_of, states, tear_step

from gdsckpt.errors import CheckpointNotFoundError
from gdsckpt.format import manifest as manifest_format
from gdsckpt.staging import files, manifests, root


def entry_of(where):
    (entry,) = root.scan(where)
    return entry


@pytest.mark.parametrize(
    ("step", "name"),
    [(0, "step-00000000"), (120, "step-00000120"), (10**9, "step-1000000000")],
)
def test_step_directory_names_the_step_and_step_of_reads_it(step, name):
    assert root.step_directory("r", step).name == name
    assert root.step_of(name) == step


@pytest.mark.parametrize(
    "name",
    [
        "step-120",
        "step-000000120",  # zeros before nine digits: another spelling of step 120
        "step-0000012a",
        "step-\u0661\u0661\u0661\u0661\u0661\u0661\u0661\u0661",  # digits, but not these
        "step-00000120.pt",
        "step-00000120\n",
        "Step-00000120",
        "step--0000120",
        "step-" + "9" * 200,
        "",
    ],
)
def test_step_of_another_name_is_none(name):
    assert root.step_of(name) is None


def test_scan_lists_steps_in_ascending_order(tmp_path):
    for step in (10**8, 3, 20):
        save_step(tmp_path, step, sequence=0, metric=step / 2)
    (tmp_path / "other").mkdir()
    (tmp_path / "step-00000005").write_bytes(b"a file")
    entries = root.scan(tmp_path)
    assert [entry.step for entry in entries] == [3, 20, 10**8]
    assert {entry.state for entry in entries} == {"complete"}
    assert [entry.metric for entry in entries] == [1.5, 10.0, 5e7]
    assert entries[0].nbytes == shard_of(entries[0].path).stat().st_size
    assert root.newest(entries) is entries[2]


def test_scan_of_no_directory_raises(tmp_path):
    with pytest.raises(CheckpointNotFoundError) as caught:
        root.scan(tmp_path / "absent")
    assert caught.value.path == str(tmp_path / "absent")


def test_scan_of_an_empty_root_is_empty(tmp_path):
    assert root.scan(tmp_path) == ()
    assert root.newest(()) is None
    assert root.next_sequence(()) == 1


@pytest.mark.parametrize(
    ("break_it", "state", "reason"),
    [
        (lambda path: (path / "manifest.json").unlink(), "torn", "has no manifest"),
        (lambda path: (path / "manifest.json").write_bytes(b"{"), "damaged", "not a manifest"),
        (lambda path: shard_of(path).unlink(), "damaged", os.strerror(errno.ENOENT)),
        (lambda path: os.truncate(shard_of(path), 100), "damaged", "has 100 bytes, not"),
        (lambda path: swap_for_link(shard_of(path)), "damaged", "no regular file"),
        (lambda path: set_manifest(path, step=8), "damaged", "names step 8"),
        (lambda path: set_version(path), "unreadable", "Install a newer gdsckpt"),
    ],
)
def test_scan_names_the_state_and_why(tmp_path, break_it, state, reason):
    path = save_step(tmp_path, 7, sequence=4)
    break_it(path)
    entry = entry_of(tmp_path)
    assert (entry.step, entry.state) == (7, state)
    assert reason in entry.reason
    regular = [each for each in path.iterdir() if not each.is_symlink()]
    assert entry.nbytes == sum(each.stat().st_size for each in regular)
    assert root.newest([entry]) is None


def swap_for_link(shard):
    moved = shard.rename(shard.parent.parent / "elsewhere")
    shard.symlink_to(moved)


def set_manifest(path, **fields):
    manifest = dataclasses.replace(manifests.read_manifest(path), **fields)
    (path / "manifest.json").write_bytes(manifest_format.encode(manifest))


def set_version(path):
    document = json.loads((path / "manifest.json").read_text())
    document["manifest_version"] = 99
    del document["crc32"]
    document["crc32"] = manifest_format._own_crc32(document)
    (path / "manifest.json").write_text(json.dumps(document))


def test_scan_of_a_manifest_that_is_a_pipe_does_not_wait(tmp_path):
    path = root.step_directory(tmp_path, 7)
    path.mkdir()
    os.mkfifo(path / "manifest.json")
    assert entry_of(tmp_path).state == "damaged"


@pytest.mark.parametrize("name", [LEFT_SHARD, f"{files.TEMPORARY_PREFIX}0-1", None])
def test_scan_of_what_a_killed_save_leaves_is_torn(tmp_path, name):
    path = root.step_directory(tmp_path, 7)
    path.mkdir()
    if name:
        (path / name).write_bytes(b"half")
    assert entry_of(tmp_path).state == "torn"


def test_scan_of_a_directory_of_others_is_foreign(tmp_path):
    path = tear_step(tmp_path, 7)
    (path / ".metadata").write_bytes(b"of DCP")
    entry = entry_of(tmp_path)
    assert (entry.state, entry.manifest) == ("foreign", None)
    assert "'.metadata'" in entry.reason


def test_scan_after_going_back_marks_the_later_steps_superseded(tmp_path):
    # 10, 20, 30, 40; back to 10: 20 again, 25.
    for step, sequence in ((10, 1), (20, 5), (25, 6), (30, 3), (40, 4)):
        save_step(tmp_path, step, sequence=sequence)
    assert states(tmp_path) == {
        10: "complete",
        20: "complete",
        25: "complete",
        30: "superseded",
        40: "superseded",
    }
    entries = root.scan(tmp_path)
    assert root.newest(entries).step == 25
    assert "saved step 25 after it" in entries[3].reason
    assert root.next_sequence(entries) == 7


def test_scan_steps_saved_by_others_are_never_superseded(tmp_path):
    save_step(tmp_path, 10, sequence=9)
    save_step(tmp_path, 20, sequence=0)
    assert states(tmp_path) == {10: "complete", 20: "complete"}


def test_scan_a_damaged_step_still_supersedes_those_after_it(tmp_path):
    save_step(tmp_path, 10, sequence=1)
    path = save_step(tmp_path, 20, sequence=4)
    save_step(tmp_path, 30, sequence=3)
    shard_of(path).unlink()
    # The branch of step 30 was left, whatever became of step 20.
    assert states(tmp_path) == {10: "complete", 20: "damaged", 30: "superseded"}
    assert root.newest(root.scan(tmp_path)).step == 10
    assert root.next_sequence(root.scan(tmp_path)) == 5


def test_scan_a_torn_step_supersedes_nothing(tmp_path):
    tear_step(tmp_path, 10)
    save_step(tmp_path, 20, sequence=3)
    assert states(tmp_path) == {10: "torn", 20: "complete"}


def test_scan_of_a_step_that_is_a_link_follows_it(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "root").mkdir()
    path = save_step(elsewhere, 7)
    (tmp_path / "root" / path.name).symlink_to(path)
    assert states(tmp_path / "root") == {7: "complete"}


def test_scan_checks_every_rank(tmp_path):
    path = save_step(tmp_path, 7, num_ranks=3)
    assert states(tmp_path) == {7: "complete"}
    (path / manifests.read_manifest(path).shards[2].name).unlink()
    assert states(tmp_path) == {7: "damaged"}
