"""A Checkpointer that is interrupted, forgotten, robbed of its root, or kept waiting by a drive."""

import gc
import os
import shutil
import signal
import threading

import pytest
import torch
from checkpoint_cases import held_up, number_of, state

from gdsckpt import Checkpointer
from gdsckpt.errors import ConfigError, RootLockedError, StorageError, TornSnapshotError
from gdsckpt.staging.content import ShardContent
from gdsckpt.staging.root_lock import RootLock


@pytest.fixture
def root(tmp_path):
    return tmp_path / "run"


def test_interrupt_as_the_save_begins_lets_the_optimizer_step(root, monkeypatch):
    start, refused = threading.Thread.start, []

    def interrupt(self):
        if refused:
            return start(self)
        refused.append(self)
        raise KeyboardInterrupt

    parameter = torch.nn.Parameter(torch.ones(1000))
    parameter.grad = torch.ones(1000)
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    with Checkpointer(root) as checkpointer:
        monkeypatch.setattr(threading.Thread, "start", interrupt)
        with pytest.raises(KeyboardInterrupt) as kept:  # as a notebook keeps it
            checkpointer.async_save(1, {"p": parameter}, optimizer)
        optimizer.step()
        checkpointer.save(2, {"p": parameter})
        assert checkpointer.steps() in ([1, 2], [2])
        del kept


def test_close_that_is_interrupted_at_its_end_can_be_called_again(root, monkeypatch):
    before = signal.getsignal(signal.SIGUSR1)
    checkpointer = Checkpointer(root)
    checkpointer.watch_preemption([signal.SIGUSR1])

    def interrupt(fd, length):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "ftruncate", interrupt)
        with pytest.raises(KeyboardInterrupt):
            checkpointer.close()
    checkpointer.close()
    assert signal.getsignal(signal.SIGUSR1) is before
    Checkpointer(root).close()


def torn_save(checkpointer):
    """Start a save that will fail, since what it reads is changed."""
    parameter = torch.nn.Parameter(torch.ones(1000))
    handle = checkpointer.async_save(1, {"p": parameter}, torch.optim.SGD([parameter], lr=1.0))
    parameter.data += 1
    return handle


@pytest.mark.parametrize("is_torn", [False, True])
def test_failed_save_lets_go_of_its_state(root, is_torn):
    checkpointer = Checkpointer(root)
    if is_torn:
        with held_up(root, 1):
            handle = torn_save(checkpointer)
    else:
        (root / "step-00000001").touch()
        handle = checkpointer.async_save(1, state(1))
    error = handle.committed.exception()
    checkpointer.wait()
    gc.collect()
    assert isinstance(error, TornSnapshotError if is_torn else StorageError)
    assert not [each for each in gc.get_objects() if type(each) is ShardContent]
    checkpointer.close()


@pytest.mark.parametrize("in_flight", [False, True])
def test_forgotten_checkpointer_gives_the_root_and_its_signals_back(root, in_flight):
    before = signal.getsignal(signal.SIGUSR1)
    checkpointer = Checkpointer(root)
    checkpointer.watch_preemption([signal.SIGUSR1])
    handle = checkpointer.async_save(1, state(1))
    if in_flight:
        with held_up(root, 2):
            checkpointer.async_save(2, state(2))
            del checkpointer
            with pytest.raises(RootLockedError):
                Checkpointer(root)
        for thread in threading.enumerate():
            if thread is not threading.current_thread() and thread.name == "gdsckpt-save":
                thread.join()
    else:
        checkpointer.wait()
        del checkpointer
    assert handle.is_committed
    assert signal.getsignal(signal.SIGUSR1) is before
    with Checkpointer(root) as again:
        assert number_of(again.load()) == (2 if in_flight else 1)


def test_failure_of_a_forgotten_checkpointer_is_logged(root, caplog):
    checkpointer = Checkpointer(root)
    with held_up(root, 1):
        handle = torn_save(checkpointer)
        del checkpointer
    for thread in threading.enumerate():
        if thread.name == "gdsckpt-save":
            thread.join()
    assert "a save failed, and nobody asked for it" in caplog.text
    assert handle.failure is not None


def test_root_that_was_made_anew_is_locked_again(root):
    with Checkpointer(root) as checkpointer:
        checkpointer.save(1, state(1))
        shutil.rmtree(root)
        root.mkdir()
        checkpointer.save(2, state(2))
        with pytest.raises(RootLockedError):
            RootLock.acquire(root)
        assert checkpointer.steps() == [2]


def test_step_that_cannot_be_listed_is_refused(root):
    with Checkpointer(root) as checkpointer:
        checkpointer.save(10**64 - 1, state(1))
        assert checkpointer.latest() == 10**64 - 1
        with pytest.raises(ConfigError) as caught:
            checkpointer.save(10**64, state(2))
        assert caught.value.field == "step"


@pytest.mark.parametrize("metric", ["0.5", torch.ones(2), 10**400, 1j], ids=range(4))
def test_metric_that_is_no_number_is_refused(root, metric):
    with Checkpointer(root) as checkpointer:
        with pytest.raises(ConfigError) as caught:
            checkpointer.async_save(1, state(1), metric=metric)
        assert caught.value.field == "metric"


def test_callback_that_waits_for_its_own_save_is_refused(root):
    refused = []
    with Checkpointer(root) as checkpointer:

        def wait(_):
            with pytest.raises(ConfigError) as caught:
                checkpointer.save(2, state(2))
            refused.append(caught.value.field)

        with held_up(root, 1):
            checkpointer.async_save(1, state(1)).committed.add_done_callback(wait)
        checkpointer.wait()
        assert refused == ["handle"]
        assert checkpointer.steps() == [1]


def announce(checkpointer, grace_s):
    checkpointer.watch_preemption([signal.SIGUSR1], grace_s=grace_s)
    signal.raise_signal(signal.SIGUSR1)


def test_preemption_does_not_wait_for_a_drive_that_hangs(root):
    with Checkpointer(root) as checkpointer:
        announce(checkpointer, grace_s=0.8)
        with held_up(root, 1):
            ended = checkpointer.step(1, state(1))
        assert (ended.step, ended.is_uploaded) == (None, False)
        assert "save of step 1 hangs" in ended.failures[0]


def test_preemption_whose_save_cannot_begin_reports_why(root):
    with Checkpointer(root) as checkpointer:
        announce(checkpointer, grace_s=30)
        ended = checkpointer.step(1, {"f": (n for n in ())})
        assert ended.step is None
        assert "f (generator)" in ended.failures[0]
