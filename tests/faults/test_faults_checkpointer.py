"""Training runs killed at any point: what was durable is there, and training goes on bit-equal."""

import copy
import dataclasses
import errno
import random
import shutil
import signal
import time
from pathlib import Path

import pytest
from crash_checks import Checker, Reference, read_events, require_clean
from crash_training import role_of, tree
from seaweed import BUCKET

RUN = """
import crash_training
os.environ.update(environ)
crash_training.Run(script, root, events, store).go()
"""
FAIL = """
import crash_training
failure = crash_training.fail(root, events, mode, lambda: arm(faults), disarm)
result["failure"] = None if failure is None else described(failure)
"""
OPEN = "gdsckpt.Checkpointer(root, store=store).close()"

READING = ("read", "pread")
"""Calls before and after which a kill is the same."""

ORDERED = ("mkdir", "fdatasync", "fsync", "rename", "unlink", "rmdir")
"""Calls whose order is what a kill can show to be wrong."""

PROTOCOL = {
    *(("mkdir", "root"), ("fsync", "."), ("mkdir", "root/.gdsckpt"), ("fsync", "root/.gdsckpt")),
    *((op, "root/.gdsckpt/lock") for op in ("open", "ftruncate", "pwrite")),
    *(("mkdir", "root/step"), ("fsync", "root"), ("fsync", "root/step")),
    *((op, "root/step/shard.tmp") for op in ("open", "odirect", "fallocate")),
    *((op, "root/step/shard.tmp") for op in ("pwrite", "fdatasync")),
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


@dataclasses.dataclass
class Point:
    """A call of a run at which it can be killed.

    Attributes:
        n: Number of the call, from 1.
        op: Its kind.
        role: Of its file.
    """

    n: int
    op: str
    role: str


class Crashes:
    """Runs trainings, some of which are killed, each in a root of its own."""

    def __init__(self, faults, directory):
        self.faults = faults
        self._directory = directory
        self._num_cases = 0
        self._references = {}
        (directory / "events").mkdir()
        faults.prepare("import crash_training; crash_training.warm()")

    def case(self, script, store=None, environ=None):
        """Begin a new root; ``store`` is an URL, "files" for one beside the root, or None."""
        self._num_cases += 1
        where = self._directory / f"{self._num_cases}"
        where.mkdir()
        events = self._directory / "events" / f"{self._num_cases}"
        if store == "files":
            store = f"file://{where}/store"
        return Case(self, script, where, events, store, environ or {})

    def reference(self, script, **options):
        """Give what a script comes to without a kill, and the calls that it makes."""
        if script not in self._references:
            case = self.case(script, **options)
            outcome = case.run("*:*:log")
            assert outcome.error is None, outcome.error["trace"]
            reference = Reference.of(script, read_events(case.events))
            assert case.check(reference)
            self._references[script] = reference, case.points(outcome)
        return self._references[script]


@dataclasses.dataclass
class Case:
    """One root, and the runs that it has seen.

    Attributes:
        crashes: What it is one of.
        script: Key of crash_training.SCRIPTS.
        where: Directory of the root, and of a store in files.
        events: File, not below ``where``: calls on it are not counted.
        store: URL, or None.
        environ: Variables for the runs.
    """

    crashes: Crashes
    script: str
    where: Path
    events: Path
    store: str | None
    environ: dict
    checker: Checker | None = None

    def run(self, rules="", *, code=RUN, **options):
        """Run the script from where the root is, to its end or a kill; or other code."""
        return self.crashes.faults.run(
            code,
            rules,
            self.where,
            script=self.script,
            root=self.where / "root",
            events=self.events,
            store=self.store,
            environ=self.environ,
            **options,
        )

    def points(self, outcome):
        """Give the calls that a run has made on the root and a store."""
        return [
            Point(n, op, role_of(path, self.where))
            for n, (op, _, _, path) in enumerate(outcome.fired, 1)
        ]

    def check(self, reference):
        """Check all that the runs since the last check have said; tells whether one was over."""
        self.checker = self.checker or Checker(reference)
        self.checker.check(read_events(self.events))
        self.events.unlink(missing_ok=True)
        return self.checker.is_over

    def finish(self, reference):
        """Let a run come to its end, check everything, and clear up."""
        outcome = self.run()
        assert outcome.error is None, outcome.error["trace"]
        assert outcome.signal is None
        assert {category for category, _ in outcome.warnings} <= {"FallbackWarning"}
        assert outcome.fds_after == outcome.fds_before
        assert self.check(reference)
        self.remove()

    def copy(self):
        """Give a case with the same files, of which the same is known."""
        made = self.crashes.case(self.script)
        shutil.copytree(self.where, made.where, dirs_exist_ok=True)
        made.checker = copy.deepcopy(self.checker)
        return made

    def remove(self):
        shutil.rmtree(self.where)


@pytest.fixture(scope="module")
def crashes(faults, tmp_path_factory):
    return Crashes(faults, tmp_path_factory.mktemp("crashes"))


def kill_at(crashes, script, point, when, **options):
    """Kill a run at a call, and check what the next one makes of it."""
    reference, _ = crashes.reference(script, **options)
    case = crashes.case(script, **options)
    outcome = case.run(f"*:{point.n}:kill-{when}")
    assert outcome.signal == signal.SIGKILL
    ((op, _, _, path),) = outcome.fired
    assert (op, role_of(path, case.where)) == (point.op, point.role)
    try:
        case.finish(reference)
    except AssertionError as error:
        error.add_note(f"after a kill {when} call {point.n}: {op} of {path}")
        raise


def one_of_each(points):
    """Choose one point of each kind of call on each kind of file, not always the first."""
    kinds = {}
    for point in points:
        kinds.setdefault((point.op, point.role), []).append(point)
    return [found[n % len(found)] for n, found in enumerate(kinds.values())]


def changing(points):
    """Leave out the points where nothing was changed since the one before."""
    read = ("root/step/shard", "root/step/manifest.json", "store/step/manifest.json")
    read += ("store/step/shard", "root/.gdsckpt/quarantine/superseded.step/manifest.json")
    return [
        point
        for point in points
        if point.op not in READING and not (point.op.endswith("open") and point.role in read)
    ]


def test_checkpointer_asks_the_system_for_what_these_tests_break(crashes):
    _, points = crashes.reference("steady")
    assert {(point.op, point.role) for point in points} >= PROTOCOL
    _, points = crashes.reference("stored", store="files")
    assert {(point.op, point.role) for point in points} >= STORING


def test_checkpointer_killed_at_each_kind_of_call_loses_nothing(crashes):
    _, points = crashes.reference("steady")
    ordered = [point for point in points if point.op in ORDERED]
    for point in one_of_each([p for p in ordered if (p.op, p.role) in PROTOCOL]):
        kill_at(crashes, "steady", point, "before")
        if point.op == "rename":
            kill_at(crashes, "steady", point, "after")


@pytest.mark.campaign
@pytest.mark.parametrize("when", ["before", "after"])
def test_checkpointer_killed_at_every_call_loses_nothing(crashes, when):
    _, points = crashes.reference("steady")
    for point in changing(points):
        kill_at(crashes, "steady", point, when)


def test_checkpointer_killed_at_a_commit_to_a_store_loses_nothing(crashes):
    _, points = crashes.reference("stored", store="files")
    renames = [point for point in points if point.op == "rename"]
    for point in one_of_each([p for p in renames if p.role.startswith("store/")]):
        kill_at(crashes, "stored", point, "before", store="files")
        kill_at(crashes, "stored", point, "after", store="files")


@pytest.mark.campaign
@pytest.mark.parametrize("when", ["before", "after"])
def test_checkpointer_killed_at_every_call_on_a_store_loses_nothing(crashes, when):
    _, points = crashes.reference("stored", store="files")
    for point in changing(points):
        if point.role.startswith("store"):
            kill_at(crashes, "stored", point, when, store="files")


# Each leaves something else for the next start to put in order: (call, role, which of them).
UNTIDY = [
    ("rename", "root/step/shard", 0),  # a step without a manifest
    ("fsync", "root/.gdsckpt/quarantine", 0),
    ("mkdir", "root/.gdsckpt/quarantine", 0),  # a step that counts no more
    ("unlink", "root/.gdsckpt/pruned/step/file", 1),  # half-deleted
    ("unlink", "root/step/shard", 0),  # the shard of a step that was saved over
    ("fdatasync", "root/step/manifest.tmp", -1),  # both temporary files in a step of two shards
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


def kill_at_random(crashes, script, num_kills, **options):
    """Kill runs at random times, each going on from where the one before was."""
    chance = random.Random(num_kills)
    started = time.monotonic()
    reference, _ = crashes.reference(script, **options)
    seconds = time.monotonic() - started
    if seconds < 0.1:  # it was there already
        seconds = 1.0
    most = 0
    while num_kills > 0:
        case = crashes.case(script, **options)
        is_over = False
        while num_kills > 0 and not is_over:
            outcome = case.run(kill_after_s=chance.uniform(0, seconds))
            assert outcome.error is None, outcome.error["trace"]
            num_kills -= outcome.signal == signal.SIGKILL
            is_over = case.check(reference)
            most = max(most, len(tree(case.where)))
        case.finish(reference)
    return most


def test_checkpointer_killed_at_random_times_loses_nothing(crashes):
    assert kill_at_random(crashes, "overlapping", 6) < 60


@pytest.mark.campaign
def test_checkpointer_killed_at_random_times_again_and_again_loses_nothing(crashes):
    assert kill_at_random(crashes, "overlapping", 200) < 60


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


FAILING = ("mkdir", "open", "fallocate", "pwrite", "fdatasync", "fsync", "rename")


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
