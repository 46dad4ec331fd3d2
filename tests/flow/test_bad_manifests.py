"""Manifests that lie, and directories that are not what they seem."""

import json
import os
import zlib

import pytest
import torch

import gdsckpt
from gdsckpt.errors import (
    CheckpointNotFoundError,
    ConfigError,
    FormatError,
    StorageError,
    UnsupportedVersionError,
)

STATE = {"w": torch.arange(1000), "n": 1}


@pytest.fixture
def step(tmp_path):
    directory = tmp_path / "step-1"
    gdsckpt.save_checkpoint(STATE, directory, step=1)
    return directory


def rewrite(directory, change, *, seal=True):
    """Change the manifest, and give it a right checksum of its own."""
    path = directory / "manifest.json"
    document = json.loads(path.read_text())
    document.pop("crc32")
    document = change(document) or document
    if seal:
        canonical = json.dumps(document, sort_keys=True, separators=(",", ":"))
        document["crc32"] = zlib.crc32(canonical.encode())
    path.write_text(json.dumps(document))


def first(**changes):
    """Change fields of the first shard."""

    def change(document):
        document["shards"][0].update(changes)

    return change


def both_refuse(directory, *, error=FormatError, match=None):
    with pytest.raises(error, match=match) as caught:
        gdsckpt.load(directory)
    report = gdsckpt.verify(directory)
    assert report.ok is False
    assert report.damaged
    return caught.value


def test_manifest_that_is_resealed_untouched_is_believed(step):
    rewrite(step, lambda document: None)
    assert torch.equal(gdsckpt.load(step)["w"], STATE["w"])
    assert gdsckpt.verify(step).ok is True


def test_manifest_without_its_checksum_is_refused(step):
    rewrite(step, first(nbytes=1), seal=False)
    assert both_refuse(step).path == str(step / "manifest.json")


def test_every_flip_in_a_manifest_is_found(step):
    path = step / "manifest.json"
    raw = path.read_bytes()
    for position in range(len(raw)):
        path.write_bytes(raw[:position] + bytes([raw[position] ^ 1]) + raw[position + 1 :])
        report = gdsckpt.verify(step)
        if report.ok is not False:  # a blank that became another blank
            assert raw[position : position + 1] in b" \n", position
        else:
            with pytest.raises(FormatError):
                gdsckpt.load(step)


def test_manifest_cut_anywhere_is_found(step):
    path = step / "manifest.json"
    raw = path.read_bytes().rstrip()
    for nbytes in range(len(raw)):
        path.write_bytes(raw[:nbytes])
        error = both_refuse(step)
        assert (error.path, error.offset) == (str(path), 0)


@pytest.mark.parametrize(
    "name",
    [
        "../step-1/x.pt",
        "/etc/hostname",
        "..",
        ".",
        "",
        "a/b.pt",
        "a\\b.pt",
        "a\0b",
    ],
)
def test_shard_name_that_leads_elsewhere_is_refused(step, name):
    rewrite(step, first(name=name))
    error = both_refuse(step, match="outside its directory")
    assert (error.path, error.offset) == (str(step / "manifest.json"), 0)


def test_shard_that_is_a_link_is_not_followed(step, tmp_path):
    (shard,) = step.glob("rank-*")
    shard.rename(tmp_path / "elsewhere.pt")
    shard.symlink_to(tmp_path / "elsewhere.pt")
    assert both_refuse(step).path == str(shard)


def test_shard_that_is_a_pipe_does_not_wait(step):
    (shard,) = step.glob("rank-*")
    shard.unlink()
    os.mkfifo(shard)
    assert both_refuse(step).path == str(shard)


@pytest.mark.parametrize("kind", ["missing", "directory"])
def test_shard_that_is_missing_is_named(step, kind):
    (shard,) = step.glob("rank-*")
    shard.unlink()
    if kind == "directory":
        shard.mkdir()
    error = both_refuse(step, error=CheckpointNotFoundError)
    assert error.path == str(shard)


@pytest.mark.parametrize("nbytes", [0, 1, 10**9, 2**63, 2**64])
def test_shard_of_another_size_is_refused(step, nbytes):
    (shard,) = step.glob("rank-*")
    rewrite(step, first(nbytes=nbytes))
    error = both_refuse(step, match="bytes, but the manifest names")
    assert error.path == str(shard)


@pytest.mark.parametrize("sha256", ["0" * 64, "", "x"])
def test_shard_with_another_table_is_refused(step, sha256):
    (shard,) = step.glob("rank-*")
    rewrite(step, first(table_sha256=sha256))
    assert both_refuse(step, match="not the shard that the manifest names").path == str(shard)


def test_shard_with_another_checksum_is_found_by_verify(step):
    rewrite(step, first(crc32=1))
    report = gdsckpt.verify(step)
    assert report.ok is False
    assert "not the shard that the manifest names" in report.reason


