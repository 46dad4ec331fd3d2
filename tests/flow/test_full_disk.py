"""File systems that are full, small or read-only, and directories that may not be written."""

import contextlib
import errno
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch

import gdsckpt
from gdsckpt.errors import StorageError
from gdsckpt.staging.manifests import being_read

ROOT = Path(__file__).parent.parent.parent
MiB = 1 << 20


def state(nbytes, fill=1):
    return {"w": torch.full((nbytes,), fill, dtype=torch.uint8)}


def can_mount():
    with tempfile.TemporaryDirectory() as probe:
        mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", probe]
        if subprocess.run(mount, check=False, capture_output=True).returncode:
            return False
        subprocess.run(["umount", probe], check=True)
    return True


@pytest.fixture(scope="module")
def mounts():
    if os.geteuid() != 0 or not can_mount():
        pytest.skip("file systems can be mounted by root only")


@pytest.fixture
def small(mounts, tmp_path):
    """A file system of 4 MiB."""
    where = tmp_path / "small"
    where.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", where], check=True)
    yield where
    subprocess.run(["umount", where], check=True)


@pytest.fixture(params=["extents", "^extents"])
def ext4(request, mounts, tmp_path):
    """An ext4 of 8 MiB; without extents it has no fallocate."""
    image, where = tmp_path / "image", tmp_path / "ext4"
    where.mkdir()
    with image.open("wb") as file:
        file.truncate(8 * MiB)
    features = f"^has_journal,^64bit,{request.param}"
    make = ["mkfs.ext4", "-q", "-F", "-O", features, "-m", "0", image]
    if shutil.which(make[0]) is None:
        pytest.skip("mkfs.ext4 is missing")
    subprocess.run(make, check=True)
    mount = ["mount", "-o", "loop", image, where]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("this machine has no loop devices")
    (where / "lost+found").rmdir()
    yield where
    subprocess.run(["umount", where], check=True)


def test_save_that_cannot_fit_is_refused_before_it_starts(small):
    path = small / "a.pt"
    gdsckpt.save(state(MiB), path)
    with pytest.raises(StorageError) as caught:
        gdsckpt.save(state(8 * MiB, 2), path)
    error = caught.value
    assert (error.op, error.path, error.errno) == ("save", str(path), errno.ENOSPC)
    assert error.nbytes >= 8 * MiB
    assert "Free space" in str(error)
    assert [*small.iterdir()] == [path]
    assert int(gdsckpt.load(path)["w"][-1]) == 1


