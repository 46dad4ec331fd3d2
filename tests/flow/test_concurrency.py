"""Several processes and threads on one path, forks, files that change while they are read."""

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path

import crafting
import pytest
import torch

import gdsckpt
from gdsckpt.errors import GdsckptError
from gdsckpt.staging import files
from gdsckpt.staging.files import leftovers

ROOT = Path(__file__).parent.parent.parent
MiB = 1 << 20


def value(n, numel=50_000):
    return {"n": n, "a": torch.full((numel,), n), "b": [torch.full((7,), n) for _ in range(3)]}


def which(state):
    """Give the number of a whole state, or fail."""
    n = state["n"]
    assert all(bool((tensor == n).all()) for tensor in (state["a"], *state["b"])), n
    return n


PRELUDE = """
import os, signal, sys, threading, torch, gdsckpt
sys.path.insert(0, os.environ["TESTS"])
from test_concurrency import value, which
"""


def start(code, *arguments, **options):
    environ = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "TESTS": str(Path(__file__).parent),
        "OMP_NUM_THREADS": "1",
        "MALLOC_ARENA_MAX": "1",  # an arena per thread is address space that no one uses
    }
    return subprocess.Popen(
        [sys.executable, "-c", PRELUDE + code, *map(str, arguments)],
        env=environ,
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
        **options,
    )


def finish(process):
    out, _ = process.communicate()
    assert process.returncode == 0, out
    return out


MANY_SAVES = """
path, first, call = sys.argv[1], int(sys.argv[2]), sys.argv[3]
sys.stdout.write("ready\\n"); sys.stdout.flush(); sys.stdin.readline()
for n in range(first, first + 15):
    if call == "save":
        gdsckpt.save(value(n), path)
    else:
        gdsckpt.save_checkpoint(value(n), path, step=n)
"""

MANY_LOADS = """
path = sys.argv[1]
sys.stdout.write("ready\\n"); sys.stdout.flush(); sys.stdin.readline()
for n in range(40):
    which(gdsckpt.load(path))
    assert gdsckpt.verify(path).ok is True
"""


@pytest.mark.parametrize("call", ["save", "save_checkpoint"])
def test_processes_that_save_to_one_path_leave_one_whole_state(tmp_path, call):
    path = tmp_path / "a"
    processes = [start(MANY_SAVES, path, first, call) for first in (100, 200)]
    processes.append(start(MANY_LOADS, path))
    if call == "save":
        gdsckpt.save(value(1), path)
    else:
        gdsckpt.save_checkpoint(value(1), path, step=1)
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        finish(process)
    assert which(gdsckpt.load(path)) in (114, 214)
    assert [*tmp_path.iterdir()] == [path]
    if call == "save_checkpoint":
        manifest = json.loads((path / "manifest.json").read_text())
        assert manifest["step"] == which(gdsckpt.load(path))
        assert sorted(p.name for p in path.iterdir()) == [
            "manifest.json",
            manifest["shards"][0]["name"],
        ]


def in_threads(*calls):
    failed = []

    def run(call):
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - told to the test
            failed.append(error)

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


def test_threads_that_save_to_one_path_leave_one_whole_state(tmp_path):
    path = tmp_path / "a.pt"
    gdsckpt.save(value(1), path)

    def save(first):
        for n in range(first, first + 15):
            gdsckpt.save(value(n), path)

    def load():
        for _ in range(30):
            which(gdsckpt.load(path))

    in_threads(lambda: save(100), lambda: save(200), lambda: save(300), load, load)
    assert which(gdsckpt.load(path)) in (114, 214, 314)
    assert [*tmp_path.iterdir()] == [path]
    assert gdsckpt.verify(path).ok is True