def test_shard_swapped_for_another_whole_one_is_refused(step, tmp_path):
    (shard,) = step.glob("rank-*")
    gdsckpt.save({"w": torch.arange(1000) + 1, "n": 1}, tmp_path / "other.pt")
    (tmp_path / "other.pt").replace(shard)
    assert gdsckpt.verify(shard).ok is True
    assert both_refuse(step, match="not the shard that the manifest names").path == str(shard)


def test_shard_swapped_for_a_file_of_torch_is_refused(step):
    (shard,) = step.glob("rank-*")
    torch.save(STATE, shard)
    rewrite(step, first(nbytes=shard.stat().st_size))
    assert both_refuse(step, match="not the shard that the manifest names").path == str(shard)


WRONG = {
    "no-shards": lambda d: d.update(shards=[]),
    "shards-number": lambda d: d.update(shards=7),
    "shards-twice": lambda d: d.update(shards=d["shards"] * 2, world_size=2),
    "shard-no-object": lambda d: d.update(shards=["x"]),
    "shard-no-name": lambda d: d["shards"][0].pop("name"),
    "world-size": lambda d: d.update(world_size=3),
    "world-size-negative": lambda d: d.update(world_size=-1),
    "world-size-bool": lambda d: d.update(world_size=True),
    "step-text": lambda d: d.update(step="1"),
    "step-negative": lambda d: d.update(step=-1),
    "step-float": lambda d: d.update(step=1.5),
    "step-infinite": lambda d: d.update(step=float("inf")),
    "nbytes-negative": lambda d: d["shards"][0].update(nbytes=-5),
    "nbytes-text": lambda d: d["shards"][0].update(nbytes="5"),
    "reasons-number": lambda d: d.update(engine_reasons=7),
    "no-version": lambda d: d.pop("manifest_version"),
    "version-text": lambda d: d.update(manifest_version="x"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_manifest_with_wrong_fields_is_refused(step, wrong):
    def change(document):
        WRONG[wrong](document)

    rewrite(step, change)
    assert both_refuse(step).path == str(step / "manifest.json")


def test_manifest_of_a_later_version_says_so(step):
    rewrite(step, lambda d: d.update(manifest_version=2, new_field=[1]))
    error = both_refuse(step, error=UnsupportedVersionError)
    assert (error.found, error.supported) == (2, 1)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b"7",
        b'"text"',
        b"[" * 200_000,
        b'{"crc32":' + b"9" * 5000 + b"}",
        b"\xff\xfe",
        b"\x00" * 100,
        b"{" * 100_000,
    ],
)
def test_manifest_that_is_none_is_refused(step, raw):
    (step / "manifest.json").write_bytes(raw)
    assert both_refuse(step).path == str(step / "manifest.json")


def test_huge_manifest_is_not_read(step):
    os.truncate(step / "manifest.json", 5 << 30)
    error = both_refuse(step, match="larger than")
    assert error.path == str(step / "manifest.json")


def test_manifest_that_is_a_directory_raises(step):
    (step / "manifest.json").unlink()
    (step / "manifest.json").mkdir()
    for call in (gdsckpt.load, gdsckpt.verify):
        with pytest.raises(StorageError) as caught:
            call(step)
        assert caught.value.errno == 21  # EISDIR


def test_directory_of_several_ranks_is_not_loaded_in_part(step):
    (shard,) = step.glob("rank-*")
    (step / "rank-00001.pt").write_bytes(shard.read_bytes())

    def change(document):
        document["shards"].append({**document["shards"][0], "name": "rank-00001.pt"})
        document["world_size"] = 2

    rewrite(step, change)
    with pytest.raises(ConfigError, match="2 ranks"):
        gdsckpt.load(step)
    report = gdsckpt.verify(step)
    assert report.ok is True
    assert len(report.shards) == 2


def test_save_checkpoint_over_a_damaged_manifest_makes_it_whole(step):
    (step / "manifest.json").write_bytes(b"damaged")
    gdsckpt.save_checkpoint({"n": 2}, step, step=2)
    assert gdsckpt.load(step) == {"n": 2}
    assert len([*step.iterdir()]) == 2


def test_save_checkpoint_where_no_directory_can_be_raises(tmp_path):
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "dangling").symlink_to("nowhere")
    cases = [("file", 20), ("file/below", 20), ("no-dir/step", 2), ("dangling", 20)]
    for name, errno in cases:
        with pytest.raises(StorageError) as caught:
            gdsckpt.save_checkpoint(STATE, tmp_path / name, step=1)
        error = caught.value
        assert (error.op, error.path, error.errno) == ("mkdir", str(tmp_path / name), errno)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["dangling", "file"]


@pytest.mark.parametrize("step", [-1, 1.0, True, "1", None])
def test_save_checkpoint_of_a_wrong_step_raises(tmp_path, step):
    with pytest.raises(ConfigError) as caught:
        gdsckpt.save_checkpoint(STATE, tmp_path / "x", step=step)
    assert caught.value.field == "step"
    assert [*tmp_path.iterdir()] == []
