"""Every signal is a real one: of this process, or, where it could end it, of a child."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from gdsckpt.checkpointer import preemption
from gdsckpt.checkpointer.preemption import PreemptionWatch, Request
from gdsckpt.errors import ConfigError

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def handlers():
    before = {number: signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGUSR2)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def looks_often(monkeypatch):
    monkeypatch.setattr(preemption, "FILE_INTERVAL_S", 0.0)


def watching(*signals, **settings):
    watch = PreemptionWatch(signals, **settings)
    watch.install()
    return watch


def run_child(code, *arguments):
    return subprocess.run(
        [sys.executable, "-c", "import os, signal, sys\n" + code, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_requested_without_a_signal_is_none():
    watch = watching(signal.SIGUSR1)
    assert watch.requested() is None
    assert watch.num_signals == 0


def test_requested_after_a_signal_names_it_and_when(caplog):
    watch = watching(signal.SIGUSR1, signal.SIGUSR2, grace_s=60.0)
    before = time.monotonic()
    os.kill(os.getpid(), signal.SIGUSR2)
    after = time.monotonic()
    request = watch.requested()
    assert request.reason == "signal SIGUSR2"
    assert before <= request.at <= after
    assert request.grace_s == 60.0
    assert "signal SIGUSR2" in caplog.text


def test_requested_again_is_the_same_request_and_logged_once(caplog):
    watch = watching(signal.SIGUSR1)
    signal.raise_signal(signal.SIGUSR1)
    first = watch.requested()
    signal.raise_signal(signal.SIGUSR1)
    assert watch.requested() is first
    assert watch.num_signals == 2
    assert len(caplog.records) == 1


def test_requested_in_another_thread_sees_the_signal():
    watch = watching(signal.SIGUSR1)
    found = []

    def ask():
        # Sent to this thread; Python runs the handler in the main one.
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
        while watch.requested() is None:
            pass
        found.append(watch.requested().reason)

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert found == ["signal SIGUSR1"]


def test_remaining_s_falls_from_the_grace_time_to_zero():
    now = time.monotonic()
    assert 0.0 < Request("signal SIGTERM", now, 1000.0).remaining_s() <= 1000.0
    assert Request("signal SIGTERM", now - 30.0, 30.0).remaining_s() == 0.0


def test_second_signal_inside_the_handler_counts_and_keeps_the_first_time():
    calls = []

    def previous(number, frame):
        calls.append(number)
        if len(calls) == 1:
            signal.raise_signal(number)  # its handler runs before this function goes on

    signal.signal(signal.SIGUSR1, previous)
    watch = watching(signal.SIGUSR1)
    before = time.monotonic()
    signal.raise_signal(signal.SIGUSR1)
    assert calls == [signal.SIGUSR1, signal.SIGUSR1]
    assert watch.num_signals == 2
    assert before <= watch.requested().at <= time.monotonic()


def test_previous_handler_that_raises_is_heard_after_the_signal_was_noted():
    def previous(number, frame):
        raise SystemExit(3)

    signal.signal(signal.SIGUSR1, previous)
    watch = watching(signal.SIGUSR1)
    with pytest.raises(SystemExit):
        signal.raise_signal(signal.SIGUSR1)
    assert watch.requested().reason == "signal SIGUSR1"


@pytest.mark.parametrize("previous", [signal.SIG_DFL, signal.SIG_IGN])
def test_uninstall_restores_a_handler_that_is_no_function(previous):
    signal.signal(signal.SIGUSR1, previous)
    watch = watching(signal.SIGUSR1)
    signal.raise_signal(signal.SIGUSR1)  # SIG_DFL would end this process
    watch.uninstall()
    assert signal.getsignal(signal.SIGUSR1) is previous
    assert watch.requested() is not None


def test_uninstall_keeps_a_handler_that_came_later():
    watch = watching(signal.SIGUSR1)

    def later(number, frame):
        pass

    signal.signal(signal.SIGUSR1, later)
    watch.uninstall()
    assert signal.getsignal(signal.SIGUSR1) is later


def test_uninstalled_watch_in_the_chain_of_a_later_handler_passes_the_signal_on():
    calls = []
    signal.signal(signal.SIGUSR1, lambda number, frame: calls.append(number))
    first = watching(signal.SIGUSR1)
    second = watching(signal.SIGUSR1)
    first.uninstall()
    signal.raise_signal(signal.SIGUSR1)
    assert calls == [signal.SIGUSR1]
    assert (first.num_signals, second.num_signals) == (0, 1)


def test_install_again_after_uninstall_inside_a_chain_notes_once():
    first = watching(signal.SIGUSR1)
    second = watching(signal.SIGUSR1)
    first.uninstall()
    first.install()
    signal.raise_signal(signal.SIGUSR1)
    assert (first.num_signals, second.num_signals) == (1, 1)


def test_install_twice_notes_once():
    watch = watching(signal.SIGUSR1)
    watch.install()
    signal.raise_signal(signal.SIGUSR1)
    assert watch.num_signals == 1
    watch.uninstall()
    watch.uninstall()
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL


def in_thread(function):
    caught = []

    def body():
        try:
            function()
        except ConfigError as error:
            caught.append(error)

    thread = threading.Thread(target=body, name="worker")
    thread.start()
    thread.join()
    return caught


def test_install_outside_the_main_thread_raises_and_says_to_watch_a_file():
    watch = PreemptionWatch((signal.SIGUSR1,))
    (error,) = in_thread(watch.install)
    assert error.field == "signals"
    assert "'worker'" in str(error)
    assert "file=" in str(error)
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL


def test_install_of_a_file_alone_works_in_any_thread(tmp_path, looks_often):
    watch = PreemptionWatch((), file=tmp_path / "end")
    assert in_thread(watch.install) == []
    (tmp_path / "end").touch()
    assert watch.requested().reason == f"file {tmp_path / 'end'}"


def test_uninstall_outside_the_main_thread_is_made_good_by_the_next_signal():
    calls = []
    signal.signal(signal.SIGUSR1, lambda number, frame: calls.append(number))
    watch = watching(signal.SIGUSR1)
    assert in_thread(watch.uninstall) == []
    signal.raise_signal(signal.SIGUSR1)
    assert calls == [signal.SIGUSR1]
    assert watch.requested() is None


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV, 0, 1000])
def test_watch_of_an_unusable_signal_raises(number):
    with pytest.raises(ConfigError) as caught:
        PreemptionWatch((number,))
    assert caught.value.field == "signals"


def test_watch_of_nothing_raises():
    with pytest.raises(ConfigError) as caught:
        PreemptionWatch(())
    assert caught.value.field == "signals"


@pytest.mark.parametrize("grace_s", [0.0, -1.0, float("nan"), float("inf")])
def test_watch_without_a_grace_time_raises(grace_s):
    with pytest.raises(ConfigError) as caught:
        PreemptionWatch(grace_s=grace_s)
    assert caught.value.field == "grace_s"


def test_file_that_appears_is_a_request_of_that_time(tmp_path, looks_often):
    path = tmp_path / "end"
    before = time.monotonic()
    watch = watching(file=path)
    assert watch.requested() is None
    path.touch()
    request = watch.requested()
    assert request.reason == f"file {path}"
    assert before <= request.at <= time.monotonic()


# Clocks of file servers are not ours: the file came after the last look, and before this one.
@pytest.mark.parametrize("mtime_s", [0, 2**33])
def test_file_with_a_time_of_another_clock_came_since_the_last_look(tmp_path, looks_often, mtime_s):
    path = tmp_path / "end"
    before = time.monotonic()
    watch = watching(file=path)
    path.touch()
    os.utime(path, (mtime_s, mtime_s))
    assert before <= watch.requested().at <= time.monotonic()


def test_file_is_not_looked_at_within_the_interval(tmp_path, monkeypatch):
    monkeypatch.setattr(preemption, "FILE_INTERVAL_S", 3600.0)
    watch = watching(file=tmp_path / "end")
    (tmp_path / "end").touch()
    assert watch.requested() is None
    monkeypatch.setattr(preemption, "FILE_INTERVAL_S", 0.0)
    assert watch.requested() is not None


@pytest.mark.parametrize("change", ["touch", "replace", "remove and make"])
def test_file_of_an_earlier_run_counts_once_it_changes(tmp_path, looks_often, caplog, change):
    path = tmp_path / "end"
    path.touch()
    os.utime(path, (1, 1))
    watch = watching(file=path)
    assert "earlier" in caplog.text
    assert watch.requested() is None
    if change == "touch":
        path.touch()
    elif change == "replace":
        other = tmp_path / "other"
        other.touch()
        os.utime(other, (1, 1))
        other.replace(path)
    else:
        path.unlink()
        assert watch.requested() is None
        path.touch()
        os.utime(path, (1, 1))
    assert watch.requested().reason == f"file {path}"


def test_file_that_cannot_be_looked_at_is_no_request_and_warned_of_once(
    tmp_path, looks_often, caplog
):
    (tmp_path / "loop").symlink_to("loop")
    watch = watching(file=tmp_path / "loop" / "end")
    assert watch.requested() is None
    assert watch.requested() is None
    assert len(caplog.records) == 1
    assert "symbolic links" in caplog.text


def test_file_below_a_file_or_nothing_is_no_request_and_no_warning(tmp_path, looks_often, caplog):
    (tmp_path / "plain").touch()
    for path in (tmp_path / "plain" / "end", tmp_path / "absent" / "end"):
        assert watching(file=path).requested() is None
    assert caplog.records == []


IN_SAVE = """
import threading, torch, gdsckpt
from gdsckpt.checkpointer.preemption import PreemptionWatch