def test_threads_that_save_to_different_paths_do_not_mix(tmp_path):
    def save(number):
        for n in range(10):
            gdsckpt.save(value(number * 100 + n), tmp_path / f"{number}.pt")
            gdsckpt.save_checkpoint(value(number * 100 + n), tmp_path / f"{number}", step=n)

    in_threads(*(lambda number=number: save(number) for number in range(5)))
    for number in range(5):
        assert which(gdsckpt.load(tmp_path / f"{number}.pt")) == number * 100 + 9
        assert which(gdsckpt.load(tmp_path / f"{number}")) == number * 100 + 9
    assert len([*tmp_path.iterdir()]) == 10


def test_listing_leftovers_beside_saves_disturbs_none(tmp_path):
    path = tmp_path / "a.pt"
    done = threading.Event()

    def save():
        try:
            for n in range(60):
                gdsckpt.save(value(n, 100), path, config={"fsync": False})
        finally:
            done.set()

    def listing():
        while not done.is_set():
            leftovers(tmp_path)

    in_threads(save, listing, listing)
    assert [*tmp_path.iterdir()] == [path]


def test_temporary_file_in_use_is_no_leftover(tmp_path):
    target = tmp_path / "a.pt"
    with files.temporary_file(target) as (_, temporary):
        assert temporary.name.startswith(files.TEMPORARY_PREFIX)
        assert leftovers(tmp_path) == []
        gdsckpt.save(value(2), target)
        assert temporary.exists()
    assert [*tmp_path.iterdir()] == [target]


def test_leftovers_of_other_targets_stay(tmp_path):
    other = start("""
from pathlib import Path
from gdsckpt.staging import files
with files.temporary_file(Path(sys.argv[1])) as (fd, temporary):
    os.write(fd, b"half")
    os.kill(os.getpid(), signal.SIGKILL)
""", tmp_path / "other.pt")  # fmt: skip
    other.communicate()
    assert other.returncode == -signal.SIGKILL
    (left,) = leftovers(tmp_path)
    gdsckpt.save(value(1), tmp_path / "a.pt")
    assert leftovers(tmp_path) == [left]
    gdsckpt.save(value(1), tmp_path / "other.pt")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.pt", "other.pt"]


def test_names_like_leftovers_that_are_no_files_stay(tmp_path):
    (tmp_path / f"{files.TEMPORARY_PREFIX}directory").mkdir()
    (tmp_path / f"{files.TEMPORARY_PREFIX}link").symlink_to("/etc/hostname")
    os.mkfifo(tmp_path / f"{files.TEMPORARY_PREFIX}pipe")
    before = sorted(tmp_path.iterdir())
    assert files.remove_leftovers(tmp_path) == []
    assert sorted(tmp_path.iterdir()) == before


# Files that change while they are read.


def test_file_renamed_over_while_it_is_read_gives_the_old_state(tmp_path):
    path = tmp_path / "a.pt"
    gdsckpt.save(value(1), path)
    seen = []

    def replace_once(storage, location):
        if not seen:
            gdsckpt.save(value(2), path)
        seen.append(location)
        return storage

    assert which(gdsckpt.load(path, replace_once)) == 1
    assert len(seen) > 1
    assert which(gdsckpt.load(path)) == 2


@pytest.mark.parametrize("is_ours", [True, False])
def test_file_truncated_while_it_is_read_raises(tmp_path, is_ours):
    path = tmp_path / "a.pt"
    state = {str(n): torch.full((200_000,), n) for n in range(40)}  # 64 MB: more than is read ahead
    (gdsckpt.save if is_ours else torch.save)(state, path)

    def cut(storage, location):
        os.truncate(path, 100_000)
        return storage

    with pytest.raises(GdsckptError) as caught:
        gdsckpt.load(path, cut, config={"read_ahead_bytes": 0})
    assert caught.value.path == str(path)
    assert type(caught.value).__name__ == "ShortTransferError"


def test_file_overwritten_in_place_while_it_is_read_raises(tmp_path):
    path = tmp_path / "a.pt"
    state = {str(n): torch.full((200_000,), n) for n in range(40)}
    gdsckpt.save(state, path)
    nbytes = path.stat().st_size

    def scribble(storage, location):
        with path.open("r+b") as file:
            file.write(b"x" * nbytes)
        return storage

    with pytest.raises(gdsckpt.errors.ChecksumError) as caught:
        gdsckpt.load(path, scribble, config={"read_ahead_bytes": 0})
    assert caught.value.path == str(path)


