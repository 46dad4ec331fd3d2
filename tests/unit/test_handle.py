import concurrent.futures
import sys
import threading

import pytest

from gdsckpt.errors import ConfigError, StorageError
from gdsckpt.handle import SaveHandle


def test_stages_are_pending_until_they_are_reached():
    handle = SaveHandle(3, has_store=True)
    stages = (handle.staged, handle.committed, handle.uploaded)
    assert not any(stage.done() for stage in stages)
    handle.reach_staged()
    handle.reach_staged()  # by the check of the bytes, and again by the commit
    assert handle.staged.result() is None
    assert not handle.committed.done()


def test_commit_implies_that_the_state_was_read():
    handle = SaveHandle(3, has_store=True)
    handle.reach_committed("report")
    assert handle.staged.result() is None
    assert handle.report == handle.committed.result() == "report"
    assert not handle.has_ended
    handle.reach_uploaded("sent")
    assert handle.uploaded.result() == "sent"
    assert handle.has_ended


def test_failure_goes_to_the_stages_that_were_not_reached():
    handle = SaveHandle(3, has_store=True)
    handle.reach_staged()
    error = StorageError("x", errno=28)
    handle.fail(error)
    assert handle.staged.result() is None
    assert handle.committed.exception() is error
    with pytest.raises(StorageError):
        handle.uploaded.result()
    assert handle.report is None


def test_failed_upload_leaves_the_commit():
    handle = SaveHandle(3, has_store=True)
    handle.reach_committed("report")
    handle.fail(StorageError("x"))
    assert handle.report == "report"
    assert handle.failure is not None


@pytest.mark.parametrize("stage", ["staged", "committed", "uploaded"])
@pytest.mark.parametrize("ask", ["result", "exception"])
def test_failure_is_received_by_whoever_asks_any_stage(stage, ask):
    handle = SaveHandle(3, has_store=True)
    handle.fail(StorageError("x"))
    assert not handle.is_received
    if ask == "result":
        with pytest.raises(StorageError):
            getattr(handle, stage).result()
    else:
        getattr(handle, stage).exception()
    assert handle.is_received


def test_looking_does_not_receive():
    handle = SaveHandle(3, has_store=True)
    handle.fail(StorageError("x"))
    assert handle.committed.done()
    assert repr(handle) == "<SaveHandle step=3 failed>"
    assert handle.report is None
    assert handle.has_ended
    concurrent.futures.wait([handle.committed], timeout=0)
    assert not handle.is_received


def test_timeout_does_not_receive():
    handle = SaveHandle(3, has_store=True)
    with pytest.raises(TimeoutError):
        handle.committed.result(timeout=0)
    handle.fail(StorageError("x"))
    assert not handle.is_received


def test_without_a_store_the_upload_fails_and_is_no_failure():
    handle = SaveHandle(3, has_store=False)
    with pytest.raises(ConfigError) as caught:
        handle.uploaded.result()
    assert caught.value.field == "store"
    assert handle.failure is None
    handle.fail(StorageError("x"))
    assert not handle.is_received


def test_waiter_in_another_thread_gets_the_result():
    handle = SaveHandle(3, has_store=False)
    found = []
    waiter = threading.Thread(target=lambda: found.append(handle.committed.result()))
    waiter.start()
    handle.reach_committed("report")
    waiter.join()
    assert found == ["report"]


def test_futures_work_with_the_standard_library():
    handle = SaveHandle(3, has_store=False)
    called = []
    handle.staged.add_done_callback(called.append)
    handle.reach_committed("report")
    assert called == [handle.staged]
    assert list(concurrent.futures.as_completed([handle.committed])) == [handle.committed]
    assert not handle.committed.cancel()


def test_callback_that_exits_ends_nothing_and_is_logged(caplog):
    handle = SaveHandle(7, has_store=True)
    handle.staged.add_done_callback(lambda _: sys.exit(3))
    handle.reach_staged()
    assert handle.staged.result() is None
    assert "SystemExit" in caplog.text
