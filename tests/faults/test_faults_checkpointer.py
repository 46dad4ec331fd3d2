"""Training runs killed at any point: what was durable is there, and training goes on bit-equal."""

import signal

import pytest
from crash_cases import OPEN, changing, kill_at, kill_at_each, kill_at_random, one_of_each
from crash_roles import tree
from seaweed import BUCKET

ORDERED = ("mkdir", "fdatasync", "fsync", "rename", "unlink", "rmdir")
"""Calls whose order is what a kill can show to be wrong."""

PROTOCOL = {
    *(("mkdir", "root"), ("fsync", "."), ("mkdir", "root/.gdsckpt"), ("fsync", "root/.gdsckpt")),
    *((op, "root/.gdsckpt/lock") for op in ("open", "ftruncate", "pwrite")),
    *(("mkdir", "root/step"), ("fsync", "root"), ("fsync", "root/step")),
    *((op, "root/step/shard.tmp") for op in ("open", "fallocate", "pwrite", "fdatasync")),
    *((op, "root/step/manifest.tmp") for op in ("open", "pwrite", "fdatasync")),
    *(("rename", "root/step/shard"), ("rename", "root/step/manifest.json")),
    ("unlink", "root/step/shard"),  # saved over
    *((op, "root/.gdsckpt/pruned") for op in ("mkdir", "fsync")),
    *((op, "root/.gdsckpt/pruned/step") for op in ("rename", "open", "rmdir")),
    ("unlink", "root/.gdsckpt/pruned/step/file"),
    *((op, "root/.gdsckpt/quarantine") for op in ("mkdir", "fsync")),
    ("rename", "root/.gdsckpt/quarantine/superseded.step"),
}
"""What a run has to ask of the system, so that kills there can be tried: call and kind of file."""

STORING = {
    *(("mkdir", "store"), ("mkdir", "store/step"), ("fsync", "store"), ("fsync", "store/step")),
    *((op, "store/step/put.tmp") for op in ("open", "write", "fsync")),
    *(("rename", "store/step/shard"), ("rename", "store/step/manifest.json")),
}


def test_checkpointer_asks_the_system_for_what_these_tests_break(crashes):
    _, points = crashes.reference("steady")
    assert {(point.op, point.role) for point in points} >= PROTOCOL
    _, points = crashes.reference("stored", store="files")
    assert {(point.op, point.role) for point in points} >= STORING


def test_checkpointer_syncs_what_a_step_needs_before_it_is_listed(crashes):
    _, points = crashes.reference("steady")
    calls = [(point.op, point.role) for point in points if point.op in ORDERED]
    commits = [n for n, call in enumerate(calls) if call == ("rename", "root/step/manifest.json")]
    for commit in commits:
        assert calls[commit - 5 : commit + 2] == [
            ("fdatasync", "root/step/shard.tmp"),
            ("rename", "root/step/shard"),
            ("fsync", "root/step"),
            ("unlink", "root/step/shard.tmp"),  # it is gone already
            ("fdatasync", "root/step/manifest.tmp"),
            ("rename", "root/step/manifest.json"),
            ("fsync", "root/step"),
        ]
        # Made in this save, or by one that may have been killed before its sync.
        assert calls[commit - 7 : commit - 5] == [("mkdir", "root/step"), ("fsync", "root")]
    assert len(commits) == 6


def test_checkpointer_deletes_nothing_of_a_step_before_it_is_durably_off_the_root(crashes):
    _, points = crashes.reference("steady")
    calls = [(point.op, point.role) for point in points if point.op in ORDERED]
    private = "root/.gdsckpt"
    pruned = [n for n, call in enumerate(calls) if call == ("rename", f"{private}/pruned/step")]
    for n in pruned:
        assert calls[n + 1 : n + 3] == [("fsync", f"{private}/pruned"), ("fsync", "root")]
        assert calls[n + 3] == ("unlink", f"{private}/pruned/step/file")
    assert len(pruned) == 2


def test_checkpointer_killed_at_each_kind_of_call_loses_nothing(crashes):
    _, points = crashes.reference("steady")
    points = [p for p in points if p.op in ORDERED and (p.op, p.role) in PROTOCOL]
    commits = [p.n for p in points if (p.op, p.role) == ("rename", "root/step/manifest.json")]
    # Rather in the save over the newest step, where most can be lost.
    chosen = {(point.op, point.role): point for point in one_of_each(points)}
    chosen |= {(p.op, p.role): p for p in points if commits[3] < p.n <= commits[4]}
    for point in chosen.values():
        kill_at(crashes, "steady", point, "before")
        if point.op == "rename":
            kill_at(crashes, "steady", point, "after")


