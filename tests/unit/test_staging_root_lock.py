"""One trainer per root, with real processes."""

import json
import os
import shutil
import signal
import socket
import threading

import pytest
from root_cases import finish, start

from gdsckpt.errors import GdsckptError, RootLockedError
from gdsckpt.staging import root_lock
from gdsckpt.staging.root_lock import RootLock, holder_of

HOLD = """
import sys
from gdsckpt.staging.root_lock import RootLock
with RootLock.acquire(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""

TRY = """
import sys
from gdsckpt.errors import RootLockedError
from gdsckpt.staging.root_lock import RootLock
try:
    RootLock.acquire(sys.argv[1]).release()
except RootLockedError as error:
    print(error.holder)
else:
    print("free")
"""


def tried(path):
    """Say who another process finds to hold a root: ``free`` for nobody."""
    return finish(start(TRY, path)).strip()


@pytest.fixture
def place(tmp_path):
    return tmp_path / "root"


def test_acquire_makes_the_root(place):
    with RootLock.acquire(place) as lock:
        assert lock.root == place
        assert lock.is_exclusive
        assert (place / ".gdsckpt" / "lock").is_file()
    assert holder_of(place) is None


def test_acquire_makes_the_root_and_what_is_above_it(tmp_path):
    with RootLock.acquire(tmp_path / "a" / "b" / "root"):
        assert (tmp_path / "a" / "b" / "root" / ".gdsckpt" / "lock").is_file()


@pytest.mark.parametrize("name", ["file", "file/root", "file/a/root"])
def test_acquire_over_or_below_a_file_raises(tmp_path, name):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(GdsckptError) as caught:
        RootLock.acquire(tmp_path / name)
    assert caught.value.op == "mkdir"


def test_acquire_of_a_root_of_another_process_names_it(place):
    process = start(HOLD, place)
    assert process.stdout.readline() == "held\n"
    with pytest.raises(RootLockedError) as caught:
        RootLock.acquire(place)
    error = caught.value
    assert error.path == str(place)
    assert error.holder.startswith(f"process {process.pid} on {socket.gethostname()}, since 20")
    assert "-c" in error.holder
    assert error.holder in str(error)
    assert holder_of(place) == error.holder
    finish(process)
    assert holder_of(place) is None
    RootLock.acquire(place).release()


def test_acquire_twice_in_one_process_is_refused(place):
    with RootLock.acquire(place):
        for path in (place, place.parent / "." / place.name, link_to(place)):
            with pytest.raises(RootLockedError) as caught:
                RootLock.acquire(path)
            assert caught.value.holder == f"this process ({os.getpid()})"
            assert holder_of(path) == caught.value.holder
        # Neither attempt has dropped the lock, as closing a second descriptor would.
        assert tried(place).startswith(f"process {os.getpid()} ")
    assert tried(place) == "free"


def link_to(place):
    link = place.parent / "link"
    link.symlink_to(place)
    return link


def test_acquire_by_many_threads_is_given_to_one(place):
    barrier = threading.Barrier(8)
    locks, refused = [], []

    def acquire():
        barrier.wait()
        try:
            locks.append(RootLock.acquire(place))
        except RootLockedError as error:
            refused.append(error)

    threads = [threading.Thread(target=acquire) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(locks), len(refused)) == (1, 7)
    assert tried(place).startswith(f"process {os.getpid()} ")
    locks[0].release()


def test_release_twice_does_not_free_the_lock_of_the_next_one(place):
    first = RootLock.acquire(place)
    first.release()
    with RootLock.acquire(place):
        first.release()
        assert tried(place) != "free"


def test_acquire_of_two_roots_is_independent(tmp_path):
    with RootLock.acquire(tmp_path / "a"), RootLock.acquire(tmp_path / "b"):
        assert tried(tmp_path / "a") != "free"
    assert tried(tmp_path / "b") == "free"


WITH_WORKER = """
import os, sys
from gdsckpt.staging.root_lock import RootLock
lock = RootLock.acquire(sys.argv[1])
child = os.fork()
if child == 0:
    print(os.getpid(), flush=True)
    sys.stdin.read()  # a worker that is still there when the trainer is gone
    os._exit(0)