def test_file_removed_while_it_is_read_loads(tmp_path):
    path = tmp_path / "a.pt"
    gdsckpt.save(value(1), path)

    def remove(storage, location):
        path.unlink(missing_ok=True)
        return storage

    assert which(gdsckpt.load(path, remove)) == 1


def test_checkpoint_replaced_between_manifest_and_shard_loads_the_new_step(tmp_path):
    """A reader that has the manifest of one step may find that the next save removed its shard."""
    path = tmp_path / "step"
    gdsckpt.save_checkpoint(value(1), path, step=1)
    stop = threading.Event()

    def save():
        n = 2
        while not stop.is_set():
            gdsckpt.save_checkpoint(value(n, 10), path, step=n, config={"fsync": False})
            n += 1

    saver = threading.Thread(target=save)
    saver.start()
    try:
        for _ in range(150):
            which(gdsckpt.load(path))
            assert gdsckpt.verify(path).ok is True
    finally:
        stop.set()
        saver.join()


# Forks.


def in_child(call):
    """Run a function in a forked child; gives its exit status."""
    pid = os.fork()
    if pid == 0:
        status = 1
        torch.set_num_threads(1)  # as DataLoader does: OpenMP does not survive a fork
        signal.alarm(30)
        with contextlib.suppress(BaseException):
            call()
            status = 0
        os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_child_forked_after_a_save_saves_and_loads_itself(tmp_path):
    gdsckpt.save(value(1), tmp_path / "a.pt")
    assert which(gdsckpt.load(tmp_path / "a.pt")) == 1

    def child():
        gdsckpt.save(value(2), tmp_path / "child.pt")
        gdsckpt.save_checkpoint(value(2), tmp_path / "child", step=2)
        assert which(gdsckpt.load(tmp_path / "a.pt")) == 1
        assert gdsckpt.verify(tmp_path / "child").ok is True
        assert in_child(lambda: which(gdsckpt.load(tmp_path / "child"))) == 0

    for _ in range(3):
        assert in_child(child) == 0
        assert which(gdsckpt.load(tmp_path / "child.pt")) == 2
        gdsckpt.save(value(1), tmp_path / "a.pt")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.pt", "child", "child.pt"]


def test_children_forked_in_mid_save_save_and_exit(tmp_path):
    path = tmp_path / "a.pt"
    statuses = []

    def fork(done, total):
        statuses.append(in_child(lambda: None))
        statuses.append(in_child(lambda: gdsckpt.save(value(5), tmp_path / "child.pt")))
        statuses.append(in_child(lambda: which(gdsckpt.load(tmp_path / "child.pt"))))

    gdsckpt.save(value(1), path, progress=fork)
    assert statuses
    assert set(statuses) == {0}
    assert which(gdsckpt.load(path)) == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.pt", "child.pt"]


def test_child_that_unwinds_out_of_a_save_leaves_it_to_the_parent(tmp_path):
    code = """
from pathlib import Path
parent = os.getpid()
def fork(done, total):
    pid = os.fork()
    if pid == 0:
        raise SystemExit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
gdsckpt.save(value(1), sys.argv[1], progress=fork)
gdsckpt.save_checkpoint(value(1), sys.argv[2], step=1, progress=fork)
assert which(gdsckpt.load(sys.argv[1])) == which(gdsckpt.load(sys.argv[2])) == 1
"""
    finish(start(code, tmp_path / "a.pt", tmp_path / "step"))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.pt", "step"]
    assert len([*(tmp_path / "step").iterdir()]) == 2


