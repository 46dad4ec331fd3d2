import json

import pytest
import torch
from cli_runs import flip, run_here, save_small, small_state

import gdsckpt
from gdsckpt.cli.facts import item_bytes_of


def rows_after(out, heading):
    lines = out.splitlines()
    (start,) = [n for n, line in enumerate(lines) if line.startswith(heading)]
    return [line.split() for line in lines[start + 1 :]]


def test_inspect_shows_header_and_tensors(capsys, tmp_path):
    path = save_small(tmp_path / "a.pt")
    done = run_here(capsys, "inspect", path)
    assert (done.code, done.err) == (0, "")
    assert "kind        gdsckpt\n" in done.out
    assert "format      1\n" in done.out
    assert "chunks      4 of 64 KiB\n" in done.out
    assert "tensors     3\n" in done.out
    rows = rows_after(done.out, "tensor  ")
    assert [row[:4] for row in rows] == [
        ["model.layers.0.weight", "float32", "60000", "240000"],
        ["model.layers.0.bias", "bfloat16", "3", "6"],
        ["model.norm", "float32", "3x2", "24"],
    ]


def test_inspect_offsets_lead_to_the_bytes(capsys, tmp_path):
    path = save_small(tmp_path / "a.pt")
    document = json.loads(run_here(capsys, "inspect", "--json", path).out)
    tensors = {tensor["name"]: tensor for tensor in document["files"][0]["tensors"]}
    weight = tensors["model.layers.0.weight"]
    raw = path.read_bytes()[weight["file_offset"] :][: weight["nbytes"]]
    found = torch.frombuffer(bytearray(raw), dtype=torch.float32)
    assert torch.equal(found, torch.arange(60_000.0))
    assert tensors["model.norm"]["strides"] == [1, 3]


def test_inspect_json_shape(capsys, tmp_path):
    document = json.loads(run_here(capsys, "inspect", "--json", save_small(tmp_path / "a.pt")).out)
    assert document["manifest"] is None
    (file,) = document["files"]
    assert file["chunk_bytes"] == 65536
    assert file["format_version"] == 1
    assert {"name", "nbytes", "file_offset", "crc32"} == set(file["records"][0])
    assert sum(file["alignments"].values()) == 3


@pytest.mark.parametrize(
    ("prefix", "names"),
    [
        ("model.layers", ["model.layers.0.weight", "model.layers.0.bias"]),
        ("model.layers.0.bias", ["model.layers.0.bias"]),
        ("model.norm.", ["model.norm"]),
    ],
)
def test_inspect_tensors_takes_whole_components(capsys, tmp_path, prefix, names):
    path = save_small(tmp_path / "a.pt")
    done = run_here(capsys, "inspect", "--json", "--tensors", prefix, path)
    (file,) = json.loads(done.out)["files"]
    assert [tensor["name"] for tensor in file["tensors"]] == names


def test_inspect_unknown_prefix_is_code_4(capsys, tmp_path):
    done = run_here(capsys, "inspect", "--tensors", "model.lay", save_small(tmp_path / "a.pt"))
    assert done.code == 4
    assert done.err.startswith("gdsckpt: error: no tensor of ")


def test_inspect_directory_shows_the_manifest(capsys, tmp_path):
    gdsckpt.save_checkpoint(small_state(), tmp_path / "step", step=3)
    done = run_here(capsys, "inspect", tmp_path / "step")
    assert done.code == 0
    assert "step        3\n" in done.out
    assert "engine      pinned\n" in done.out
    assert "model.norm" in done.out


def test_inspect_foreign_file_shows_records(capsys, tmp_path):
    torch.save(small_state(), tmp_path / "t.pt")
    done = run_here(capsys, "inspect", tmp_path / "t.pt")
    assert done.code == 0
    assert "kind        torch zip\n" in done.out
    assert "t/data.pkl" in [row[0] for row in rows_after(done.out, "record  ")]
    (file,) = json.loads(run_here(capsys, "inspect", "--json", tmp_path / "t.pt").out)["files"]
    assert file["tensors"] is None


def test_inspect_legacy_file_has_no_records(capsys, tmp_path):
    torch.save(small_state(), tmp_path / "t.pt", _use_new_zipfile_serialization=False)
    done = run_here(capsys, "inspect", tmp_path / "t.pt")
    assert done.code == 0
    assert "kind        torch legacy\n" in done.out


def test_inspect_damaged_structure_is_code_4(capsys, tmp_path):
    path = save_small(tmp_path / "a.pt")
    flip(path, path.stat().st_size - 1)
    done = run_here(capsys, "inspect", path)
    assert done.code == 4
    assert "is damaged" in done.err
    assert done.err.count("\n") == 1


def test_inspect_directory_without_manifest_is_code_4(capsys, tmp_path):
    done = run_here(capsys, "inspect", tmp_path)
    assert done.code == 4
    assert "manifest.json" in done.err


DTYPES = sorted(
    {value for value in vars(torch).values() if isinstance(value, torch.dtype)}, key=str
)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_item_bytes_agrees_with_torch(dtype):
    assert item_bytes_of(str(dtype).removeprefix("torch.")) == dtype.itemsize


def test_item_bytes_of_an_unknown_dtype_is_none():
    assert item_bytes_of("float7") is None
