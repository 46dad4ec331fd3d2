import errno
import threading

import pytest

from gdsckpt.engine import base
from gdsckpt.errors import StorageError
from gdsckpt.remote.crew import Crew, Work


def test_crew_runs_all_jobs_and_adds_up_their_progress(crew):
    work = Work(10)
    crew.start([lambda: work.advance(1)] * 10, work)
    seen = []
    base.wait(work, lambda done, total: seen.append((done, total)))
    assert seen[-1] == (10, 10)


def test_crew_without_jobs_has_ended():
    with Crew(1) as crew:
        work = crew.start([], Work())
        assert work.wait(0)
        work.result()


def test_crew_uses_no_more_threads_than_it_has():
    lock = threading.Lock()
    numbers = [0, 0]
    both = threading.Barrier(2)

    def job():
        with lock:
            numbers[0] += 1
            numbers[1] = max(numbers)
        both.wait(30)  # there are two at a time
        with lock:
            numbers[0] -= 1

    with Crew(2) as crew:
        base.wait(crew.start([job] * 20, Work()))
    assert numbers[1] == 2


def test_crew_first_failure_is_raised_and_drops_the_rest():
    ran = []

    def fail():
        raise ValueError("the first")

    with Crew(1) as crew:
        work = crew.start([fail, lambda: ran.append(1)], Work())
        with pytest.raises(ValueError, match="the first"):
            base.wait(work)
    assert ran == []


def test_crew_goes_on_after_a_failed_work():
    def fail():
        raise ValueError("no")

    with Crew(1) as crew:
        with pytest.raises(ValueError, match="no"):
            base.wait(crew.start([fail], Work()))
        base.wait(crew.start([lambda: None], Work()))


def test_work_cancelled_fails_with_ecanceled_and_breaks_off_what_is_under_way():
    begun, broken_off = threading.Event(), threading.Event()
    ran = []

    def job():
        begun.set()
        assert broken_off.wait(60)

    with Crew(1) as crew:
        work = Work(0, broken_off.set)
        crew.start([job, lambda: ran.append(1)], work)
        assert begun.wait(60)
        work.cancel()
        with pytest.raises(StorageError) as caught:
            work.result()
    assert caught.value.errno == errno.ECANCELED
    assert ran == []


def test_work_cancelled_breaks_off_again_what_began_to_wait_later():
    begun, cancelled, broken_off = threading.Event(), threading.Event(), threading.Event()

    def interrupt():  # the first one comes before the job waits for anything
        if cancelled.is_set():
            broken_off.set()

    def job():
        begun.set()
        assert cancelled.wait(60)
        assert broken_off.wait(60)

    with Crew(1) as crew:
        work = Work(0, interrupt)
        crew.start([job], work)
        assert begun.wait(60)
        work.cancel()
        cancelled.set()
        base.end(work)
    assert broken_off.is_set()


def test_work_that_is_alone_breaks_off_the_others_when_one_fails():
    begun, broken_off = threading.Event(), threading.Event()

    def waits():
        begun.set()
        assert broken_off.wait(60)

    def fails():
        assert begun.wait(60)
        raise ValueError("this one")

    with Crew(2) as crew:
        work = Work(0, broken_off.set, is_alone=True)
        crew.start([waits, fails], work)
        with pytest.raises(ValueError, match="this one"):
            base.wait(work)


def test_work_cancelled_after_its_end_is_done():
    with Crew(1) as crew:
        work = crew.start([lambda: None], Work())
        base.wait(work)
        work.cancel()
        work.result()


def test_crew_closed_drops_the_jobs_that_wait():
    begun, go_on = threading.Event(), threading.Event()

    def job():
        begun.set()
        assert go_on.wait(60)

    crew = Crew(1)
    crew.start([job], Work())
    assert begun.wait(60)
    waiting = crew.start([lambda: None], Work())
    crew.close()
    with pytest.raises(StorageError):
        waiting.result()
    go_on.set()
