"""Runs jobs in forked children of one process that has the shim of faults and torch loaded.

Reads one JSON object a line: ``code``, ``rules`` and ``path`` of the shim, ``mark``, ``variables``,
``kill_after_s`` (SIGKILL when so many seconds are over, or null). Writes one a line: ``signal``
that ended the child or null, and what the child reported. An object with ``prepare`` is code for
the server itself, such as imports that all later children need.
"""

import contextlib
import ctypes
import json
import os
import select
import signal
import sys
import tempfile
import traceback
import warnings
from pathlib import Path

import torch

import gdsckpt
from gdsckpt.errors import GdsckptError
from gdsckpt.staging import files

# Names that are loaded when first used, and modules that a first call would import: a job must
# meet its faults in the library, not in the importing of it.
LOADED = (
    gdsckpt.save,
    gdsckpt.save_checkpoint,
    gdsckpt.load,
    gdsckpt.verify,
    gdsckpt.upload,
    gdsckpt.fetch,
    files,
)


def value(n, numel=40_000):
    """Give a state that differs in every byte of its tensors from those of other numbers."""
    return {
        "n": n,
        "big": torch.full((numel,), n, dtype=torch.int32),
        "small": [torch.full((3,), n, dtype=torch.int16) for _ in range(5)],
        "half": torch.full((200_000,), n, dtype=torch.int32),
    }


def which(state):
    """Give the number of a whole state, or fail."""
    n = state["n"]
    for tensor in (state["big"], state["half"], *state["small"]):
        if not bool((tensor == n).all()):
            raise AssertionError(f"a mixture: {tensor} in state {n}")
    return n


def described(error):
    """Give an exception as JSON."""
    chain = [type(error).__name__]
    fields = error.fields if isinstance(error, GdsckptError) else {}
    return {
        "type": type(error).__name__,
        "is_gdsckpt": isinstance(error, GdsckptError),
        "text": str(error),
        "fields": json.loads(json.dumps(fields, default=str)),
        "notes": list(getattr(error, "__notes__", [])),
        "chain": chain,
        "trace": "".join(traceback.format_exception(error)),
    }


def num_fds():
    return len(list(Path("/proc/self/fd").iterdir()))


def num_threads():
    return len(list(Path("/proc/self/task").iterdir()))


def run(job, out):
    """Run a job, its faults armed, and write down what came of it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    shim = ctypes.CDLL(None)
    result = {}
    marked = False

    def arm(rules):
        """Arm the shim's rules from now on; for jobs that have none for their beginning."""
        nonlocal marked
        marked = True
        if shim.fault_arm(rules.encode(), job["path"].encode(), job["mark"].encode()) != 0:
            raise ValueError(f"the shim refused {rules!r}")

    scope = {
        "torch": torch,
        "gdsckpt": gdsckpt,
        "value": value,
        "which": which,
        "result": result,
        "num_fds": num_fds,
        "num_threads": num_threads,
        "os": os,
        "Path": Path,
        "described": described,
        "arm": arm,
        "disarm": shim.fault_disarm,
        **job.get("variables", {}),
    }
    report = {"error": None, "result": result, "warnings": []}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        code = compile(job["code"], "job", "exec")
        report["fds_before"] = num_fds()
        if job["rules"]:
            arm(job["rules"])
        try:
            exec(code, scope)
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            shim.fault_disarm()
            report["error"] = described(error)
            del error
        shim.fault_disarm()
    report["fds_after"] = num_fds() - marked
    report["warnings"] = [[w.category.__name__, str(w.message)] for w in caught]
    out.write(json.dumps(report, default=str))
    out.flush()


def say(answer):
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def kill_in_time(pid, seconds):
    """Kill a child when its time is over; with None it may take as long as it likes."""
    if seconds is None:
        return
    pidfd = os.pidfd_open(pid)
    select.select([pidfd], [], [], seconds)
    os.close(pidfd)
    os.kill(pid, signal.SIGKILL)  # of one that has ended, which was not waited for, harmless


def serve():
    """Serve until standard input ends."""
    say({"ready": True})
    for line in sys.stdin:
        job = json.loads(line)
        if "prepare" in job:
            exec(job["prepare"], {})
            say({"ready": True})
            continue
        with tempfile.TemporaryFile("w+") as out:
            pid = os.fork()
            if pid == 0:
                os.setpgid(0, 0)
                with contextlib.suppress(BaseException):
                    run(job, out)
                    os._exit(0)
                traceback.print_exc()
                os._exit(99)
            kill_in_time(pid, job.get("kill_after_s"))
            _, status = os.waitpid(pid, 0)
            out.seek(0)
            text = out.read()
        ended = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else None
        answer = json.loads(text) if text else {}
        say({"signal": ended, "code": code, **answer})


if __name__ == "__main__":
    serve()
