import json

import pytest
import torch
from cli_runs import flip, run_here, save_small, small_state

import gdsckpt


@pytest.fixture
def whole(tmp_path):
    return save_small(tmp_path / "a.pt")


@pytest.fixture
def damaged(tmp_path):
    path = save_small(tmp_path / "bad.pt")
    flip(path, 70_000)  # in the second chunk of 64 KiB, in the weight
    return path


@pytest.fixture
def foreign(tmp_path):
    path = tmp_path / "torch.pt"
    torch.save(small_state(), path)
    return path


def test_verify_whole_file_is_code_0(capsys, whole):
    done = run_here(capsys, "verify", whole)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"{whole}: ok, 24")
    assert done.out.count("\n") == 1


def test_verify_damaged_file_is_code_1_and_names_the_place(capsys, damaged):
    done = run_here(capsys, "verify", damaged)
    assert (done.code, done.err) == (1, "")
    first, second = done.out.splitlines()
    assert first == f"{damaged}: DAMAGED, 1 damaged place. Use another copy."
    assert second == "  offset 65536, 65536 bytes, tensor model.layers.0.weight: chunk 1"


def test_verify_foreign_file_is_code_3(capsys, foreign):
    done = run_here(capsys, "verify", foreign)
    assert done.code == 3
    assert "not verifiable: not written by gdsckpt" in done.out


def test_verify_no_checkpoint_is_code_4(capsys, tmp_path):
    (tmp_path / "notes.txt").write_text("not a checkpoint")
    done = run_here(capsys, "verify", tmp_path / "notes.txt")
    assert done.code == 4
    assert done.err.startswith("gdsckpt: error: ")
    assert done.err.count("\n") == 1


def test_verify_several_goes_on_after_an_error(capsys, tmp_path, whole, damaged):
    done = run_here(capsys, "verify", tmp_path / "absent", damaged, whole)
    assert done.code == 4
    assert "DAMAGED" in done.out
    assert f"{whole}: ok" in done.out


def test_verify_damage_outweighs_no_checksums(capsys, whole, damaged, foreign):
    assert run_here(capsys, "verify", foreign, damaged, whole).code == 1
    assert run_here(capsys, "verify", whole, foreign).code == 3


def test_verify_json_is_one_document(capsys, tmp_path, whole, damaged):
    done = run_here(capsys, "verify", "--json", whole, damaged, tmp_path / "absent")
    document = json.loads(done.out)
    assert document["ok"] is False
    assert [report["ok"] for report in document["reports"]] == [True, False]
    (damage,) = document["reports"][1]["damaged"]
    assert damage["path"] == str(damaged)
    assert damage["offset"] == 65536
    assert damage["tensors"] == ["model.layers.0.weight"]
    (error,) = document["errors"]
    assert error["error"] == "CheckpointNotFoundError"


@pytest.mark.parametrize(("name", "ok"), [("a.pt", True), ("torch.pt", None)])
def test_verify_json_ok_is_true_or_null(capsys, tmp_path, whole, foreign, name, ok):
    document = json.loads(run_here(capsys, "verify", "--json", tmp_path / name).out)
    assert document["ok"] is ok


def test_verify_directory_names_the_shard(capsys, tmp_path):
    gdsckpt.save_checkpoint(small_state(), tmp_path / "step", step=3)
    assert run_here(capsys, "verify", tmp_path / "step").code == 0
    (shard,) = (tmp_path / "step").glob("rank-*.pt")
    flip(shard, 70_000)
    done = run_here(capsys, "verify", tmp_path / "step")
    assert done.code == 1
    assert shard.name in done.out
    assert "model.layers.0.weight" in done.out


def test_verify_escapes_hostile_names(capsys, tmp_path):
    path = tmp_path / "a\n\x1b[2J.pt"
    gdsckpt.save({"evil\x1b]0;title\x07": torch.ones(50_000)}, path)
    flip(path, 70_000)
    done = run_here(capsys, "verify", path)
    assert done.code == 1
    assert "\x1b" not in done.out
    assert "\x07" not in done.out
    assert "a\\n\\x1b[2J.pt" in done.out
    assert "evil\\x1b]0;title\\x07" in done.out
    assert done.out.count("\n") == 2
