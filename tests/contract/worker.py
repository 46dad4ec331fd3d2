"""The process of a lane: runs test functions in forked children; see conftest.py.

Reads one JSON object a line: ``path`` and ``function`` of the test, its ``arguments`` and
``directory``. Writes one a line: ``failure``, the text of what went wrong, empty if nothing did;
and ``skipped``, the reason, empty if it was not.
"""

import atexit
import contextlib
import faulthandler
import functools
import gc
import importlib.util
import inspect
import json
import os
import signal
import sys
import tempfile
import traceback
import warnings
from pathlib import Path

import lanes
import pytest

SKIPPED = "skipped: "
LIMIT_S = 120
"""A test that takes longer hangs: its stacks are the failure."""


@functools.cache
def module_of(path):
    """Load a test module, once for all its tests."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def run(job, lane_name, out):
    """Run a test; what goes wrong is written down."""
    faulthandler.enable(out)
    faulthandler.dump_traceback_later(LIMIT_S, exit=True, file=out)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    function = getattr(module_of(job["path"]), job["function"])
    arguments = dict(job["arguments"])
    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".* in the place of the system's")
        # A torch built for CUDA finds a stand-in too, and misses functions that only it needs.
        warnings.filterwarnings("ignore", message="CUDA initialization: Unexpected error")
        lane = stack.enter_context(lanes.open_lane(lane_name, Path(job["directory"])))
        parameters = inspect.signature(function).parameters
        if "tmp_path" in parameters:
            arguments["tmp_path"] = Path(job["directory"])
        function(lane=lane, **arguments)
        lane.close()
        gc.collect()  # errors that a test has caught hold frames, and these hold transfers
        atexit._run_exitfuncs()  # closes what the library itself has open, as the interpreter would
        if not getattr(function, "may_leave", False):
            lane.require_nothing_left()


def run_child(job, lane_name, out):
    try:
        run(job, lane_name, out)
    except pytest.skip.Exception as skipped:
        out.write(f"{SKIPPED}{skipped}")
    except BaseException:  # noqa: BLE001 - it is the test's failure
        out.write(traceback.format_exc())
    out.flush()
    # Not the whole exit: the test's engines are closed by the lane, and what else there is belongs
    # to the server.
    os._exit(0)


def ending(status):
    """Say what ended a child, if it was no end of its own."""
    if os.WIFSIGNALED(status):
        return f"the process of the test was killed by {signal.Signals(os.WTERMSIG(status)).name}\n"
    code = os.WEXITSTATUS(status)
    return f"the process of the test ended with {code}\n" if code != 0 else ""


def serve(lane_name, answers):
    """Serve until standard input ends."""
    for line in sys.stdin:
        job = json.loads(line)
        module_of(job["path"])
        with tempfile.TemporaryFile("w+") as out:
            pid = os.fork()
            if pid == 0:
                run_child(job, lane_name, out)
            _, status = os.waitpid(pid, 0)
            out.seek(0)
            text = ending(status) + out.read()
        is_skipped = text.startswith(SKIPPED)
        answer = {
            "failure": "" if is_skipped else text,
            "skipped": text.removeprefix(SKIPPED) if is_skipped else "",
        }
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    # Whatever a test prints is not to be taken for an answer.
    to_parent = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    serve(sys.argv[1], to_parent)