path = sys.argv[1]
state = {"weights": torch.arange(1 << 22)}
watch = PreemptionWatch()
watch.install()
saved = threading.Event()

def pester():
    while not saved.wait(0.0005):
        os.kill(os.getpid(), signal.SIGTERM)

thread = threading.Thread(target=pester)
thread.start()
num_before = 0
while watch.num_signals - num_before < 2:  # both came while the save ran
    num_before = watch.num_signals
    gdsckpt.save(state, path)
saved.set()
thread.join()
assert torch.equal(gdsckpt.load(path)["weights"], state["weights"])
print(watch.requested().reason)
"""


def test_signals_in_mid_save_leave_it_whole(tmp_path):
    done = run_child(IN_SAVE, tmp_path / "state.pt")
    assert (done.returncode, done.stdout) == (0, "signal SIGTERM\n"), done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["state.pt"]


CTRL_C = """
# As in a shell's foreground: those in the background of a script ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)
from gdsckpt.checkpointer.preemption import PreemptionWatch

watch = PreemptionWatch((signal.SIGINT,))
watch.install()
for _ in range(3):
    signal.raise_signal(signal.SIGINT)
print(watch.requested().reason, watch.num_signals)
watch.uninstall()
try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_sigint_is_a_request_and_interrupts_again_after_uninstall():
    done = run_child(CTRL_C)
    assert (done.returncode, done.stdout) == (0, "signal SIGINT 3\ninterrupted\n"), done.stderr


