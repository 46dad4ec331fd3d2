"""Saves of a Checkpointer whose calls fail: they say so by their handle, and the root stays."""

import errno

import pytest
from crash_cases import one_of_each
from crash_checks import read_events, require_clean

FAIL = """
import crash_training
failure = crash_training.fail(root, events, mode, lambda: arm(faults), disarm)
result["failure"] = None if failure is None else described(failure)
"""

FAILING = ("mkdir", "open", "fallocate", "pwrite", "write", "fdatasync", "fsync", "rename")


@pytest.fixture(scope="module")
def filled(crashes):
    """A root with steps, of which the next save lets one go."""
    reference, _ = crashes.reference("steady")
    case = crashes.case("steady")
    outcome = case.run()
    assert outcome.error is None
    assert case.check(reference)
    return case


def fail(case, mode, rules):
    """Run a save that meets faults, in a copy of the root, and check what comes after it."""
    here = case.copy()
    outcome = here.run(code=FAIL, mode=mode, faults=rules)
    assert outcome.error is None, outcome.error["trace"]
    assert outcome.fds_after == outcome.fds_before
    assert {category for category, _ in outcome.warnings} <= {"FallbackWarning"}
    events = read_events(here.events)
    begun = [each for each in events if each["event"] == "begun"]
    seen = {each["event"]: each for each in events}
    # The two saves after it.
    assert seen["over"]["steps"] == [each["step"] for each in begun[1:]]
    assert [digest for _, _, digest in seen["over"]["local"]] == [b["digest"] for b in begun[1:]]
    assert seen["clean"]["local"] == seen["over"]["local"]
    require_clean(seen["clean"])
    here.remove()
    return outcome, here.points(outcome), seen, begun[0]


def fail_at(case, mode, point, code, commit):
    """Let one call of a save fail, and check how the save fails, and that the root is as before."""
    outcome, fired, seen, saved = fail(case, mode, f"*:{point.n}:{code}")
    assert [(each.op, each.role) for each in fired] == [(point.op, point.role)]
    failure = outcome.result["failure"]
    before, after = seen["opened"]["local"], seen["failed"]["local"]
    if point.n > commit + 2:
        assert failure is None, "the step is durable, so the save has not failed"
        assert [saved["step"], saved["digest"]] in [[step, digest] for step, _, digest in after]
        return
    assert failure is not None
    assert (failure["type"], failure["fields"]["errno"]) == ("StorageError", getattr(errno, code))
    assert failure["fields"]["op"] == point.op
    # The sync of the directory comes after the rename of the manifest: the new step is there, and a
    # power failure may take it away.
    added = [] if point.n <= commit else [saved["digest"]]
    assert [digest for *_, digest in after] == [*(digest for *_, digest in before), *added]


def points_that_fail(case, mode):
    """Give the calls of a save that can fail, and the number of the one that commits it."""
    outcome, points, _, _ = fail(case, mode, "*:*:log")
    assert outcome.result["failure"] is None
    commit = next(p.n for p in points if (p.op, p.role) == ("rename", "root/step/manifest.json"))
    assert [(p.op, p.role) for p in points[commit : commit + 2]] == [
        ("open", "root/step"),
        ("fsync", "root/step"),
    ]
    return [
        point
        for point in points
        if point.op in FAILING and (point.op != "open" or point.role.endswith(".tmp"))
    ], commit


def test_checkpointer_whose_call_fails_keeps_the_root(filled):
    for n, (mode, code) in enumerate([("save", "EIO"), ("fence", "ENOSPC"), ("host", "EIO")]):
        points, commit = points_that_fail(filled, mode)
        assert {point.op for point in points} == {*FAILING}
        for point in one_of_each(points)[n::3]:
            fail_at(filled, mode, point, code, commit)


@pytest.mark.campaign
@pytest.mark.parametrize("code", ["EIO", "ENOSPC"])
@pytest.mark.parametrize("mode", ["save", "fence", "host"])
def test_checkpointer_whose_any_call_fails_keeps_the_root(filled, mode, code):
    points, commit = points_that_fail(filled, mode)
    for point in points:
        fail_at(filled, mode, point, code, commit)
