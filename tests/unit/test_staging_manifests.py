"""Readers of a directory hold its manifest; what saves do to it meanwhile is not kept off."""

import fcntl
import threading

import pytest
from root_cases import finish, save_step, shard_of, start

import gdsckpt
from gdsckpt.errors import CheckpointNotFoundError
from gdsckpt.staging import manifests, pruning


def is_locked(path):
    with (path / "manifest.json").open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_being_read_gives_the_manifest_and_locks_it_meanwhile(tmp_path):
    path = save_step(tmp_path, 7)
    with manifests.being_read(path) as raw:
        assert raw == (path / "manifest.json").read_bytes()
        assert is_locked(path)
    assert not is_locked(path)


def test_being_read_by_two_is_shared(tmp_path):
    path = save_step(tmp_path, 7)
    with manifests.being_read(path), manifests.being_read(path):
        assert is_locked(path)


def test_being_read_without_manifest_raises(tmp_path):
    with pytest.raises(CheckpointNotFoundError), manifests.being_read(tmp_path):
        pass


def test_being_read_while_it_is_pruned_finds_nothing(tmp_path):
    path = save_step(tmp_path, 7)
    found = []

    def read():
        try:
            with manifests.being_read(path) as raw:
                found.append(raw)
        except CheckpointNotFoundError as error:
            found.append(error)

    reader = threading.Thread(target=read)
    with pruning.kept_off(path):
        reader.start()
        while not is_waiting_for(path / "manifest.json"):
            pass
        pruning.take_off(tmp_path, path)
    reader.join()
    assert isinstance(found[0], CheckpointNotFoundError)


def test_being_read_while_it_is_replaced_gives_the_new_one(tmp_path):
    path = save_step(tmp_path, 7)
    found = []

    def read():
        with manifests.being_read(path) as raw:
            found.append(manifests.decode_manifest(path, raw).attempt)

    reader = threading.Thread(target=read)
    with (path / "manifest.json").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        reader.start()
        while not is_waiting_for(path / "manifest.json"):
            pass
        save_step(tmp_path, 7)
    reader.join()
    assert found == [manifests.read_manifest(path).attempt]


def is_waiting_for(path):
    """Tell whether somebody waits for a lock on a file (proc_locks(5): an arrow marks a waiter)."""
    inode = f":{path.stat().st_ino} "
    with open("/proc/locks") as table:  # noqa: PTH123
        return any(inode in line and " -> " in line for line in table)


FORKED = """
import os, sys
from gdsckpt.staging import manifests
with manifests.being_read(sys.argv[1]):
    if os.fork() == 0:
        os.write(1, b"forked\\n")  # in one piece, whatever the buffering
        sys.stdin.read()
        os._exit(0)
os.write(1, b"left\\n")
os.wait()
"""


def test_being_read_is_not_held_by_a_forked_child(tmp_path):
    path = save_step(tmp_path, 7)
    process = start(FORKED, path)
    assert {process.stdout.readline() for _ in range(2)} == {"forked\n", "left\n"}
    assert not is_locked(path)  # the child is alive until its input ends
    finish(process)


def load(path, told):
    gdsckpt.load(path, keys=lambda _: told() or True)


def verify(path, told):
    assert gdsckpt.verify(path, progress=lambda *_: told()).ok


def upload(path, told):
    gdsckpt.upload(path, "memory://kept/step-7", progress=lambda *_: told())


@pytest.mark.parametrize("read", [load, verify, upload])
def test_readers_keep_pruning_off(tmp_path, read):
    path = save_step(tmp_path, 7)
    pruned = []
    read(path, lambda: pruned.append(pruning.prune(tmp_path, path)))
    assert pruned
    assert not any(pruned)
    assert pruning.prune(tmp_path, path)


def test_load_of_a_missing_shard_raises_in_the_end(tmp_path):
    path = save_step(tmp_path, 7)
    shard_of(path).unlink()
    with pytest.raises(CheckpointNotFoundError):
        gdsckpt.load(path)