FORK = """
from gdsckpt.checkpointer.preemption import PreemptionWatch

watch = PreemptionWatch((signal.SIGTERM, signal.SIGUSR1))
signal.signal(signal.SIGUSR1, lambda number, frame: os._exit(7))
watch.install()
for number in (signal.SIGTERM, signal.SIGUSR1):
    pid = os.fork()
    if pid == 0:
        os.kill(os.getpid(), number)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
print(watch.requested())
"""


def test_forked_child_does_with_the_signal_what_was_done_before():
    done = run_child(FORK)
    assert (done.returncode, done.stdout) == (0, "-15\n7\nNone\n"), done.stderr


GONE = """
from gdsckpt.checkpointer.preemption import PreemptionWatch

first, second = PreemptionWatch(), PreemptionWatch()
first.install()
second.install()
first.uninstall()
second.uninstall()  # puts the handler of the first back
os.kill(os.getpid(), signal.SIGTERM)
"""


def test_sigterm_ends_the_process_after_uninstall_in_any_order():
    done = run_child(GONE)
    assert (done.returncode, done.stderr) == (-signal.SIGTERM, "")


NOT_OF_PYTHON = """
from gdsckpt.checkpointer.preemption import PreemptionWatch
from gdsckpt.errors import ConfigError

assert signal.getsignal(signal.SIGUSR2) is None
try:
    PreemptionWatch((signal.SIGUSR1, signal.SIGUSR2)).install()
except ConfigError as error:
    print(error.field, signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL)
"""

HANDLER_IN_C = """
#include <signal.h>
static void nothing(int number) { (void)number; }
__attribute__((constructor)) static void set(void) { signal(SIGUSR2, nothing); }
"""


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc for a handler in C")
def test_install_over_a_handler_that_is_not_of_python_raises_and_changes_nothing(
    tmp_path, monkeypatch
):
    # Python looks at the handlers when it starts, so the library has to come before it.
    source = tmp_path / "handler.c"
    source.write_text(HANDLER_IN_C)
    library = tmp_path / "handler.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True)
    monkeypatch.setenv("LD_PRELOAD", str(library))
    done = run_child(NOT_OF_PYTHON)
    assert (done.returncode, done.stdout) == (0, "signals True\n"), done.stderr
