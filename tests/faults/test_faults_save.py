"""A file call of a save fails, is cut short or is the last one: old file or whole new one."""

import errno
import os
import signal

import pytest

from gdsckpt.staging.files import leftovers

SAVE = "report = gdsckpt.save(value(2), path); result.update(report.as_dict())"
LOAD = "result['n'] = which(gdsckpt.load(path))"
CHUNKS = "config={'chunk_bytes': '64KiB', 'io_threads': 2}"
SAVE_CHUNKS = f"result.update(gdsckpt.save(value(2), path, {CHUNKS}).as_dict())"

# What a save of a file asks of the system, in this order; a test below holds the list against it.
CALLS = ["open", "fallocate", "odirect", "pwrite", "fchmod", "fdatasync", "rename", "fsync"]


@pytest.fixture
def old(faults, tmp_path):
    """A directory with a whole old file in it, which has state 1."""
    directory = tmp_path / "here"
    directory.mkdir()
    path = directory / "state.pt"
    assert faults.run("gdsckpt.save(value(1), path)", path=path).error is None
    return path


def loaded(faults, path):
    outcome = faults.run(
        "import torch; result['n'] = which(gdsckpt.load(path));"
        "assert which(torch.load(path)) == result['n']; assert gdsckpt.verify(path).ok is True",
        path=path,
    )
    assert outcome.error is None, outcome.error["trace"]
    return outcome.result["n"]


def calls_of_a_save(faults, path, code=SAVE):
    ops = [op for op, _ in faults.calls(code, path.parent, path=path)]
    assert faults.run("gdsckpt.save(value(1), path)", path=path).error is None
    return ops


def test_save_asks_the_system_for_what_these_tests_break(faults, old):
    ops = calls_of_a_save(faults, old)
    assert list(dict.fromkeys(ops)) == ["open", *CALLS[1:], "unlink"]
    # The last open is that of the directory, for its sync; the unlink finds nothing.
    assert ops[-4:] == ["rename", "open", "fsync", "unlink"]


def test_save_killed_at_every_call_leaves_old_or_new(faults, old):
    num_calls = len(calls_of_a_save(faults, old))
    rename = calls_of_a_save(faults, old).index("rename") + 1
    for when in ("before", "after"):
        for n in range(1, num_calls + 1):
            outcome = faults.run(SAVE, f"*:{n}:kill-{when}", old.parent, path=old)
            assert (outcome.signal, len(outcome.fired)) == (signal.SIGKILL, 1)
            is_new = n > rename or (n == rename and when == "after")
            assert loaded(faults, old) == (2 if is_new else 1), outcome.fired
            left = leftovers(old.parent)
            assert len(left) == (0 if is_new or (n, when) == (1, "before") else 1), outcome.fired
            assert {*old.parent.iterdir()} == {old, *left}
            # The next save removes what the killed one left.
            assert faults.run("gdsckpt.save(value(1), path)", path=old).error is None
            assert [*old.parent.iterdir()] == [old]
            assert loaded(faults, old) == 1


def test_save_interrupted_at_every_call_leaves_nothing_behind(faults, old):
    num_calls = len(calls_of_a_save(faults, old))
    for when in ("before", "after"):
        for n in range(1, num_calls + 1):
            outcome = faults.run(SAVE, f"*:{n}:int-{when}", old.parent, path=old)
            assert len(outcome.fired) == 1
            assert outcome.error is not None, outcome.fired
            assert outcome.error["type"] == "KeyboardInterrupt", outcome.error["trace"]
            assert loaded(faults, old) in (1, 2)
            assert [*old.parent.iterdir()] == [old], outcome.fired


@pytest.mark.parametrize("op", ["open", "fallocate", "pwrite", "fchmod", "fdatasync", "rename"])
def test_save_eio_at_every_call_raises_and_keeps_the_old_file(faults, old, op):
    for n in range(1, calls_of_a_save(faults, old).count(op) + (op != "open")):
        outcome = faults.run(SAVE, f"{op}:{n}:EIO", old.parent, path=old)
        assert len(outcome.fired) == 1
        assert outcome.error["type"] == "StorageError", outcome.error["trace"]
        fields = outcome.error["fields"]
        assert (fields["op"], fields["path"], fields["errno"]) == (op, str(old), errno.EIO)
        assert "Input/output error" in outcome.error["text"]
        assert ".gdsckpt-tmp-" not in outcome.error["text"]
        assert [*old.parent.iterdir()] == [old]
        assert loaded(faults, old) == 1


