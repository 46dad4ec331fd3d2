import os
import select
import subprocess
import sys
import time

import pytest

import gdsckpt
from gdsckpt.engine import probe_process

NO_CUFILE = {"candidates": ["/there/is/no/libcufile.so.0"]}


@pytest.fixture
def library(tmp_path):
    """Build a library that does something when it is loaded."""

    def build(body):
        source = tmp_path / "library.c"
        source.write_text(
            "#include <signal.h>\n#include <stdlib.h>\n#include <stdio.h>\n#include <unistd.h>\n"
            "#include <sys/stat.h>\n"
            "static int is_pipe(int fd) {\n"
            "  struct stat s; return fstat(fd, &s) == 0 && S_ISFIFO(s.st_mode); }\n"
            f"__attribute__((constructor)) static void run(void) {{ {body} }}\n"
        )
        target = tmp_path / "library.so"
        subprocess.run(
            ["g++", "-x", "c", "-shared", "-fPIC", "-o", target, source],
            check=True,
            capture_output=True,
        )
        return str(target)

    return build


def wait_for_end(pid):
    """Wait until a process that is not ours, but was killed, is gone."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    assert select.select([fd], [], [], 60)[0]
    os.close(fd)


def look(libcuda, timeout_s=30.0):
    return probe_process.run("look", {"libcuda": libcuda, **NO_CUFILE}, timeout_s=timeout_s)


def test_child_that_ends_well_tells_what_it_found():
    outcome = look("/there/is/no/libcuda.so.1")
    assert outcome.failure == ""
    assert outcome.facts["cuda_missing"].startswith("no CUDA driver: ")
    assert outcome.facts["cufile_missing"].startswith("no cuFile: ")


@pytest.mark.parametrize("body", ["for (;;) {}", "for (;;) pause();"])
def test_child_that_spins_or_hangs_is_killed_at_its_limit(library, body):
    started = time.monotonic()
    outcome = look(library(body), timeout_s=3.0)
    assert outcome.failure == "the process had not ended during cuInit after 3 s"
    assert outcome.is_late
    assert time.monotonic() - started < 30


def test_child_that_cannot_be_interrupted_is_killed_too(library):
    ignore = "for (int s = 1; s < 32; ++s) signal(s, SIG_IGN); for (;;) pause();"
    assert look(library(ignore), timeout_s=3.0).is_late


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("abort();", "killed by signal 6 (SIGABRT) during cuInit"),
        ("*(volatile int*)8 = 1;", "killed by signal 11 (SIGSEGV) during cuInit"),
        ('fputs("no such device\\n\\n", stderr); _exit(3);', "status 3 during cuInit; it said: no"),
        ("_exit(0);", "ended with status 0 during cuInit"),
    ],
)
def test_child_that_dies_says_where(library, body, said):
    outcome = look(library(body))
    assert said in outcome.failure
    assert not outcome.is_late


@pytest.mark.parametrize("words", ["rubbish", "[1]", '{\\"found\\": 3}'])
def test_rubbish_in_the_answer_is_a_failure(library, words):
    write = f'for (int fd = 3; fd < 1024; ++fd) if (is_pipe(fd)) dprintf(fd, "{words}\\n");'
    outcome = look(library(write))
    assert outcome.failure.startswith("the process said what was not understood: ")


def test_answer_without_end_is_a_failure(library):
    write = "char b[4096] = {0}; for (;;) for (int fd = 3; fd < 1024; ++fd) if (is_pipe(fd))"
    outcome = look(library(f"{write} if (write(fd, b, 4096) < 0) pause();"), timeout_s=600.0)
    assert "said more than" in outcome.failure


def test_line_that_was_cut_off_is_left_out(library):
    write = 'for (int fd = 3; fd < 1024; ++fd) if (is_pipe(fd)) dprintf(fd, "{\\"doi");'
    assert look(library(f"{write} _exit(1);")).failure == (
        "the process ended with status 1 during cuInit"
    )


def test_what_a_child_leaves_behind_is_killed_and_not_waited_for(library, tmp_path):
    pid_file = tmp_path / "pid"
    body = (
        f'pid_t p = fork(); if (p == 0) for (;;) pause(); FILE* f = fopen("{pid_file}", "w");'
        'fprintf(f, "%d", p); fclose(f); abort();'
    )
    started = time.monotonic()
    outcome = look(library(body), timeout_s=60.0)
    assert time.monotonic() - started < 30
    assert "SIGABRT" in outcome.failure
    wait_for_end(int(pid_file.read_text()))


def test_program_without_python_is_told(monkeypatch):
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    assert "no Python" in look("").failure


def test_python_that_cannot_be_started_is_told(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/there/is/no/python")
    outcome = look("")
    assert outcome.failure == "no process could be started: No such file or directory"
    assert outcome.is_passing


def test_child_imports_this_package_and_nothing_of_the_current_directory(tmp_path, monkeypatch):
    for name in ("gdsckpt", "json"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(9)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert look("/there/is/no/libcuda.so.1").failure == ""
    assert gdsckpt.__file__


def test_interrupt_leaves_no_child(library, tmp_path):
    body = f'FILE* f = fopen("{tmp_path}/pid", "w"); fprintf(f, "%d", getpid()); fclose(f);'
    body += "kill(getppid(), SIGINT); for (;;) pause();"
    with pytest.raises(KeyboardInterrupt):
        look(library(body), timeout_s=60.0)
    wait_for_end(int((tmp_path / "pid").read_text()))
