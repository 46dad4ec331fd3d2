"""Faults while a root is locked, recovered and pruned: steps are whole or not listed."""

import errno
import signal

import pytest
from root_cases import LEFT_SHARD, save_step, shard_of, states, tear_step

import gdsckpt
from gdsckpt.staging import quarantine

PRUNE = """
from gdsckpt.staging import pruning
result["gone"] = pruning.prune(root, Path(root) / "step-00000001")
"""
RECOVER = """
from gdsckpt.staging import quarantine
result["findings"] = [str(each) for each in quarantine.recover(root)]
"""
ACQUIRE = """
from gdsckpt.staging.root_lock import RootLock
with RootLock.acquire(root) as lock:
    result["exclusive"] = lock.is_exclusive
"""


def ops_of(calls):
    return [op for op, _ in calls]


def pruned_in(root):
    return list((root / ".gdsckpt" / "pruned").iterdir())


def test_prune_is_durable_before_a_file_goes(faults, tmp_path):
    save_step(tmp_path, 1)
    ops = ops_of(faults.calls(PRUNE, tmp_path, root=tmp_path))
    rename = ops.index("rename")
    assert "unlink" not in ops[:rename]
    assert ops[rename:].index("unlink") > ops[rename:].index("fsync")
    assert ops[rename : ops.index("unlink", rename)].count("fsync") == 2


def test_prune_killed_at_every_call_leaves_the_step_or_nothing_listed(faults, tmp_path):
    save_step(tmp_path, 1)
    calls = faults.calls(PRUNE, tmp_path, root=tmp_path)
    rename = 1 + ops_of(calls).index("rename")
    points = [(n, "before") for n in range(1, len(calls) + 1)]
    for n, when in [*points, (rename, "after"), (len(calls), "after")]:
        root = tmp_path / f"{n}-{when}"
        root.mkdir()
        path = save_step(root, 1)
        save_step(root, 2)
        outcome = faults.run(PRUNE, f"*:{n}:kill-{when}", root, root=root)
        assert outcome.signal == signal.SIGKILL
        is_gone = n > rename or (n == rename and when == "after")
        assert states(root) == ({} if is_gone else {1: "complete"}) | {2: "complete"}
        if not is_gone:
            assert gdsckpt.verify(path).ok
        quarantine.recover(root)
        assert not (root / ".gdsckpt" / "pruned").exists() or pruned_in(root) == []
        assert states(root) == ({} if is_gone else {1: "complete"}) | {2: "complete"}


def test_prune_whose_sync_fails_raises_and_keeps_the_files(faults, tmp_path):
    save_step(tmp_path, 1)
    num_syncs = ops_of(faults.calls(PRUNE, tmp_path, root=tmp_path)).count("fsync")
    for n in (num_syncs - 1, num_syncs):
        root = tmp_path / f"{n}"
        root.mkdir()
        save_step(root, 1)
        outcome = faults.run(PRUNE, f"fsync:{n}:EIO", root, root=root)
        assert outcome.error["type"] == "StorageError"
        assert (outcome.error["fields"]["op"], outcome.error["fields"]["errno"]) == (
            "fsync",
            errno.EIO,
        )
        # A power failure may give the step its name back, so it has to be whole.
        (moved,) = pruned_in(root)
        assert gdsckpt.verify(moved).ok


def test_prune_that_cannot_rename_keeps_the_step(faults, tmp_path):
    path = save_step(tmp_path, 1)
    outcome = faults.run(PRUNE, "rename:1:EIO", tmp_path, root=tmp_path)
    assert outcome.error["fields"]["op"] == "rename"
    assert states(tmp_path) == {1: "complete"}
    assert gdsckpt.verify(path).ok


def test_prune_that_cannot_delete_files_leaves_them_for_the_next_start(faults, tmp_path):
    save_step(tmp_path, 1)
    outcome = faults.run(PRUNE, "unlink:1:EACCES", tmp_path, root=tmp_path)
    assert outcome.error is None
    assert outcome.result["gone"] is True
    assert states(tmp_path) == {}
    assert len(pruned_in(tmp_path)) == 1
    quarantine.recover(tmp_path)
    assert pruned_in(tmp_path) == []


def test_prune_without_flock_warns_and_goes_on(faults, tmp_path):
    save_step(tmp_path, 1)
    outcome = faults.run(PRUNE, "flock:*:ENOLCK", tmp_path, root=tmp_path)
    assert outcome.error is None
    assert outcome.result["gone"] is True
    assert [name for name, _ in outcome.warnings] == ["FallbackWarning"]
    assert "may be deleted while it is read" in outcome.warnings[0][1]


def broken_root(root):
    """Make a root that has one of each kind to recover; gives the bytes of its damaged step."""
    root.mkdir()
    save_step(root, 10, sequence=6)
    (root / "step-00000010" / LEFT_SHARD).write_bytes(b"half a shard")
    damaged = save_step(root, 11, sequence=7)
    shard_of(damaged).unlink()
    tear_step(root, 12)
    for step in range(20, 24):
        save_step(root, step, sequence=step - 19)


