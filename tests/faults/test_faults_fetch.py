"""A file call of a fetch fails, is cut short or is the last one: old file or whole new one."""

import errno
import signal

import pytest

from gdsckpt.staging.files import leftovers

PUT = "gdsckpt.save(value(2), 'memory://m/a.pt', config={'chunk_bytes': '64KiB'});"
FETCH = f"{PUT} result.update(gdsckpt.fetch('memory://m/a.pt', path).as_dict())"
PUT_CHECKPOINT = "gdsckpt.save_checkpoint(value(2), 'memory://m/step', step=2);"
FETCH_CHECKPOINT = f"{PUT_CHECKPOINT} gdsckpt.fetch('memory://m/step', path)"


@pytest.fixture
def old(faults, tmp_path):
    """A directory with a whole old file in it, which has state 1."""
    path = tmp_path / "here" / "state.pt"
    path.parent.mkdir()
    assert faults.run("gdsckpt.save(value(1), path)", path=path).error is None
    return path


@pytest.fixture
def old_step(faults, tmp_path):
    """A checkpoint directory that has state 1."""
    path = tmp_path / "here" / "step"
    path.parent.mkdir()
    assert faults.run("gdsckpt.save_checkpoint(value(1), path, step=1)", path=path).error is None
    return path


def loaded(faults, path):
    outcome = faults.run(
        "result['n'] = which(gdsckpt.load(path)); assert gdsckpt.verify(path).ok is True",
        path=path,
    )
    assert outcome.error is None, outcome.error["trace"]
    return outcome.result["n"]


def calls_of_a_fetch(faults, path, code=FETCH):
    ops = [op for op, _ in faults.calls(code, path.parent, path=path)]
    reset = "gdsckpt.save_checkpoint(value(1), path, step=1)"
    if code is FETCH:
        reset = "gdsckpt.save(value(1), path)"
    assert faults.run(reset, path=path).error is None
    return ops


def test_fetch_asks_the_system_for_what_these_tests_break(faults, old):
    ops = calls_of_a_fetch(faults, old)
    expected = ["open", "fallocate", "odirect", "pwrite", "fchmod", "fdatasync", "rename", "fsync"]
    assert [op for op in dict.fromkeys(ops) if op != "dpwrite"] == [*expected, "unlink"]


def test_fetch_killed_at_every_call_leaves_old_or_new(faults, old):
    num_calls = len(calls_of_a_fetch(faults, old))
    rename = calls_of_a_fetch(faults, old).index("rename") + 1
    for when in ("before", "after"):
        for n in range(1, num_calls + 1):
            outcome = faults.run(FETCH, f"*:{n}:kill-{when}", old.parent, path=old)
            assert (outcome.signal, len(outcome.fired)) == (signal.SIGKILL, 1)
            is_new = n > rename or (n == rename and when == "after")
            assert loaded(faults, old) == (2 if is_new else 1), outcome.fired
            assert {*old.parent.iterdir()} == {old, *leftovers(old.parent)}
            # The next one removes what the killed one left.
            assert faults.run("gdsckpt.save(value(1), path)", path=old).error is None
            assert [*old.parent.iterdir()] == [old]


def test_fetch_interrupted_at_every_call_leaves_nothing_behind(faults, old):
    num_calls = len(calls_of_a_fetch(faults, old))
    for when in ("before", "after"):
        for n in range(1, num_calls + 1):
            outcome = faults.run(FETCH, f"*:{n}:int-{when}", old.parent, path=old)
            assert len(outcome.fired) == 1
            assert outcome.error is not None, outcome.fired
            assert outcome.error["type"] == "KeyboardInterrupt", outcome.error["trace"]
            assert loaded(faults, old) in (1, 2)
            assert [*old.parent.iterdir()] == [old], outcome.fired


@pytest.mark.parametrize("op", ["open", "fallocate", "pwrite", "fchmod", "fdatasync", "rename"])
@pytest.mark.parametrize("code", ["EIO", "ENOSPC"])
def test_fetch_whose_calls_fail_raises_and_keeps_the_old_file(faults, old, op, code):
    for n in range(1, calls_of_a_fetch(faults, old).count(op) + (op != "open")):
        outcome = faults.run(FETCH, f"{op}:{n}:{code}", old.parent, path=old)
        assert len(outcome.fired) == 1
        assert outcome.error["type"] == "StorageError", outcome.error["trace"]
        fields = outcome.error["fields"]
        assert (fields["op"], fields["path"]) == (op, str(old))
        assert fields["errno"] == getattr(errno, code)
        assert ".gdsckpt-tmp-" not in outcome.error["text"]
        assert [*old.parent.iterdir()] == [old]
        assert loaded(faults, old) == 1


def test_fetch_whose_direct_writes_are_refused_goes_through_the_page_cache(faults, old):
    outcome = faults.run(FETCH, "dpwrite:*:EINVAL", old.parent, path=old)
    assert outcome.error is None, outcome.error["trace"]
    assert len(outcome.fired) >= 1
    assert outcome.result["direct_io"] is False
    assert any("direct write was refused" in text for _, text in outcome.warnings)
    assert loaded(faults, old) == 2


@pytest.mark.parametrize("nbytes", [4096, 8192, 5000, 100])
def test_fetch_continues_writes_that_are_cut_short(faults, old, nbytes):
    outcome = faults.run(FETCH, f"pwrite:*:short={nbytes}", old.parent, path=old)
    assert outcome.error is None, outcome.error["trace"]
    assert loaded(faults, old) == 2


def test_fetch_of_a_checkpoint_killed_at_every_call_leaves_old_or_new(faults, old_step):
    num_calls = len(calls_of_a_fetch(faults, old_step, FETCH_CHECKPOINT))
    for n in range(1, num_calls + 1):
        outcome = faults.run(FETCH_CHECKPOINT, f"*:{n}:kill-after", old_step.parent, path=old_step)
        assert (outcome.signal, len(outcome.fired)) == (signal.SIGKILL, 1)
        assert loaded(faults, old_step) in (1, 2)
        reset = "gdsckpt.save_checkpoint(value(1), path, step=1)"
        assert faults.run(reset, path=old_step).error is None
        assert len([*old_step.iterdir()]) == 2


def test_fetch_of_a_checkpoint_whose_calls_fail_keeps_the_old_one(faults, old_step):
    ops = calls_of_a_fetch(faults, old_step, FETCH_CHECKPOINT)
    last = max(n for n, op in enumerate(ops, 1) if op == "rename")
    names = sorted(path.name for path in old_step.iterdir())
    for n in range(1, last + 1):
        outcome = faults.run(FETCH_CHECKPOINT, f"*:{n}:EIO", old_step.parent, path=old_step)
        assert len(outcome.fired) == 1
        if outcome.error is None:  # of a look at what is there, or for leftovers
            assert ops[n - 1] in ("open", "mkdir", "read", "unlink", "odirect"), ops[n - 1]
            reset = "gdsckpt.save_checkpoint(value(1), path, step=1)"
            assert faults.run(reset, path=old_step).error is None
            names = sorted(path.name for path in old_step.iterdir())
            continue
        assert outcome.error["type"] == "StorageError", outcome.error["trace"]
        assert sorted(path.name for path in old_step.iterdir()) == names, outcome.fired
        assert loaded(faults, old_step) == 1
