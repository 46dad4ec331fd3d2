import fcntl
import json
import os
import shutil
import tempfile
import zipfile
from pathlib import Path

import pytest
import torch
from cli_runs import flip, run_here, save_small, small_state

import gdsckpt
from gdsckpt.staging import files


def entries(capsys, *arguments):
    done = run_here(capsys, "ls", "--json", *arguments)
    assert done.code == 0, done.err
    return {Path(row["path"]).name: row for row in json.loads(done.out)["entries"]}


@pytest.fixture
def step(tmp_path):
    gdsckpt.save_checkpoint(small_state(), tmp_path / "step-7", step=7)
    return tmp_path / "step-7"


@pytest.fixture
def abandoned(step):
    path = step / f"rank-00000.{'0' * 16}.pt"
    path.write_bytes(b"half a shard")
    return path


@pytest.fixture
def temporary(tmp_path):
    path = tmp_path / f"{files.TEMPORARY_PREFIX}0123-4567"
    path.write_bytes(b"half a file")
    return path


def test_ls_shows_files_and_checkpoints(capsys, tmp_path, step):
    save_small(tmp_path / "a.pt")
    torch.save(small_state(), tmp_path / "t.pt")
    torch.save(small_state(), tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    (tmp_path / "notes.txt").write_text("no checkpoint")
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
        archive.writestr("other/file", "text")
    rows = entries(capsys, tmp_path)
    assert list(rows) == ["a.pt", "old.pt", "step-7", "t.pt"]
    assert [row["kind"] for row in rows.values()] == [
        "gdsckpt",
        "torch legacy",
        "checkpoint",
        "torch zip",
    ]
    assert {row["state"] for row in rows.values()} == {"complete"}
    assert rows["a.pt"]["num_tensors"] == 3
    assert rows["a.pt"]["nbytes"] == (tmp_path / "a.pt").stat().st_size
    assert rows["step-7"]["step"] == 7
    assert rows["step-7"]["num_tensors"] == 3
    assert rows["step-7"]["engine"] == "pinned"
    assert rows["step-7"]["age_s"] < 300


def test_ls_text_has_a_heading_and_a_line_each(capsys, tmp_path, step):
    save_small(tmp_path / "a.pt")
    done = run_here(capsys, "ls", tmp_path)
    assert (done.code, done.err) == (0, "")
    head, first, second = done.out.splitlines()
    assert head.split() == [
        "name",
        "kind",
        "step",
        "ranks",
        "bytes",
        "tensors",
        "age",
        "engine",
        "state",
    ]
    assert first.split()[:2] == [str(tmp_path / "a.pt"), "gdsckpt"]
    assert second.split()[:3] == [str(step), "checkpoint", "7"]
    assert second.endswith("complete")


def test_ls_takes_files_and_checkpoints_themselves(capsys, tmp_path, step):
    path = save_small(tmp_path / "a.pt")
    assert list(entries(capsys, path, step)) == ["a.pt", "step-7"]


def test_ls_default_is_the_current_directory(capsys, tmp_path, monkeypatch):
    save_small(tmp_path / "a.pt")
    monkeypatch.chdir(tmp_path)
    assert list(entries(capsys)) == ["a.pt"]


def test_ls_of_nothing_says_so_on_stderr(capsys, tmp_path):
    done = run_here(capsys, "ls", tmp_path)
    assert (done.code, done.out) == (0, "")
    assert done.err == f"no checkpoints in {tmp_path}\n"


def test_ls_missing_path_keeps_the_others(capsys, tmp_path):
    save_small(tmp_path / "a.pt")
    done = run_here(capsys, "ls", tmp_path / "absent", tmp_path)
    assert done.code == 4
    assert "a.pt" in done.out
    assert done.err.count("\n") == 1


def test_ls_does_not_look_below_other_directories(capsys, tmp_path):
    (tmp_path / "run" / "deep").mkdir(parents=True)
    save_small(tmp_path / "run" / "a.pt")
    assert entries(capsys, tmp_path) == {}


def test_ls_damaged_structures(capsys, tmp_path, step):
    for name, change in {
        "cut.pt": lambda raw: raw[:-10],
        "tail.pt": lambda raw: raw[:-1] + bytes([raw[-1] ^ 1]),
    }.items():
        raw = save_small(tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(change(raw))
    torch.save(small_state(), tmp_path / "torch-cut.pt")
    os.truncate(tmp_path / "torch-cut.pt", 1000)
    flip(step / "manifest.json", 40)
    rows = entries(capsys, tmp_path)
    assert {name: row["state"] for name, row in rows.items()} == dict.fromkeys(
        ["cut.pt", "step-7", "tail.pt", "torch-cut.pt"], "damaged structure"
    )
    done = run_here(capsys, "ls", tmp_path)
    assert "damaged structure: " in done.out.splitlines()[-1]


@pytest.mark.parametrize("change", ["missing", "other size"])
def test_ls_shard_that_is_not_as_listed(capsys, step, change):
    (shard,) = step.glob("rank-*.pt")
    if change == "missing":
        shard.unlink()
    else:
        os.truncate(shard, 100)
    row = entries(capsys, step)["step-7"]
    assert row["state"] == "damaged structure"
    assert shard.name in row["reason"]


def test_ls_directory_without_manifest(capsys, tmp_path, step):
    (step / "manifest.json").unlink()
    rows = entries(capsys, tmp_path)
    assert rows["step-7"]["state"] == "no manifest"
    (shard,) = step.glob("rank-*.pt")
    assert rows[shard.name]["state"] == "leftover"


def test_ls_shows_leftovers(capsys, tmp_path, temporary, abandoned):
    rows = entries(capsys, tmp_path)
    assert rows[temporary.name]["state"] == "leftover"
    assert rows[temporary.name]["kind"] == "temporary"
    assert rows[abandoned.name]["state"] == "leftover"
    assert rows[abandoned.name]["kind"] == "shard"
    assert rows["step-7"]["state"] == "complete"
    done = run_here(capsys, "ls", tmp_path)
    assert "2 leftovers of 23 B; 'gdsckpt ls --remove-leftovers' deletes them" in done.err
    assert temporary.exists()


def test_ls_removes_leftovers_and_nothing_else(capsys, tmp_path, temporary, abandoned, step):
    save_small(tmp_path / "a.pt")
    before = sorted(step.glob("rank-*.pt"))
    done = run_here(capsys, "ls", "--remove-leftovers", "--json", tmp_path)
    document = json.loads(done.out)
    assert sorted(document["removed"]) == sorted([str(temporary), str(abandoned)])
    assert [Path(row["path"]).name for row in document["entries"]] == ["a.pt", "step-7"]
    assert sorted(step.glob("rank-*.pt")) == [path for path in before if path != abandoned]
    assert gdsckpt.verify(step).ok


def test_ls_keeps_what_a_living_process_writes(capsys, tmp_path, temporary, abandoned, step):
    directory_fd = os.open(step, os.O_RDONLY | os.O_DIRECTORY)
    with temporary.open("rb") as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        fcntl.flock(directory_fd, fcntl.LOCK_EX)
        done = run_here(capsys, "ls", "--remove-leftovers", "--json", tmp_path)
    os.close(directory_fd)
    document = json.loads(done.out)
    assert document["removed"] == []
    states = {Path(row["path"]).name: row["state"] for row in document["entries"]}
    assert states[temporary.name] == "being written"
    assert states[abandoned.name] == "being written"
    assert temporary.exists()
    assert abandoned.exists()


def test_ls_keeps_shards_that_a_damaged_manifest_may_name(capsys, tmp_path, step):
    (shard,) = step.glob("rank-*.pt")
    flip(step / "manifest.json", 40)
    document = json.loads(run_here(capsys, "ls", "--remove-leftovers", "--json", tmp_path).out)
    assert document["removed"] == []
    assert shard.exists()


def test_ls_does_not_follow_links_to_remove(capsys, tmp_path, abandoned, step):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "link").symlink_to(step)
    run_here(capsys, "ls", "--remove-leftovers", tmp_path / "elsewhere")
    assert abandoned.exists()


def test_ls_odd_directory(capsys, tmp_path):
    save_small(tmp_path / "good.pt")
    save_small(tmp_path / "line\nend\x1b[31m.pt")
    shutil.copy(tmp_path / "good.pt", os.fsencode(tmp_path) + b"/not-utf8-\xff.pt")
    (tmp_path / "loop-a").symlink_to("loop-b")
    (tmp_path / "loop-b").symlink_to("loop-a")
    (tmp_path / "broken").symlink_to("nowhere")
    (tmp_path / "self").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    done = run_here(capsys, "ls", tmp_path)
    assert done.code == 0
    assert "\x1b" not in done.out
    names = [line.split()[0].rpartition("/")[2] for line in done.out.splitlines()[1:7]]
    assert names == [
        "broken",
        "good.pt",
        "line\\nend\\x1b[31m.pt",
        "loop-a",
        "loop-b",
        "not-utf8-\\xff.pt",
    ]
    states = {name: row["state"] for name, row in entries(capsys, tmp_path).items()}
    assert states["broken"] == states["loop-a"] == states["loop-b"] == "unreadable"
    assert states["line\nend\x1b[31m.pt"] == "complete"


def test_ls_pipe_is_not_opened(capsys, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert entries(capsys, tmp_path / "pipe")["pipe"]["state"] == "no checkpoint"


@pytest.fixture
def unprivileged():
    """A directory as a user sees it who is not root; root may read everything."""
    directory = Path(tempfile.mkdtemp())
    directory.chmod(0o755)
    user = os.geteuid()

    def drop():
        if user == 0:
            os.seteuid(65534)

    yield directory, drop
    if user == 0:
        os.seteuid(0)
    for path in directory.rglob("*"):
        path.chmod(0o755)
    shutil.rmtree(directory)


def test_ls_unreadable_files_and_directories(capsys, unprivileged):
    directory, drop = unprivileged
    save_small(directory / "good.pt").chmod(0o644)
    save_small(directory / "secret.pt").chmod(0)
    gdsckpt.save_checkpoint(small_state(), directory / "step", step=1)
    (directory / "step").chmod(0)
    drop()
    states = {name: row["state"] for name, row in entries(capsys, directory).items()}
    assert states == {"good.pt": "complete", "secret.pt": "unreadable", "step": "unreadable"}
    done = run_here(capsys, "ls", directory / "step")
    assert done.code == 4
    assert "Permission denied" in done.err
    assert done.err.count("\n") == 1