def test_save_checkpoint_does_not_wait_for_a_worker_that_was_forked_in_mid_save(tmp_path):
    code = """
workers = []
def fork(done, total):
    if not workers:
        reads, writes = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(writes)
            signal.alarm(60)
            os.read(reads, 1)  # until the parent lets go
            os._exit(0)
        os.close(reads)
        workers.append((pid, writes))
for n in range(3):
    gdsckpt.save_checkpoint(value(n), sys.argv[1], step=n, progress=fork)
    assert which(gdsckpt.load(sys.argv[1])) == n
(pid, writes), = workers
os.close(writes)
os.waitpid(pid, 0)
"""
    finish(start(code, tmp_path / "step"))


def test_save_after_a_trainer_was_killed_does_not_wait_for_its_workers(tmp_path):
    code = """
def fork(done, total):
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        os.read(0, 1)  # until the test lets go
        os._exit(0)
    sys.stdout.write(f"{pid}\\n"); sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGKILL)
gdsckpt.save_checkpoint(value(1), sys.argv[1], step=1, progress=fork)
"""
    trainer = start(code, tmp_path / "step")
    assert int(trainer.stdout.readline()) > 0
    assert trainer.wait() == -signal.SIGKILL
    gdsckpt.save_checkpoint(value(2), tmp_path / "step", step=2)
    assert which(gdsckpt.load(tmp_path / "step")) == 2
    assert sorted(p.name.split(".")[0] for p in (tmp_path / "step").iterdir()) == [
        "manifest",
        "rank-00000",
    ]
    trainer.stdin.close()
    trainer.stdout.close()


def test_data_loader_workers_beside_saves_are_harmless(tmp_path):
    code = """
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, n):
        return torch.tensor(n)
for n in range(3):
    loader = torch.utils.data.DataLoader(Data(), num_workers=2, batch_size=2)
    for batch in loader:
        gdsckpt.save(value(n), sys.argv[1])
    assert which(gdsckpt.load(sys.argv[1])) == n
"""
    finish(start(code, tmp_path / "a.pt"))
    assert [*tmp_path.iterdir()] == [tmp_path / "a.pt"]


# Interrupts.


INTERRUPTED = """
gdsckpt.save(value(1), sys.argv[1])
def press(done, total):
    if done > 0:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
try:
    gdsckpt.save({"n": 2, "big": torch.ones(40_000_000)}, sys.argv[1], progress=press)
except KeyboardInterrupt:
    sys.stdout.write("interrupted")
assert which(gdsckpt.load(sys.argv[1])) == 1
gdsckpt.save(value(3), sys.argv[1])
assert which(gdsckpt.load(sys.argv[1])) == 3
"""


def test_save_interrupted_twice_in_its_transfer_keeps_the_old_file(tmp_path):
    assert finish(start(INTERRUPTED, tmp_path / "a.pt")) == "interrupted"
    assert [*tmp_path.iterdir()] == [tmp_path / "a.pt"]


def test_save_whose_progress_raises_keeps_the_old_file(tmp_path):
    class Stop(Exception):
        pass

    def stop(done, total):
        raise Stop

    gdsckpt.save(value(1), tmp_path / "a.pt")
    gdsckpt.save_checkpoint(value(1), tmp_path / "step", step=1)
    with pytest.raises(Stop):
        gdsckpt.save(value(2), tmp_path / "a.pt", progress=stop)
    with pytest.raises(Stop):
        gdsckpt.save_checkpoint(value(2), tmp_path / "step", step=2, progress=stop)
    with pytest.raises(Stop):
        gdsckpt.verify(tmp_path / "a.pt", progress=stop)
    assert which(gdsckpt.load(tmp_path / "a.pt")) == which(gdsckpt.load(tmp_path / "step")) == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.pt", "step"]
    assert len([*(tmp_path / "step").iterdir()]) == 2