def test_save_needs_room_for_both_files(small):
    path = small / "a.pt"
    gdsckpt.save(state(5 * MiB // 2), path)
    with pytest.raises(StorageError) as caught:
        gdsckpt.save(state(5 * MiB // 2, 2), path)
    assert caught.value.errno == errno.ENOSPC
    assert [*small.iterdir()] == [path]
    assert gdsckpt.verify(path).ok is True
    gdsckpt.save(state(MiB, 3), path)
    assert int(gdsckpt.load(path)["w"][-1]) == 3


def save_many(obj, where):
    for n in range(20):
        gdsckpt.save(obj, where / f"{n}.pt")


def test_save_into_a_full_file_system_raises(small):
    (small / "filler").write_bytes(bytes(4 * MiB - 8192))
    for nbytes in (0, 100_000, MiB):
        with pytest.raises(StorageError) as caught:
            save_many(state(nbytes), small)  # the smallest fit for a while
        assert caught.value.errno == errno.ENOSPC
        assert not [path for path in small.iterdir() if path.name.startswith(".")]
        for path in small.glob("*.pt"):
            assert gdsckpt.verify(path).ok is True
            path.unlink()


def test_save_checkpoint_into_a_full_file_system_keeps_the_old_step(small):
    step = small / "step"
    gdsckpt.save_checkpoint(state(MiB), step, step=1)
    before = sorted(step.iterdir())
    (small / "filler").write_bytes(bytes(2 * MiB))
    for nbytes in (MiB, 5 * MiB):
        with pytest.raises(StorageError) as caught:
            gdsckpt.save_checkpoint(state(nbytes, 2), step, step=2)
        assert caught.value.errno == errno.ENOSPC
        assert sorted(step.iterdir()) == before
    assert gdsckpt.verify(step).ok is True


@pytest.mark.parametrize("call", ["save", "save_checkpoint"])
def test_save_whose_space_goes_in_mid_write_raises(ext4, call):
    path = ext4 / "a"
    save = {
        "save": lambda fill, **arguments: gdsckpt.save(many(fill), path, **arguments),
        "save_checkpoint": lambda fill, **arguments: gdsckpt.save_checkpoint(
            many(fill), path, step=fill, **arguments
        ),
    }[call]

    def take_the_rest(done, total):
        # Called when all but the file's last part is written; that has no blocks yet.
        with (ext4 / "filler").open("ab", buffering=0) as filler, contextlib.suppress(OSError):
            while filler.write(bytes(1024)):
                pass
        assert shutil.disk_usage(ext4).free < 4096

    save(1)
    before = sorted(ext4.rglob("*"))
    with pytest.raises(StorageError) as caught:
        save(2, progress=take_the_rest)
    assert (caught.value.op, caught.value.errno) == ("pwrite", errno.ENOSPC)
    assert caught.value.offset > 0
    assert sorted(ext4.rglob("*")) == sorted([*before, ext4 / "filler"])
    assert int(gdsckpt.load(path)["999"][0]) == 1


def many(fill):
    return {str(n): torch.full((100,), fill, dtype=torch.int16) for n in range(1000)}


def test_save_beyond_the_file_size_limit_raises(tmp_path):
    code = f"""
import resource, signal, sys
import torch, gdsckpt
path = sys.argv[1]
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
gdsckpt.save({{"n": 1}}, path)
resource.setrlimit(resource.RLIMIT_FSIZE, ({MiB}, {MiB}))
try:
    gdsckpt.save({{"w": torch.zeros({4 * MiB}, dtype=torch.uint8)}}, path)
except gdsckpt.errors.StorageError as error:
    assert error.errno == 27, error
    assert error.path == path, error.path
else:
    raise AssertionError("saved")
assert gdsckpt.load(path) == {{"n": 1}}
"""
    path = tmp_path / "a.pt"
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", code, path], check=True, env=environ)
    assert [*tmp_path.iterdir()] == [path]


def test_save_on_a_read_only_file_system_raises(small):
    path = small / "a.pt"
    gdsckpt.save(state(1000), path)
    gdsckpt.save_checkpoint(state(1000), small / "step", step=1)
    subprocess.run(["mount", "-o", "remount,ro", small], check=True)
    with pytest.raises(StorageError) as caught:
        gdsckpt.save(state(1000, 2), path)
    assert (caught.value.op, caught.value.path) == ("open", str(path))
    assert caught.value.errno == errno.EROFS
    for name in ("step", "new"):
        with pytest.raises(StorageError) as caught:
            gdsckpt.save_checkpoint(state(1000, 2), small / name, step=2)
        assert caught.value.errno == errno.EROFS
    assert int(gdsckpt.load(path)["w"][-1]) == 1
    assert int(gdsckpt.load(small / "step")["w"][-1]) == 1
    assert gdsckpt.verify(small / "step").ok is True
    subprocess.run(["mount", "-o", "remount,rw", small], check=True)
    assert sorted(p.name for p in small.iterdir()) == ["a.pt", "step"]
    assert len([*(small / "step").iterdir()]) == 2


def test_checkpointer_prunes_first_where_a_step_fits_only_then(small):
    with gdsckpt.Checkpointer(small / "run", keep_local=1) as checkpointer:
        for step in (1, 2, 3):  # two of them fit beside a third one that is being written
            checkpointer.save(step, state(5 * MiB // 4, step))
            checkpointer.wait()
        with being_read(small / "run" / "step-00000003"):
            checkpointer.save(4, state(5 * MiB // 4, 4))
            checkpointer.wait()
            assert checkpointer.steps() == [3, 4]
        # Step 3 could not go while it was read; now it has to, or there is no room.
        checkpointer.save(5, state(5 * MiB // 4, 5))
        checkpointer.wait()
        assert checkpointer.steps() == [5]
        assert int(checkpointer.load()["w"][0]) == 5


def test_checkpointer_on_a_full_file_system_prunes_nothing_and_raises(small):
    with gdsckpt.Checkpointer(small / "run", keep_local=2) as checkpointer:
        checkpointer.save(1, state(MiB, 1))
        checkpointer.save(2, state(MiB, 2))
        for save in (checkpointer.save, checkpointer.async_save):
            with pytest.raises(StorageError) as caught:
                getattr(save(3, state(4 * MiB, 3)), "committed", None).result()
            assert caught.value.errno == errno.ENOSPC
        assert checkpointer.steps() == [1, 2]
        checkpointer.save(3, state(MiB, 3))
        checkpointer.wait()
        assert checkpointer.steps() == [2, 3]


def test_checkpointer_on_a_read_only_file_system_raises(small):
    with gdsckpt.Checkpointer(small / "run") as checkpointer:
        checkpointer.save(1, state(MiB, 1))
    subprocess.run(["mount", "-o", "remount,ro", small], check=True)
    with pytest.raises(StorageError) as caught:
        gdsckpt.Checkpointer(small / "run")
    assert caught.value.errno == errno.EROFS
    assert int(gdsckpt.load(small / "run" / "step-00000001")["w"][0]) == 1


def as_nobody(code, where):
    """Run code in a process that is not root, in a directory that it may pass through."""
    drop = "import os\nif os.geteuid() == 0: os.setresuid(65534, 65534, 65534)\n"
    warm = "import io, torch, gdsckpt\ngdsckpt.load(io.BytesIO(b'')) if 0 else None\n"
    warm += "b = io.BytesIO(); gdsckpt.save({'w': torch.ones(3)}, b); b.seek(0); gdsckpt.load(b)\n"
    warm += "gdsckpt.verify; gdsckpt.save_checkpoint; gdsckpt.errors\n"
    warm += "import gdsckpt.verifying, encodings.idna\n"
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = subprocess.run(
        [sys.executable, "-c", warm + drop + code],
        cwd=where, env=environ, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr


@pytest.fixture
def open_directory():
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o777)
        yield Path(name)


def test_save_into_a_directory_that_may_not_be_written_raises(open_directory):
    where = open_directory / "locked"
    gdsckpt.save_checkpoint({"n": 1}, where, step=1)
    gdsckpt.save({"n": 1}, where / "a.pt")
    before = sorted(where.iterdir())
    where.chmod(0o555)
    as_nobody(
        """
import errno
for call, op in ((lambda: gdsckpt.save({"n": 2}, "locked/a.pt"), "open"),
                 (lambda: gdsckpt.save_checkpoint({"n": 2}, "locked", step=2), "open"),
                 (lambda: gdsckpt.save_checkpoint({"n": 2}, "locked/new", step=2), "mkdir")):
    try:
        call()
    except gdsckpt.errors.StorageError as error:
        assert isinstance(error, OSError)
        assert (error.op, error.errno) == (op, errno.EACCES), error
        assert "Check the owner and mode" in str(error)
    else:
        raise AssertionError("saved")
assert gdsckpt.load("locked/a.pt") == gdsckpt.load("locked") == {"n": 1}
""",
        open_directory,
    )
    assert sorted(where.iterdir()) == before


def test_files_that_may_not_be_read_raise(open_directory):
    gdsckpt.save({"n": 1}, open_directory / "a.pt")
    gdsckpt.save_checkpoint({"n": 1}, open_directory / "step", step=1)
    for path in (open_directory / "a.pt", *(open_directory / "step").iterdir()):
        path.chmod(0o000)
    as_nobody(
        """
import errno
for call in (gdsckpt.load, gdsckpt.verify):
    for path in ("a.pt", "step"):
        try:
            call(path)
        except gdsckpt.errors.StorageError as error:
            assert (error.op, error.errno) == ("open", errno.EACCES), error
        else:
            raise AssertionError("read")
""",
        open_directory,
    )


def test_save_into_a_directory_that_may_not_be_listed_is_clear(open_directory):
    where = open_directory / "dropbox"
    where.mkdir()
    where.chmod(0o333)
    as_nobody(
        """
import errno
for call in (lambda: gdsckpt.save({"n": 2}, "dropbox/a.pt", config={"fsync": False}),
             lambda: gdsckpt.save({"n": 2}, "dropbox/a.pt")):
    try:
        call()
    except gdsckpt.errors.StorageError as error:
        # The file is there, but nothing may sync its directory.
        assert (error.op, error.errno) == ("open", errno.EACCES), error
    assert gdsckpt.load("dropbox/a.pt") == {"n": 2}
try:
    gdsckpt.save_checkpoint({"n": 2}, "dropbox", step=1)
except gdsckpt.errors.StorageError as error:
    assert (error.op, error.errno) == ("open", errno.EACCES), error
else:
    raise AssertionError("saved")
""",
        open_directory,
    )
    assert [*where.iterdir()] == [where / "a.pt"]