@pytest.mark.campaign
def test_checkpointer_killed_at_every_call_loses_nothing(crashes):
    _, points = crashes.reference("steady")
    kill_at_each(crashes, "steady", changing(points))


def test_checkpointer_killed_at_a_commit_to_a_store_loses_nothing(crashes):
    _, points = crashes.reference("stored", store="files")
    renames = [point for point in points if point.op == "rename"]
    for point in one_of_each(renames):
        kill_at(crashes, "stored", point, "before", store="files")
        kill_at(crashes, "stored", point, "after", store="files")


@pytest.mark.campaign
def test_checkpointer_killed_at_every_call_on_a_store_loses_nothing(crashes):
    _, points = crashes.reference("stored", store="files")
    kill_at_each(crashes, "stored", changing(points), store="files")


# Each leaves something else for the next start to put in order: (call, role, which of them).
UNTIDY = [
    ("rename", "root/step/shard", 0),  # a step without a manifest
    ("fsync", "root/.gdsckpt/quarantine", 0),
    ("mkdir", "root/.gdsckpt/quarantine", 0),  # a step that counts no more
    ("unlink", "root/.gdsckpt/pruned/step/file", 1),  # half-deleted
    ("unlink", "root/step/shard", 0),  # the shard of a step that was saved over
    ("fdatasync", "root/step/manifest.tmp", 4),  # a second shard and a temporary file
]


def kill_recoveries(crashes, op, role, which, choose):
    """Kill a run at a call, then the next start at each call that ``choose`` gives."""
    reference, points = crashes.reference("steady")
    case = crashes.case("steady")
    point = [point for point in points if (point.op, point.role) == (op, role)][which]
    assert case.run(f"*:{point.n}:kill-before").signal == signal.SIGKILL
    case.check(reference)
    logged = case.copy()
    for point in choose(changing(logged.points(logged.run("*:*:log", code=OPEN)))):
        again = case.copy()
        outcome = again.run(f"*:{point.n}:kill-before", code=OPEN)
        assert outcome.signal == signal.SIGKILL
        again.finish(reference)
    logged.finish(reference)
    case.remove()


def test_checkpointer_killed_while_it_recovers_recovers_again(crashes):
    for op, role, which in UNTIDY[:3]:
        kill_recoveries(crashes, op, role, which, lambda points: points[-1:])


@pytest.mark.campaign
@pytest.mark.parametrize(("op", "role", "which"), UNTIDY)
def test_checkpointer_killed_at_every_call_of_a_recovery_recovers_again(crashes, op, role, which):
    kill_recoveries(crashes, op, role, which, lambda points: points)


def test_checkpointer_killed_at_random_times_loses_nothing(crashes):
    assert kill_at_random(crashes, "overlapping", 6) < 60


@pytest.mark.campaign
def test_checkpointer_killed_at_random_times_again_and_again_loses_nothing(crashes):
    assert kill_at_random(crashes, "overlapping", 120) < 60


def test_checkpointer_killed_again_and_again_leaves_no_more_each_time(crashes):
    reference, points = crashes.reference("steady")
    case = crashes.case("steady")
    point = [p for p in points if (p.op, p.role) == ("rename", "root/step/manifest.json")][3]
    assert case.run(f"*:{point.n}:kill-before").signal == signal.SIGKILL
    sizes = []
    for _ in range(4):
        outcome = case.run("fdatasync:2:kill-before")  # after that of the shard, the manifest's
        assert outcome.signal == signal.SIGKILL
        case.check(reference)
        sizes.append(len(tree(case.where)))
    assert len({*sizes[1:]}) == 1, sizes
    case.finish(reference)


@pytest.mark.s3
@pytest.mark.campaign
def test_checkpointer_with_a_bucket_killed_at_random_times_loses_nothing(
    crashes, seaweed, s3_environment
):
    crashes.faults.prepare("import boto3, gdsckpt.store.s3, gdsckpt.store.s3_client")
    environ = {name: text for name, text in s3_environment.items() if name.startswith("AWS_")}
    for n in range(5):
        url = f"s3://{BUCKET}/crashes-{n}"
        kill_at_random(crashes, "stored", 4, store=url, environ=environ)
