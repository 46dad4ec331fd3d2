"""Roots of trainings that are killed: what a test of the crash matrix does with them."""

import copy
import dataclasses
import random
import shutil
import signal
import time
from pathlib import Path

from crash_checks import Checker, Reference, read_events
from crash_roles import role_of, tree

RUN = """
import crash_training
os.environ.update(environ)
crash_training.Run(script, root, events, store).go()
"""
OPEN = "gdsckpt.Checkpointer(root, store=store).close()"

READING = ("read", "pread", "odirect")
NAMING = ("mkdir", "rename", "unlink", "rmdir")


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
            started = time.monotonic()
            outcome = case.run("*:*:log")
            assert outcome.error is None, outcome.error["trace"]
            seconds = time.monotonic() - started
            reference = Reference.of(script, read_events(case.events), seconds)
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
        """Run the script from where the root is, to its end or a kill; or other code.

        With a store in files, only the calls on that count: uploads go on beside the rest.
        """
        has_files = (self.store or "").startswith("file:")
        return self.crashes.faults.run(
            code,
            rules,
            self.where / "store" if has_files else self.where,
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
    """Leave out the points where the files are what they were at the point before."""
    opened = [
        point.role.endswith((".tmp", "/lock", "/reports.jsonl"))
        or (after.op, after.role) == ("fsync", point.role)  # of a directory
        for point, after in zip(points, [*points[1:], points[-1]], strict=True)
    ]
    return [
        point
        for point, is_opened in zip(points, opened, strict=True)
        if (is_opened if point.op == "open" else point.op not in READING)
    ]


def kill_at_each(crashes, script, points, **options):
    """Kill a run before each call, and after each that changes a name.

    What is there after any other call is there before the next one.
    """
    for point in points:
        kill_at(crashes, script, point, "before", **options)
        if point.op in NAMING:
            kill_at(crashes, script, point, "after", **options)


def kill_at_random(crashes, script, num_kills, **options):
    """Kill runs at random times, each going on from where the one before was.

    Returns:
        The most files and directories that a root ever had.
    """
    chance = random.Random(num_kills)
    reference, _ = crashes.reference(script, **options)
    most = 0
    while num_kills > 0:
        case = crashes.case(script, **options)
        is_over = False
        while num_kills > 0 and not is_over:
            outcome = case.run(kill_after_s=chance.uniform(0, reference.seconds))
            assert outcome.error is None, outcome.error["trace"]
            num_kills -= outcome.signal == signal.SIGKILL
            is_over = case.check(reference)
            most = max(most, len(tree(case.where)))
        case.finish(reference)
    return most
