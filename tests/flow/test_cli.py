"""The command as users run it: a process with pipes, a terminal and signals."""

import contextlib
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import gdsckpt

COMMAND = [sys.executable, "-m", "gdsckpt.cli.main"]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("cli")


@pytest.fixture(scope="module")
def big(directory):
    path = directory / "big.pt"
    gdsckpt.save({"w": torch.zeros(64 << 20)}, path)  # 256 MiB
    return path


@pytest.fixture(scope="module")
def many(directory):
    path = directory / "many.pt"
    gdsckpt.save({f"layer.{n}.weight": torch.zeros(1) for n in range(5000)}, path)
    return path


def start(*arguments, **streams):
    return subprocess.Popen([*COMMAND, *map(str, arguments)], **streams)


def read_terminal(fd):
    """Read until the other side is closed."""
    parts = []
    with contextlib.suppress(OSError):  # how Linux reports the end: EIO
        while part := os.read(fd, 65536):
            parts.append(part)
    return b"".join(parts).decode()


@pytest.fixture
def terminal():
    controller, side = pty.openpty()
    yield controller, side
    os.close(controller)


def test_verify_on_a_terminal_shows_progress(terminal, big):
    controller, side = terminal
    environment = {**os.environ, "TERM": "xterm"}
    process = start("verify", big, stdout=subprocess.PIPE, stderr=side, env=environment)
    os.close(side)
    drawn = read_terminal(controller)
    out = process.communicate(timeout=100)[0].decode()
    assert process.returncode == 0
    assert out.startswith(f"{big}: ok, 269 MB")
    assert "\x1b" not in out
    frames = drawn.split("\r\x1b[2K")
    assert "100%" in frames[-2]
    assert "269 MB of 269 MB" in frames[-2]
    assert frames[-2].endswith(" left")
    assert frames[-1] == ""  # the line is empty again at the end
    assert all(len(frame) < 80 for frame in frames)


@pytest.mark.parametrize("term", ["dumb", None])
def test_verify_without_a_capable_terminal_draws_nothing(terminal, many, term):
    controller, side = terminal
    stderr = subprocess.PIPE if term is None else side
    environment = {**os.environ, "TERM": term or "xterm"}
    process = start("verify", many, stdout=subprocess.PIPE, stderr=stderr, env=environment)
    os.close(side)
    drawn = "" if term is None else read_terminal(controller)
    err = process.communicate(timeout=100)[1] or b""
    assert process.returncode == 0
    assert drawn == ""
    assert err == b""


def test_verify_interrupted_is_code_130(terminal, big):
    controller, side = terminal
    # The same file again and again: far more work than the signal needs to arrive.
    process = start(
        "verify",
        *[big] * 2000,
        stdout=subprocess.DEVNULL,
        stderr=side,
        env={**os.environ, "TERM": "xterm"},
    )
    os.close(side)
    assert os.read(controller, 1)  # the first sign of progress: it is at work
    process.send_signal(signal.SIGINT)
    drawn = read_terminal(controller)
    assert process.wait(timeout=100) == 130
    assert "gdsckpt: interrupted" in drawn
    assert "Traceback" not in drawn


def test_output_that_nobody_reads_is_quiet(many):
    process = start("inspect", many, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout.readline() == f"file        {many}\n".encode()
    process.stdout.close()
    err = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=100) == 141
    assert err == b""


def test_output_to_a_full_device_is_one_error_line(many):
    with Path("/dev/full").open("wb") as full:
        process = start("inspect", many, stdout=full, stderr=subprocess.PIPE)
        err = process.communicate(timeout=100)[1].decode()
    assert process.returncode == 4
    assert err.startswith("gdsckpt: error: ")
    assert "No space left on device" in err
    assert err.count("\n") == 1


def test_error_in_a_process_is_one_line(tmp_path):
    process = start("verify", tmp_path / "absent", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = process.communicate(timeout=100)
    assert process.returncode == 4
    assert out == b""
    assert err.startswith(b"gdsckpt: error: no checkpoint at ")
    assert err.count(b"\n") == 1


def test_output_in_an_ascii_locale_is_escaped(tmp_path):
    name = "mod\u00e8le.pt"
    gdsckpt.save({"w": torch.ones(1)}, tmp_path / name)
    environment = {**os.environ, "PYTHONIOENCODING": "ascii:strict"}
    process = start("ls", ".", stdout=subprocess.PIPE, cwd=tmp_path, env=environment)
    out = process.communicate(timeout=100)[0]
    assert process.returncode == 0
    assert b"mod\\xe8le.pt" in out