def test_save_eio_of_each_chunk_names_its_offset(faults, old):
    num_calls = calls_of_a_save(faults, old, SAVE_CHUNKS).count("pwrite")
    assert num_calls >= 15  # 960 KB in pieces of 64 KiB
    offsets = set()
    for n in range(1, num_calls + 1):
        outcome = faults.run(SAVE_CHUNKS, f"pwrite:{n}:EIO", old.parent, path=old)
        fields = outcome.error["fields"]
        assert (fields["op"], fields["path"], fields["errno"]) == ("pwrite", str(old), errno.EIO)
        offsets.add(fields["offset"])
        assert [*old.parent.iterdir()] == [old]
    assert len(offsets) >= 15
    assert loaded(faults, old) == 1


@pytest.mark.parametrize("code", ["ENOSPC", "EDQUOT"])
@pytest.mark.parametrize("op", ["open", "fallocate", "pwrite"])
def test_save_without_room_raises_and_keeps_the_old_file(faults, old, op, code):
    outcome = faults.run(SAVE, f"{op}:1:{code}", old.parent, path=old)
    assert outcome.error["type"] == "StorageError"
    assert outcome.error["fields"]["errno"] == getattr(errno, code)
    assert outcome.error["fields"]["op"] == op
    advice = {"ENOSPC": "Free space on the file system", "EDQUOT": "raise the quota"}
    assert advice[code] in outcome.error["text"]
    assert [*old.parent.iterdir()] == [old]
    assert loaded(faults, old) == 1


def test_save_whose_directory_sync_fails_says_so_and_has_the_new_file(faults, old):
    for rule, op in (("fsync:1:EIO", "fsync"), ("open:2:EIO", "open")):
        outcome = faults.run(SAVE, rule, old.parent, path=old)
        assert len(outcome.fired) == 1
        assert outcome.error["type"] == "StorageError"
        fields = outcome.error["fields"]
        where = (op, str(old.parent), errno.EIO)
        assert (fields["op"], fields["path"], fields["errno"]) == where
        assert [*old.parent.iterdir()] == [old]
        assert loaded(faults, old) == 2


def test_save_where_directories_cannot_be_synced_succeeds(faults, old):
    outcome = faults.run(SAVE, "fsync:1:EINVAL", old.parent, path=old)
    assert (outcome.error, len(outcome.fired)) == (None, 1)
    assert loaded(faults, old) == 2


def test_save_whose_cleanup_fails_raises_the_cause_with_a_note(faults, old):
    outcome = faults.run(SAVE, "pwrite:1:EIO;unlink:1:EROFS", old.parent, path=old)
    assert [op for op, *_ in outcome.fired] == ["pwrite", "unlink"]
    assert (outcome.error["type"], outcome.error["fields"]["errno"]) == ("StorageError", errno.EIO)
    (note,) = outcome.error["notes"]
    assert "Read-only file system" in note
    (left,) = leftovers(old.parent)
    assert {*old.parent.iterdir()} == {old, left}
    assert outcome.fds_after == outcome.fds_before
    assert loaded(faults, old) == 1


def test_save_after_which_an_unlink_fails_succeeds(faults, old):
    outcome = faults.run(SAVE, "unlink:*:EIO", old.parent, path=old)
    assert (outcome.error, len(outcome.fired)) == (None, 1)
    assert [*old.parent.iterdir()] == [old]
    assert loaded(faults, old) == 2


@pytest.mark.parametrize("code", ["EOPNOTSUPP", "ENOSYS"])
def test_save_without_fallocate_goes_on(faults, old, code):
    outcome = faults.run(SAVE, f"fallocate:1:{code}", old.parent, path=old)
    assert (outcome.error, outcome.warnings, len(outcome.fired)) == (None, [], 1)
    assert loaded(faults, old) == 2


@pytest.mark.parametrize("rule", ["odirect:1:EINVAL", "dpwrite:1:EINVAL", "dpwrite:1:EOPNOTSUPP"])
def test_save_without_direct_io_is_buffered_and_says_so_once(faults, old, rule):
    outcome = faults.run(SAVE, rule, old.parent, path=old)
    assert (outcome.error, len(outcome.fired)) == (None, 1)
    ((category, text),) = outcome.warnings
    assert category == "FallbackWarning"
    assert str(old) in text
    assert outcome.result["direct_io"] is False
    assert any("buffered: " in reason for reason in outcome.result["engine_reasons"])
    assert loaded(faults, old) == 2


def test_save_with_direct_io_off_asks_for_none_and_does_not_warn(faults, old):
    code = "result.update(gdsckpt.save(value(2), path, config={'direct_io': 'off'}).as_dict())"
    ops = [op for op, _ in faults.calls(code, old.parent, path=old)]
    assert "odirect" not in ops
    outcome = faults.run(code, path=old)
    assert (outcome.error, outcome.warnings) == (None, [])
    assert outcome.result["direct_io"] is False


