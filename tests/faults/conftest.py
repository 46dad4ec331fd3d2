import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
KILLS = pytest.StashKey[int]()


def pytest_terminal_summary(terminalreporter, config):
    if config.stash.get(KILLS, 0):
        terminalreporter.write_line(f"{config.stash[KILLS]} processes were killed with SIGKILL")


@dataclasses.dataclass
class Outcome:
    """What became of a job."""

    signal: int | None
    code: int | None
    error: dict | None
    result: dict
    warnings: list
    fired: list
    fds_before: int
    fds_after: int


class Faults:
    """Runs code in real processes whose file calls fail on demand."""

    def __init__(self, shim, marks):
        self._shim = shim
        self._marks = marks
        self._num_jobs = 0
        self._server = None
        self.num_kills = 0

    def run(self, code, rules="", where="", /, *, kill_after_s=None, **variables):
        """Run ``code`` in a process of its own.

        Args:
            code: Python text; see server.py for the names that it may use.
            rules: See shim.c.
            where: The files that the rules are about: part of their path.
            kill_after_s: Kill the process when so many seconds are over; None for never.
            variables: More names for the code; plain values.
        """
        self._start()
        self._num_jobs += 1
        mark = self._marks / f"{self._num_jobs}"
        job = {"code": code, "rules": rules, "path": str(where), "mark": str(mark)}
        job["kill_after_s"] = kill_after_s
        variables = {
            name: str(value) if isinstance(value, Path) else value
            for name, value in variables.items()
        }
        answer = self._ask({**job, "variables": variables})
        assert answer["code"] in (0, None), "the job could not be run"
        self.num_kills += answer["signal"] == signal.SIGKILL
        fired = mark.read_text().splitlines() if mark.exists() else []
        return Outcome(
            signal=answer["signal"],
            code=answer["code"],
            error=answer.get("error"),
            result=answer.get("result", {}),
            warnings=answer.get("warnings", []),
            fired=[line.split(" ", 3) for line in fired],
            fds_before=answer.get("fds_before", 0),
            fds_after=answer.get("fds_after", 0),
        )

    def calls(self, code, where, /, **variables):
        """Run ``code`` without faults, and list its calls on the files: (op, their path)."""
        outcome = self.run(code, "*:*:log", where, **variables)
        assert outcome.error is None, outcome.error
        return [(op, file) for op, _, _, file in outcome.fired]

    def prepare(self, code):
        """Run ``code`` in the process whose forks run the jobs: it must start no threads."""
        self._start()
        assert self._ask({"prepare": code}) == {"ready": True}

    def _ask(self, question):
        self._server.stdin.write(json.dumps(question) + "\n")
        self._server.stdin.flush()
        return json.loads(self._server.stdout.readline())

    def _start(self):
        if self._server is not None:
            return
        root = HERE.parent.parent
        environ = {
            **os.environ,
            "LD_PRELOAD": str(self._shim),
            "PYTHONPATH": str(root),
            "OMP_NUM_THREADS": "1",
        }
        self._server = subprocess.Popen(
            [sys.executable, str(HERE / "server.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environ,
        )
        assert json.loads(self._server.stdout.readline()) == {"ready": True}

    def close(self):
        if self._server is not None:
            self._server.stdin.close()
            self._server.wait()
            self._server.stdout.close()


@pytest.fixture(scope="session")
def faults(tmp_path_factory, pytestconfig):
    directory = tmp_path_factory.mktemp("shim")
    shim = directory / "shim.so"
    build = ["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([*build, "-o", shim, HERE / "shim.c"], check=True)
    made = Faults(shim, directory)
    yield made
    made.close()
    pytestconfig.stash[KILLS] = made.num_kills


@pytest.fixture(scope="session")
def crashes(faults, tmp_path_factory):
    """Trainings to be killed; not imported before it is needed, since torch is."""
    from crash_cases import Crashes

    return Crashes(faults, tmp_path_factory.mktemp("crashes"))
