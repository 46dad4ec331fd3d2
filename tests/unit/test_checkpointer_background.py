import linecache
import sys
import threading

import pytest

from gdsckpt.checkpointer import background
from gdsckpt.checkpointer.background import Lane
from gdsckpt.errors import ConfigError


def test_jobs_run_in_order_and_off_the_callers_thread():
    lane, ran = Lane("test-lane"), []
    for n in range(50):
        lane.submit(lambda n=n: ran.append((n, threading.current_thread().name)))
    lane.wait()
    assert ran == [(n, "test-lane") for n in range(50)]


def test_no_thread_stays_and_a_new_one_comes():
    lane, ran = Lane("test-lane"), []
    for _ in range(3):
        lane.submit(lambda: ran.append(threading.current_thread()))
        lane.wait()
    for thread in ran:
        thread.join()
    assert len(set(ran)) == 3


def test_wait_covers_jobs_that_jobs_submit():
    lane, ran = Lane("test-lane"), []
    lane.submit(lambda: lane.submit(lambda: ran.append(1)))
    lane.wait()
    assert ran == [1]


def test_wait_without_jobs_returns():
    Lane("test-lane").wait()


def test_job_that_fails_is_logged_and_keeps_nobody_waiting(caplog):
    lane, ran = Lane("test-lane"), []
    lane.submit(lambda: 1 / 0)
    lane.submit(lambda: ran.append(1))
    lane.wait()
    assert ran == [1]
    assert "a job of test-lane failed" in caplog.text


def test_where_no_thread_can_start_the_caller_runs_the_job(monkeypatch):
    def refuse(self):
        raise RuntimeError("can't create new thread at interpreter shutdown")

    lane, ran = Lane("test-lane"), []
    monkeypatch.setattr(threading.Thread, "start", refuse)
    lane.submit(lambda: ran.append(threading.current_thread()))
    lane.wait()
    assert ran == [threading.current_thread()]


def interrupted_at(line, work):
    """Run some work with Ctrl-C at the n-th line of it that is of a lane; gives whether it came."""
    left = line

    def count(frame, event, _arg):
        nonlocal left
        if event == "line" and not source_of(frame).startswith("with "):  # would not be released
            left -= 1
            if left == 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return count

    def enter(frame, _event, _arg):
        return count if frame.f_code.co_filename == background.__file__ else None

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        work()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def source_of(frame):
    return linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()


def test_interrupt_at_any_line_of_submit_keeps_nobody_waiting():
    lane, ran = Lane("test-lane"), []
    line, was_interrupted = 0, True
    while was_interrupted:
        line += 1
        was_interrupted = interrupted_at(line, lambda: lane.submit(lambda: ran.append(1)))
        lane.submit(lambda: ran.append(2))
        lane.wait()
        assert ran in ([1, 2], [2]), line
        ran.clear()
    assert line > 4


def test_job_that_waits_for_its_own_lane_is_refused():
    lane, refused = Lane("test-lane"), []

    def wait():
        with pytest.raises(ConfigError) as caught:
            lane.wait()
        refused.append(caught.value.field)

    lane.submit(wait)
    lane.wait()
    assert refused == ["handle"]