@pytest.mark.parametrize("nbytes", [1, 511, 4096, 65536])
def test_save_short_writes_are_continued(faults, old, nbytes):
    code = SAVE_CHUNKS if nbytes > 1 else SAVE_CHUNKS.replace("value(2)", "value(2, 10)")
    rule = f"pwrite:*:short={nbytes}" if nbytes > 511 else f"pwrite:3+:short={nbytes}"
    if nbytes == 1:  # each of the few last calls
        rule = "pwrite:2:short=1;pwrite:5:short=1;pwrite:9:short=1"
    outcome = faults.run(code, rule, old.parent, path=old)
    assert outcome.error is None, outcome.error["trace"]
    assert len(outcome.fired) >= 3
    assert loaded(faults, old) == 2


def test_save_short_write_at_each_call_is_continued(faults, old):
    for n in range(1, calls_of_a_save(faults, old, SAVE_CHUNKS).count("pwrite") + 1):
        outcome = faults.run(SAVE_CHUNKS, f"pwrite:{n}:short=1000", old.parent, path=old)
        assert (outcome.error, len(outcome.fired)) == (None, 1)
        assert outcome.warnings == []
        assert loaded(faults, old) == 2


def test_save_write_without_progress_raises_short_transfer(faults, old):
    outcome = faults.run(SAVE, "pwrite:*:short=0", old.parent, path=old)
    assert outcome.error["type"] == "ShortTransferError"
    fields = outcome.error["fields"]
    assert (fields["op"], fields["path"]) == ("pwrite", str(old))
    assert fields["actual_bytes"] < fields["expected_bytes"]
    assert [*old.parent.iterdir()] == [old]


@pytest.mark.parametrize("op", ["pwrite", "fdatasync", "fsync", "fallocate"])
def test_save_interrupted_system_calls_are_repeated(faults, old, op):
    for n in range(1, calls_of_a_save(faults, old).count(op) + 1):
        outcome = faults.run(SAVE, f"{op}:{n}:EINTR", old.parent, path=old)
        assert len(outcome.fired) == 1
        assert outcome.error is None, outcome.error["trace"]
        assert loaded(faults, old) == 2


def test_save_failures_leave_no_descriptors_and_no_threads(faults, old):
    code = """
threads = None
for n in range(12):
    try:
        gdsckpt.save(value(2), path)
    except gdsckpt.errors.StorageError:
        pass
    threads = threads or num_threads()
result["more_threads"] = num_threads() - threads
"""
    for rule in (
        "pwrite:*:EIO",
        "fdatasync:*:EIO",
        "rename:*:EIO",
        "fsync:*:EIO",
        "open:*:EACCES",
        "odirect:*:EINVAL",
        "fallocate:*:ENOSPC",
        "fchmod:*:EPERM",
    ):
        outcome = faults.run(code, rule, old.parent, path=old)
        assert outcome.error is None, outcome.error["trace"]
        assert len(outcome.fired) == 12
        assert outcome.fds_after == outcome.fds_before, rule
        assert outcome.result["more_threads"] == 0, rule
        assert [*old.parent.iterdir()] == [old]


def test_save_over_a_read_only_file_by_its_owner_stays_direct(faults, old):
    old.parent.chmod(0o777)
    old.chmod(0o444)
    if os.geteuid() == 0:  # whom no mode stops
        os.chown(old, 65534, 65534)
    code = f"os.geteuid() == 0 and os.setresuid(65534, 65534, 65534)\n{SAVE}"
    for directory in (old.parent.parent, old.parent.parent.parent, old.parent.parent.parent.parent):
        if directory.owner() == old.parent.owner() and directory.stat().st_mode & 0o777 == 0o700:
            directory.chmod(0o711)
    outcome = faults.run(code, "", "", path=old)
    assert outcome.error is None, outcome.error["trace"]
    assert outcome.warnings == []
    assert outcome.result["direct_io"] is True
    assert old.stat().st_mode & 0o7777 == 0o444


@pytest.mark.campaign
def test_save_short_and_failing_writes_at_every_pair_of_calls(faults, old):
    num_calls = calls_of_a_save(faults, old, SAVE_CHUNKS).count("pwrite")
    for first in range(1, num_calls + 1):
        for nbytes in (1, 100, 4096, 5000):
            for rule in (f"pwrite:{first}+:short={nbytes}", f"pwrite:{first}:short={nbytes}"):
                if "+" in rule and nbytes < 4096:
                    continue
                outcome = faults.run(SAVE_CHUNKS, rule, old.parent, path=old)
                assert outcome.error is None, outcome.error["trace"]
                assert loaded(faults, old) == 2
        for second in range(first + 1, num_calls + 1):
            rule = f"pwrite:{first}:EINVAL;pwrite:{second}:EIO"
            outcome = faults.run(SAVE_CHUNKS, rule, old.parent, path=old)
            # Buffered, there are fewer calls: the second fault may find none.
            if len(outcome.fired) == 2:
                assert outcome.error["type"] == "StorageError"
            elif outcome.error is None:
                assert loaded(faults, old) == 2
            assert [*old.parent.iterdir()] == [old]
