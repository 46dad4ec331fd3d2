import errno
import os

import pytest
from root_cases import finish, save_step, shard_of, start, states, tear_step

from gdsckpt.errors import StorageError
from gdsckpt.staging import manifests, pruning


def test_prune_removes_the_step_and_its_files(tmp_path):
    kept, path = save_step(tmp_path, 1), save_step(tmp_path, 2)
    assert pruning.prune(tmp_path, path)
    assert states(tmp_path) == {1: "complete"}
    assert kept.exists()
    assert list((tmp_path / ".gdsckpt" / "pruned").iterdir()) == []


def test_prune_of_a_step_that_is_not_there_is_done(tmp_path):
    assert pruning.prune(tmp_path, tmp_path / "step-00000001")


def test_prune_of_a_torn_step_removes_it(tmp_path):
    assert pruning.prune(tmp_path, tear_step(tmp_path, 1))
    assert states(tmp_path) == {}


READ = """
import sys
from gdsckpt.staging.manifests import being_read
with being_read(sys.argv[1]):
    print("reading", flush=True)
    sys.stdin.read()
"""


def test_prune_of_a_step_that_another_process_reads_leaves_it(tmp_path):
    path = save_step(tmp_path, 1)
    process = start(READ, path)
    process.stdout.readline()
    assert not pruning.prune(tmp_path, path)
    assert states(tmp_path) == {1: "complete"}
    finish(process)
    assert pruning.prune(tmp_path, path)


def test_prune_of_a_step_whose_reader_was_killed_removes_it(tmp_path):
    path = save_step(tmp_path, 1)
    process = start(READ, path)
    process.stdout.readline()
    process.kill()
    process.communicate()
    assert pruning.prune(tmp_path, path)


def test_prune_of_a_step_that_is_saved_into_leaves_it(tmp_path):
    path = save_step(tmp_path, 1)
    with pruning.locked(path):
        assert not pruning.prune(tmp_path, path)
    assert states(tmp_path) == {1: "complete"}


def test_prune_keeps_off_readers_of_the_manifest_that_is_there(tmp_path):
    path = save_step(tmp_path, 1)
    with manifests.being_read(path):
        save_step(tmp_path, 1)  # the reader holds the one before, and reads on from its descriptors
        with manifests.being_read(path):
            assert not pruning.prune(tmp_path, path)


def test_prune_of_a_link_leaves_what_it_leads_to(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "root").mkdir()
    path = save_step(elsewhere, 1)
    link = tmp_path / "root" / path.name
    link.symlink_to(path)
    assert pruning.prune(tmp_path / "root", link)
    assert states(tmp_path / "root") == {}
    assert shard_of(path).exists()


def test_prune_does_not_follow_links_in_a_step(tmp_path):
    path = save_step(tmp_path, 1)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("kept")
    (path / "link").symlink_to(outside)
    assert pruning.prune(tmp_path, path)
    assert (outside / "precious").read_text() == "kept"


def test_prune_that_cannot_rename_keeps_the_step(tmp_path):
    path = save_step(tmp_path, 1)
    (tmp_path / ".gdsckpt").write_bytes(b"no directory")
    with pytest.raises(StorageError) as caught:
        pruning.prune(tmp_path, path)
    assert caught.value.errno == errno.ENOTDIR
    assert states(tmp_path) == {1: "complete"}


def test_delete_pruned_finishes_what_a_kill_left(tmp_path):
    path = save_step(tmp_path, 1)
    moved = pruning.take_off(tmp_path, path)
    os.unlink(moved / "manifest.json")  # noqa: PTH108 - half of a deletion
    assert states(tmp_path) == {}
    assert pruning.delete_pruned(tmp_path) == [moved]
    assert not moved.exists()
    assert pruning.delete_pruned(tmp_path) == []


def test_delete_pruned_without_any_root_gives_nothing(tmp_path):
    assert pruning.delete_pruned(tmp_path / "absent") == []
