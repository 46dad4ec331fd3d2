"""`ls`, `inspect` and `verify` of URLs."""

import json

import pytest
import torch
from cli_runs import flip, run_here, save_small, small_state

import gdsckpt

OTHER_ATTEMPT = f"rank-00000.{'0' * 16}.pt"


@pytest.fixture
def store(tmp_path):
    """URL of a store in a directory, with one thing of each kind."""
    directory = tmp_path / "store"
    url = directory.as_uri()
    gdsckpt.upload(save_small(tmp_path / "a.pt"), f"{url}/a.pt")
    gdsckpt.save_checkpoint(small_state(), f"{url}/step-7", step=7)
    torch.save(small_state(), directory / "stock.pt")
    torch.save(small_state(), directory / "old.pt", _use_new_zipfile_serialization=False)
    (directory / "notes.txt").write_text("no checkpoint")
    (directory / "deep" / "er").mkdir(parents=True)
    (directory / "deep" / "er" / "a.pt").write_bytes((tmp_path / "a.pt").read_bytes())
    return url


def rows_of(capsys, *arguments):
    done = run_here(capsys, "ls", "--json", *arguments)
    assert done.code == 0, done.err
    return {row["path"]: row for row in json.loads(done.out)["entries"]}


def test_ls_shows_what_is_directly_below(capsys, store, tmp_path):
    rows = rows_of(capsys, store)
    assert {path: row["kind"] for path, row in rows.items()} == {
        f"{store}/a.pt": "gdsckpt",
        f"{store}/old.pt": "torch legacy",
        f"{store}/step-7": "checkpoint",
        f"{store}/stock.pt": "torch zip",
    }
    assert {row["state"] for row in rows.values()} == {"complete"}
    step = rows[f"{store}/step-7"]
    assert (step["step"], step["num_tensors"], step["engine"]) == (7, 3, "pinned")
    assert rows[f"{store}/a.pt"]["nbytes"] == (tmp_path / "a.pt").stat().st_size
    assert all(row["age_s"] is not None for row in rows.values())
    assert list(rows_of(capsys, f"{store}/")) == list(rows)


@pytest.mark.parametrize("name", ["a.pt", "step-7", "step-7/", "notes.txt"])
def test_ls_of_one_thing_shows_it(capsys, store, name):
    (row,) = rows_of(capsys, f"{store}/{name}").values()
    assert row["path"] == f"{store}/{name}".rstrip("/")
    assert row["state"] == ("no checkpoint" if name == "notes.txt" else "complete")


def test_ls_of_nothing_says_so(capsys, store):
    done = run_here(capsys, "ls", f"{store}/missing", store)
    assert done.code == 4
    assert f"nothing at {store}/missing" in done.err
    assert f"{store}/a.pt" in done.out  # one that fails does not keep the others from it


def test_ls_shows_damage_and_what_was_not_completed(capsys, store, tmp_path):
    directory = tmp_path / "store"
    raw = (directory / "a.pt").read_bytes()
    (directory / "a.pt").write_bytes(raw[: len(raw) // 2])
    (directory / "step-7" / OTHER_ATTEMPT).write_bytes(raw)
    (directory / "step-8").mkdir()
    (directory / "step-8" / OTHER_ATTEMPT).write_bytes(raw)
    (directory / "step-9").mkdir()
    (directory / "step-9" / "manifest.json").write_text("{}")
    states = {
        path.removeprefix(f"{store}/"): row["state"] for path, row in rows_of(capsys, store).items()
    }
    assert states == {
        "a.pt": "damaged structure",
        "old.pt": "complete",
        "step-7": "complete",
        f"step-7/{OTHER_ATTEMPT}": "leftover",
        "step-8": "no manifest",
        f"step-8/{OTHER_ATTEMPT}": "leftover",
        "step-9": "damaged structure",
        "stock.pt": "complete",
    }
    shards = list((directory / "step-7").glob("rank-*"))
    (named,) = (path for path in shards if path.name != OTHER_ATTEMPT)
    named.unlink()
    assert rows_of(capsys, store)[f"{store}/step-7"]["state"] == "damaged structure"


def test_ls_removes_no_leftovers_of_a_store(capsys, store):
    done = run_here(capsys, "ls", "--remove-leftovers", store)
    assert done.code == 4
    assert "for local directories only" in done.err


@pytest.mark.parametrize("name", ["a.pt", "step-7"])
def test_inspect_of_an_url_shows_what_that_of_the_file_does(capsys, store, tmp_path, name):
    here = json.loads(run_here(capsys, "inspect", "--json", tmp_path / "store" / name).out)
    there = json.loads(run_here(capsys, "inspect", "--json", f"{store}/{name}").out)
    for facts in (here, there):
        for file in facts["files"]:
            file["path"] = file["path"].rpartition("/")[2]
    assert there.pop("path") == f"{store}/{name}"
    assert here.pop("path")
    assert there == here
    some = run_here(capsys, "inspect", "--tensors", "model.norm", f"{store}/{name}")
    assert "model.norm" in some.out
    assert "layers" not in some.out


def test_verify_of_urls(capsys, store, tmp_path):
    done = run_here(capsys, "verify", f"{store}/a.pt", f"{store}/step-7")
    assert done.code == 0
    assert done.out.count(": ok, ") == 2
    assert run_here(capsys, "verify", f"{store}/stock.pt").code == 3
    assert run_here(capsys, "verify", f"{store}/missing").code == 4
    flip(tmp_path / "store" / "a.pt", 100_000)
    damaged = run_here(capsys, "verify", f"{store}/a.pt")
    assert damaged.code == 1
    assert "model.layers.0.weight" in damaged.out