@pytest.mark.campaign
@pytest.mark.parametrize("call", ["save", "save_checkpoint"])
def test_save_killed_at_random_times_leaves_a_whole_state(tmp_path, call):
    path = tmp_path / "a"
    code = MANY_SAVES.replace("range(first, first + 15)", "range(first, 10**9)")
    for n in range(60):
        process = start(code, path, n * 1000, call)
        process.stdout.readline()
        process.stdin.write("go\n")
        process.stdin.flush()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.05 + n / 60)
        process.kill()
        process.communicate()
        if path.exists() and (call == "save" or (path / "manifest.json").exists()):
            which(gdsckpt.load(path))
            assert gdsckpt.verify(path).ok is True


# Resources.


def status_kib(field):
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1])
    raise AssertionError(field)


def test_fifty_saves_and_loads_keep_memory_descriptors_and_threads(tmp_path):
    path = tmp_path / "a.pt"
    state = value(1, 500_000)  # 4 MB

    def once():
        gdsckpt.save(state, path, config={"fsync": False})
        which(gdsckpt.load(path))
        gdsckpt.verify(path)
        with contextlib.suppress(GdsckptError):
            gdsckpt.load(tmp_path / "missing")

    for _ in range(10):
        once()
    before = status_kib("VmRSS"), len([*Path("/proc/self/fd").iterdir()]), status_kib("Threads")
    for _ in range(50):
        once()
    after = status_kib("VmRSS"), len([*Path("/proc/self/fd").iterdir()]), status_kib("Threads")
    assert after[1:] == before[1:]
    assert after[0] - before[0] < 20_000  # 50 times 4 MB were 200 MB


def test_part_of_a_file_larger_than_the_memory_limit_loads(tmp_path):
    """A state of 960 MiB, and a process that may have 800 MiB more than it has to begin with."""
    path = tmp_path / "big.pt"
    state = {"big": {str(n): torch.zeros(80 * MiB, dtype=torch.uint8) for n in range(12)}}
    state["small"] = torch.arange(5)
    gdsckpt.save(state, path, config={"fsync": False})
    del state
    code = """
import resource
import gdsckpt.staging.indexing, gdsckpt.loading
gdsckpt.load(sys.argv[2])
used = [int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmSize")][0]
limit = used * 1024 + (800 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
assert gdsckpt.load(sys.argv[1], keys="small")["small"].tolist() == [0, 1, 2, 3, 4]
assert gdsckpt.load(sys.argv[1], keys="big.3")["big"]["3"][-1] == 0
assert gdsckpt.verify(sys.argv[1]).ok is True
try:
    gdsckpt.load(sys.argv[1])
except MemoryError as error:
    sys.stdout.write(str(error))
"""
    gdsckpt.save({"n": 1}, tmp_path / "warm.pt")
    assert "load a part with keys=" in finish(start(code, path, tmp_path / "warm.pt"))
    path.unlink()


def test_part_of_a_file_larger_than_this_machine_loads(tmp_path):
    path = tmp_path / "sparse.pt"
    crafting.write_sparse(path, 1 << 40, {"small": bytes(16)})
    with pytest.warns(gdsckpt.errors.UnverifiedWarning):
        part = gdsckpt.load(path, keys="small")
    assert torch.equal(part["small"], torch.zeros(4))
    into = {"small": torch.ones(4)}
    with pytest.warns(gdsckpt.errors.UnverifiedWarning):
        gdsckpt.load(path, into=into, keys="small")
    assert torch.equal(into["small"], torch.zeros(4))
    with (
        pytest.warns(gdsckpt.errors.UnverifiedWarning),
        pytest.raises(MemoryError, match="1099511627776 bytes"),
    ):
        gdsckpt.load(path)


def test_limit_of_open_files_is_reported(tmp_path):
    path = tmp_path / "a.pt"
    gdsckpt.save(value(1), path)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        for call in (gdsckpt.load, gdsckpt.verify, lambda p: gdsckpt.save(value(2), p)):
            with pytest.raises(gdsckpt.errors.StorageError) as caught:
                call(path)
            assert (caught.value.op, caught.value.errno) == ("open", 24)
            assert "ulimit -n" in str(caught.value)
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert which(gdsckpt.load(path)) == 1
    assert [*tmp_path.iterdir()] == [path]