os.wait()
"""


def test_sigkilled_trainer_with_a_living_forked_worker_leaves_no_lock(place):
    process = start(WITH_WORKER, place)
    worker = int(process.stdout.readline())
    process.kill()
    assert process.wait() == -signal.SIGKILL
    os.kill(worker, 0)  # it lives
    with RootLock.acquire(place):
        assert holder_of(place) is not None
    process.stdin.close()
    process.stdout.close()


IN_CHILD = """
import os, sys
from gdsckpt.errors import RootLockedError
from gdsckpt.staging import root_lock
lock = root_lock.RootLock.acquire(sys.argv[1])
child = os.fork()
if child == 0:
    lock.release()
    try:
        root_lock.RootLock.acquire(sys.argv[1])
    except RootLockedError as error:
        print(error.holder.split(" on ")[0] == f"process {os.getppid()}", flush=True)
    os._exit(0)
os.wait()
print("held", flush=True)
sys.stdin.read()
lock.release()
print("released", flush=True)
sys.stdin.read()
"""


def test_forked_child_neither_holds_nor_releases_the_lock(place):
    process = start(IN_CHILD, place)
    assert process.stdout.readline() == "True\n"
    assert process.stdout.readline() == "held\n"
    assert tried(place).startswith(f"process {process.pid} ")
    finish(process)


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"pid": 1}', "\0" * 5000])
def test_acquire_with_a_lock_file_that_says_nothing_names_the_process(place, text):
    process = start(HOLD, place)
    process.stdout.readline()
    (place / ".gdsckpt" / "lock").write_text(text)
    with pytest.raises(RootLockedError) as caught:
        RootLock.acquire(place)
    assert caught.value.holder == f"process {process.pid}"
    finish(process)


def test_acquire_with_a_lock_file_of_another_namespace_tells_both(place):
    process = start(HOLD, place)
    process.stdout.readline()
    holder = {"pid": 7, "host": "node", "since": "then", "command": "train.py"}
    (place / ".gdsckpt" / "lock").write_text(json.dumps(holder))
    with pytest.raises(RootLockedError) as caught:
        RootLock.acquire(place)
    assert caught.value.holder == (
        f"process {process.pid}, by its own account process 7 on node, since then (train.py)"
    )
    finish(process)


def test_acquire_does_not_follow_a_link_in_the_place_of_the_lock_file(place):
    (place / ".gdsckpt").mkdir(parents=True)
    victim = place / "victim"
    victim.write_text("precious")
    (place / ".gdsckpt" / "lock").symlink_to(victim)
    with pytest.raises(GdsckptError):
        RootLock.acquire(place)
    assert victim.read_text() == "precious"


def test_root_locked_error_leaves_no_descriptor(place):
    process = start(HOLD, place)
    process.stdout.readline()
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for _ in range(3):
        with pytest.raises(RootLockedError):
            RootLock.acquire(place)
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
    assert root_lock._held == {}
    finish(process)


def test_renew_of_a_root_that_was_made_anew_keeps_others_out(place):
    with RootLock.acquire(place) as lock:
        lock.renew()
        shutil.rmtree(place)
        place.mkdir()
        lock.renew()
        assert tried(place).startswith(f"process {os.getpid()} ")
    assert tried(place) == "free"


def test_renew_of_a_root_that_another_trainer_took_names_it(place):
    with RootLock.acquire(place) as lock:
        shutil.rmtree(place)
        process = start(HOLD, place)
        assert process.stdout.readline() == "held\n"
        with pytest.raises(RootLockedError, match=f"process {process.pid} "):
            lock.renew()
        finish(process)