def test_recover_killed_at_every_call_loses_nothing(faults, tmp_path):
    broken_root(tmp_path / "0")
    calls = faults.calls(RECOVER, tmp_path / "0", root=tmp_path / "0")
    for n in range(1, len(calls) + 1):
        root = tmp_path / f"{n}"
        broken_root(root)
        outcome = faults.run(RECOVER, f"*:{n}:kill-before", root, root=root)
        assert outcome.signal == signal.SIGKILL, calls[n - 1]
        assert gdsckpt.verify(root / "step-00000010").ok
        quarantine.recover(root)
        quarantine.recover(root)
        assert states(root) == {10: "complete"}, calls[n - 1]
        kept = [(each.kind, each.step) for each in quarantine.entries(root)]
        assert kept == [
            ("damaged", 11),
            *(("superseded", step) for step in (21, 22, 23)),
        ], calls[n - 1]
        assert not (root / "step-00000010" / LEFT_SHARD).exists()
        assert not (root / ".gdsckpt" / "pruned").exists() or pruned_in(root) == []


@pytest.mark.parametrize("op", ["rename", "fsync", "unlink", "mkdir"])
def test_recover_with_eio_at_every_call_goes_on_and_says_so(faults, tmp_path, op):
    broken_root(tmp_path / "0")
    calls = faults.calls(RECOVER, tmp_path / "0", root=tmp_path / "0")
    for n in range(1, ops_of(calls).count(op) + 1):
        root = tmp_path / f"{n}"
        broken_root(root)
        outcome = faults.run(RECOVER, f"{op}:{n}:EIO", root, root=root)
        assert outcome.error is None, outcome.error["trace"]
        assert gdsckpt.verify(root / "step-00000010").ok
        assert states(root)[10] == "complete"
        quarantine.recover(root)
        quarantine.recover(root)
        assert states(root) == {10: "complete"}


def test_recover_never_sets_aside_what_could_not_be_read(faults, tmp_path):
    save_step(tmp_path, 1)
    outcome = faults.run(
        RECOVER, "open:*:EIO", tmp_path / "step-00000001" / "manifest.json", root=tmp_path
    )
    assert outcome.error is None
    assert [text.split(": ")[1] for text in outcome.result["findings"]] == ["skipped"]
    assert states(tmp_path) == {1: "complete"}


@pytest.mark.parametrize("refused", ["ENOLCK", "EOPNOTSUPP", "EINVAL", "ENOSYS"])
def test_acquire_on_a_file_system_without_locks_warns_and_goes_on(faults, tmp_path, refused):
    outcome = faults.run(ACQUIRE, f"setlk:*:{refused}", tmp_path, root=tmp_path)
    assert outcome.error is None
    assert outcome.result["exclusive"] is False
    assert [name for name, _ in outcome.warnings] == ["FallbackWarning"]
    assert "second trainer" in outcome.warnings[0][1]


def test_acquire_whose_lock_fails_otherwise_raises(faults, tmp_path):
    outcome = faults.run(ACQUIRE, "setlk:*:EIO", tmp_path, root=tmp_path)
    assert outcome.error["type"] == "StorageError"
    assert (outcome.error["fields"]["op"], outcome.error["fields"]["errno"]) == ("fcntl", errno.EIO)
    assert outcome.fds_after == outcome.fds_before


@pytest.mark.parametrize("op", ["mkdir", "open", "fsync"])
def test_acquire_in_a_root_that_cannot_be_written_raises(faults, tmp_path, op):
    root = tmp_path / "root"
    outcome = faults.run(ACQUIRE, f"{op}:1:EROFS", root, root=root)
    assert outcome.error["type"] == "StorageError"
    assert outcome.error["fields"]["errno"] == errno.EROFS
    assert outcome.fds_after == outcome.fds_before


@pytest.mark.parametrize("op", ["pwrite", "write"])
def test_acquire_on_a_full_disk_holds_the_lock(faults, tmp_path, op):
    outcome = faults.run(ACQUIRE, f"{op}:*:ENOSPC", tmp_path, root=tmp_path)
    assert outcome.error is None
    assert outcome.result["exclusive"] is True


def test_acquire_killed_at_every_call_leaves_no_lock(faults, tmp_path):
    calls = faults.calls(ACQUIRE, tmp_path / "0", root=tmp_path / "0")
    assert ops_of(calls)[0] == "mkdir"
    for n in range(1, len(calls) + 1):
        root = tmp_path / f"{n}"
        outcome = faults.run(ACQUIRE, f"*:{n}:kill-before", root, root=root)
        assert outcome.signal == signal.SIGKILL, calls[n - 1]
        outcome = faults.run(ACQUIRE, root=root)
        assert outcome.error is None
