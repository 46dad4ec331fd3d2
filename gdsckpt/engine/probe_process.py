"""Runs what may hang or kill a process in a child of its own, for a limited time."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import gdsckpt

_ANSWER_MAX_BYTES = 1 << 20
_KILL_WAIT_S = 1.0
_LOOK_S = 0.1
_QUOTED_BYTES = 300

# -I: what is imported depends on no current directory or PYTHONPATH, so the package is named.
_START = """
import importlib.util, os, sys
spec = importlib.util.spec_from_file_location(
    "gdsckpt", sys.argv[1], submodule_search_locations=[os.path.dirname(sys.argv[1])]
)
package = sys.modules["gdsckpt"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(package)
from gdsckpt.engine import probe_worker
probe_worker.main(int(sys.argv[2]))
"""

# Children that not even SIGKILL ends, as the kernel waits for a device: their end is nobody's to
# wait for.
_stuck: list[subprocess.Popen[bytes]] = []


@dataclass(slots=True)
class Outcome:
    """How a child process came out.

    Attributes:
        facts: What it found out before its end, by name.
        doing: What it was about to do when it was last heard of; empty if it told nothing.
        failure: Why it came to no good end, a sentence without a full stop; empty if it did.
        mend: What the child said can be done about it.
        is_passing: Whether the failure may be gone a little later (no memory, no space).
        is_late: Whether it was the limit that ended it.
    """

    facts: dict[str, Any] = field(default_factory=dict)
    doing: str = ""
    failure: str = ""
    mend: str = ""
    is_passing: bool = False
    is_late: bool = False


def run(what: str, request: Mapping[str, Any], *, timeout_s: float) -> Outcome:
    """Have a child process do something dangerous.

    Whatever becomes of the child, this returns within about a second after the limit.

    Args:
        what: A function of ``probe_worker``.
        request: Its arguments, as values that JSON has.
        timeout_s: After this many seconds the child is killed, and all that it started.
    """
    package = Path(gdsckpt.__file__ or "")
    if not sys.executable or getattr(sys, "frozen", False) or not package.is_file():
        return Outcome(failure="this program brings no Python that could be started to try it out")
    with tempfile.TemporaryFile() as question, tempfile.TemporaryFile() as words:
        document = {"what": what, "limit_s": timeout_s, "arguments": dict(request)}
        question.write(json.dumps(document).encode())
        question.seek(0)
        reader, writer = os.pipe()
        try:
            command = [sys.executable, "-I", "-c", _START, str(package.resolve()), str(writer)]
            child = subprocess.Popen(  # noqa: SIM115 - ended in _finish, whatever comes
                command,
                stdin=question,
                stdout=subprocess.DEVNULL,
                stderr=words,
                pass_fds=(writer,),
                start_new_session=True,
            )
        except OSError as error:
            os.close(reader)
            os.close(writer)
            why = os.strerror(error.errno or 0)
            return Outcome(failure=f"no process could be started: {why}", is_passing=True)
        os.close(writer)
        return _finish(child, reader, words, timeout_s)


def _finish(
    child: subprocess.Popen[bytes], reader: int, words: IO[bytes], timeout_s: float
) -> Outcome:
    """Listen to a child until its end or the deadline, and see to it that it has ended."""
    deadline = time.monotonic() + timeout_s
    try:
        answer = _listen(child, reader, deadline)
        is_endless = len(answer) >= _ANSWER_MAX_BYTES
        status = _wait(child, 0 if is_endless else deadline - time.monotonic())
    finally:
        os.close(reader)
        has_ended = _end(child)
    outcome, has_finished = _understand(answer)
    if is_endless:
        outcome.failure = f"the process said more than {_ANSWER_MAX_BYTES} bytes"
    if outcome.failure:
        return outcome
    during = f" during {outcome.doing}" if outcome.doing else ""
    if status is None:
        stuck = "" if has_ended else ", and cannot be killed"
        outcome.failure = f"the process had not ended{during} after {timeout_s:g} s{stuck}"
        outcome.is_late = True
    elif status < 0:
        with contextlib.suppress(ValueError):  # a number without a name stays one
            during = f" ({signal.Signals(-status).name}){during}"
        outcome.failure = f"the process was killed by signal {-status}{during}{_quote(words)}"
    elif status > 0 or not has_finished:
        outcome.failure = f"the process ended with status {status}{during}{_quote(words)}"
    return outcome


def _listen(child: subprocess.Popen[bytes], reader: int, deadline: float) -> bytes:
    """Read until the other end is closed, the child has ended, or the deadline has come."""
    poll = select.poll()
    poll.register(reader, select.POLLIN)
    answer = bytearray()
    while len(answer) < _ANSWER_MAX_BYTES:
        has_ended = _has_ended(child)  # before the last look at what it said
        rest_s = min(_LOOK_S, deadline - time.monotonic())
        if rest_s <= 0:
            break
        if not poll.poll(0 if has_ended else max(1, int(rest_s * 1000))):
            if has_ended:  # others that it started hold the pipe open
                os.killpg(child.pid, signal.SIGKILL)
                break
            continue
        piece = os.read(reader, 1 << 16)
        if not piece:
            break
        answer += piece
    return bytes(answer)


def _has_ended(child: subprocess.Popen[bytes]) -> bool:
    """Look, and leave the status for later: until then nobody else can have the number."""
    options = os.WEXITED | os.WNOHANG | os.WNOWAIT
    try:
        return os.waitid(os.P_PID, child.pid, options) is not None
    except ChildProcessError:  # where SIGCHLD is ignored, nothing of it is left
        return False


def _wait(child: subprocess.Popen[bytes], timeout_s: float) -> int | None:
    try:
        return child.wait(max(0.0, timeout_s))
    except subprocess.TimeoutExpired:
        return None


def _end(child: subprocess.Popen[bytes]) -> bool:
    """Kill a child that runs, and all that it started; False if it does not end even then."""
    if child.poll() is not None:
        return True
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)  # the leader of a session of its own
    if _wait(child, _KILL_WAIT_S) is not None:
        return True
    _stuck.append(child)
    return False


def _understand(answer: bytes) -> tuple[Outcome, bool]:
    """Read what a child told, line by line; gives also whether it had finished its task.

    A last line without its end was cut off.
    """
    outcome = Outcome()
    has_finished = False
    for line in answer.split(b"\n")[:-1]:
        try:
            message = json.loads(line)
            outcome.facts.update(message.get("found", {}))
            outcome.doing = str(message.get("doing", outcome.doing))
            outcome.failure = str(message.get("failure", outcome.failure))
            outcome.mend = str(message.get("mend", outcome.mend))
            outcome.is_passing = bool(message.get("is_passing", outcome.is_passing))
            has_finished = has_finished or bool(message.get("finished", False))
        except (ValueError, AttributeError, TypeError):
            shown = line[:60].decode(errors="replace")
            outcome.failure = f"the process said what was not understood: {shown!r}"
            break
    return outcome, has_finished


def _quote(words: IO[bytes]) -> str:
    """Give the last line that a child wrote to stderr."""
    words.seek(0, os.SEEK_END)
    words.seek(max(0, words.tell() - 4096))
    lines = words.read().decode(errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f"; it said: {last[:_QUOTED_BYTES]}" if last else ""
