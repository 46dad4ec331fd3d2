import threading

from gdsckpt.checkpointer.background import Lane


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
