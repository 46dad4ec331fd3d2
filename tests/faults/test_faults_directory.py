"""Faults in a save of a checkpoint directory: it loads as the old or the new step, never else."""

import errno
import json
import signal

import pytest

SAVE = "report = gdsckpt.save_checkpoint(value(2), path, step=2); result.update(report.as_dict())"
OLD = "gdsckpt.save_checkpoint(value(1), path, step=1)"


@pytest.fixture
def old(faults, tmp_path):
    """A checkpoint of step 1."""
    directory = tmp_path / "step"
    assert faults.run(OLD, path=directory).error is None
    return directory


def loaded(faults, directory):
    outcome = faults.run(
        "result['n'] = which(gdsckpt.load(path)); assert gdsckpt.verify(path).ok is True",
        path=directory,
    )
    assert outcome.error is None, outcome.error["trace"]
    n = outcome.result["n"]
    assert json.loads((directory / "manifest.json").read_text())["step"] == n
    return n


def names(directory):
    return sorted(path.name.split(".")[0] for path in directory.iterdir())


WHOLE = ["manifest", "rank-00000"]


def calls_of_a_save(faults, directory):
    calls = faults.calls(SAVE, directory, path=directory)
    assert faults.run(OLD, path=directory).error is None
    return calls


def test_save_checkpoint_has_one_commit_point(faults, old):
    renamed = [
        file.rsplit("/", 1)[1] for op, file in calls_of_a_save(faults, old) if op == "rename"
    ]
    assert renamed[0].startswith("rank-00000.")
    assert renamed[1:] == ["manifest.json"]
    ops = [op for op, _ in calls_of_a_save(faults, old)]
    manifest = len(ops) - ops[::-1].index("rename") - 1
    # What the manifest names is durable before it, the old shard goes after it is durable.
    assert ops[:manifest].count("fdatasync") == 2
    assert ops[manifest:] == ["rename", "open", "fsync", "unlink", "unlink"]


def test_save_checkpoint_killed_at_every_call_leaves_old_or_new(faults, old):
    calls = calls_of_a_save(faults, old)
    commit = max(n for n, (op, _) in enumerate(calls, 1) if op == "rename")
    # What is there after a call is there before the next one.
    points = [(n, "before") for n in range(1, len(calls) + 1)]
    for n, when in [*points, (commit, "after"), (len(calls), "after")]:
        outcome = faults.run(SAVE, f"*:{n}:kill-{when}", old, path=old)
        assert (outcome.signal, len(outcome.fired)) == (signal.SIGKILL, 1)
        is_new = n > commit or (n == commit and when == "after")
        assert loaded(faults, old) == (2 if is_new else 1), outcome.fired
        # The next save removes abandoned shards and temporary files.
        assert faults.run(OLD, path=old).error is None
        assert names(old) == WHOLE, outcome.fired
    assert loaded(faults, old) == 1


def test_save_checkpoint_killed_in_a_new_directory_leaves_no_checkpoint(faults, tmp_path):
    path = tmp_path / "new"
    calls = faults.calls(SAVE, path, path=path)
    commit = max(n for n, (op, _) in enumerate(calls, 1) if op == "rename")
    for n in range(1, commit + 1):
        directory = tmp_path / f"new-{n}"
        outcome = faults.run(SAVE, f"*:{n}:kill-before", directory, path=directory)
        assert outcome.signal == signal.SIGKILL
        outcome = faults.run("gdsckpt.load(path)", path=directory)
        assert outcome.error["type"] == "CheckpointNotFoundError"
        assert outcome.error["fields"]["path"] == str(directory)
        assert faults.run(SAVE, path=directory).error is None
        assert names(directory) == WHOLE
        assert loaded(faults, directory) == 2


def test_save_checkpoint_interrupted_at_every_call_leaves_nothing_behind(faults, old):
    calls = calls_of_a_save(faults, old)
    commit = max(n for n, (op, _) in enumerate(calls, 1) if op == "rename")
    for n in range(1, len(calls) + 1):
        # Python sees a signal after the call, whether it came before or after.
        outcome = faults.run(SAVE, f"*:{n}:int-after", old, path=old)
        assert outcome.error["type"] == "KeyboardInterrupt", outcome.error["trace"]
        now = loaded(faults, old)
        if n < commit:
            assert (now, names(old)) == (1, WHOLE), outcome.fired
        assert faults.run(OLD, path=old).error is None
        assert names(old) == WHOLE


@pytest.mark.parametrize(
    ("op", "num_harmless"),
    [("mkdir", 0), ("open", 1), ("fallocate", 0), ("pwrite", 0), ("fdatasync", 0), ("rename", 0)],
)
def test_save_checkpoint_eio_at_every_call_keeps_the_old_step(faults, old, op, num_harmless):
    ops = [called for called, _ in calls_of_a_save(faults, old)]
    for n in range(1, ops.count(op) + 1 - num_harmless):
        outcome = faults.run(SAVE, f"{op}:{n}:EIO", old, path=old)
        assert len(outcome.fired) == 1
        assert outcome.error["type"] == "StorageError", outcome.error["trace"]
        fields = outcome.error["fields"]
        assert (fields["op"], fields["errno"]) == (op, errno.EIO)
        assert fields["path"].startswith(str(old))
        assert ".gdsckpt-tmp-" not in outcome.error["text"]
        assert names(old) == WHOLE, (n, outcome.error["text"])
        assert loaded(faults, old) == 1
        assert outcome.fds_after == outcome.fds_before


def test_save_checkpoint_whose_last_sync_fails_raises_and_keeps_both_shards(faults, old):
    num_syncs = [op for op, _ in calls_of_a_save(faults, old)].count("fsync")
    outcome = faults.run(SAVE, f"fsync:{num_syncs}:EIO", old, path=old)
    assert outcome.error["type"] == "StorageError"
    fields = outcome.error["fields"]
    assert (fields["op"], fields["path"], fields["errno"]) == ("fsync", str(old), errno.EIO)
    # A power failure may bring back the old manifest, so what it names has to be there.
    assert names(old) == ["manifest", "rank-00000", "rank-00000"]
    assert loaded(faults, old) == 2


def test_save_checkpoint_that_cannot_remove_old_shards_succeeds(faults, old):
    outcome = faults.run(SAVE, "unlink:*:EACCES", old, path=old)
    assert outcome.error is None, outcome.error["trace"]
    assert len(outcome.fired) >= 1
    assert loaded(faults, old) == 2
    assert faults.run(SAVE, path=old).error is None
    assert names(old) == WHOLE


def test_load_checkpoint_eio_of_the_manifest_raises(faults, old):
    for rule, op in (("open:1:EIO", "open"), ("read:1:EIO", "read")):
        outcome = faults.run("gdsckpt.load(path)", rule, old / "manifest.json", path=old)
        assert len(outcome.fired) == 1
        assert outcome.error["type"] == "StorageError", outcome.error["trace"]
        fields = outcome.error["fields"]
        where = (op, str(old / "manifest.json"), errno.EIO)
        assert (fields["op"], fields["path"], fields["errno"]) == where
