import re

import pytest
import torch
from remote_cases import SMALL_PARTS, many_ranks

import gdsckpt
from gdsckpt.config import Config
from gdsckpt.errors import CheckpointExistsError, CheckpointNotFoundError, FormatError
from gdsckpt.remote.crew import Crew
from gdsckpt.remote.uploader import Uploader
from gdsckpt.store.answers import Answer
from gdsckpt.store.wrapped import WrappedStore
from gdsckpt.testing.faulty_store import Fault, FaultyStore

CONFIG = Config(upload_part_bytes="5MiB")


@pytest.fixture
def checkpoint(tmp_path):
    path = tmp_path / "step-1"
    gdsckpt.save_checkpoint({"w": torch.arange(5.0)}, path, step=1)
    return path


def test_upload_of_a_directory_is_its_shards_and_last_its_manifest(checkpoint, bucket):
    report = gdsckpt.upload(checkpoint, bucket.url("run/step-1"))
    names = sorted(path.name for path in checkpoint.iterdir())
    assert bucket.list_keys() == [f"run/step-1/{name}" for name in names]
    for name in names:
        assert bucket.read(f"run/step-1/{name}") == (checkpoint / name).read_bytes()
    assert (report.num_objects, report.crc32) == (1, None)
    again = gdsckpt.upload(checkpoint, bucket.url("run/step-1/"))
    assert again.sent_bytes == 0


def test_upload_of_a_directory_that_fails_has_no_manifest(checkpoint, bucket):
    store = FaultyStore(bucket.store, Fault("put", Answer(403, "AccessDenied"), skip=1))
    with Crew(2) as crew, pytest.raises(PermissionError):
        Uploader(store, crew, "step", CONFIG).upload_directory(str(checkpoint), None)
    assert [re.sub(r"rank-.*", "shard", key) for key in bucket.list_keys()] == ["step/shard"]


def test_upload_of_a_newer_checkpoint_replaces_the_older_one(checkpoint, bucket):
    url = bucket.url("last")
    gdsckpt.upload(checkpoint, url)
    older = bucket.list_keys()
    gdsckpt.save_checkpoint({"w": torch.ones(3)}, checkpoint, step=2)
    gdsckpt.upload(checkpoint, url)
    assert len(bucket.list_keys()) == 2
    assert set(bucket.list_keys()) & set(older) == {"last/manifest.json"}
    assert torch.equal(gdsckpt.load(url)["w"], torch.ones(3))


@pytest.mark.parametrize("slash", ["", "/"])
@pytest.mark.parametrize("how", ["upload", "save_checkpoint"])
def test_checkpoint_where_an_object_would_hide_it_is_refused(checkpoint, bucket, how, slash):
    bucket.put("last", b"an object")
    calls = {
        "upload": lambda url: gdsckpt.upload(checkpoint, url),
        "save_checkpoint": lambda url: gdsckpt.save_checkpoint({"w": torch.ones(3)}, url, step=2),
    }
    with pytest.raises(CheckpointExistsError, match="readers would find that") as caught:
        calls[how](bucket.url(f"last{slash}"))
    assert caught.value.path == bucket.url("last")
    assert bucket.list_keys() == ["last"]


def test_upload_over_a_damaged_manifest_replaces_it(checkpoint, bucket):
    bucket.put("last/manifest.json", b"{}")
    gdsckpt.upload(checkpoint, bucket.url("last"))
    assert bucket.read("last/manifest.json") == (checkpoint / "manifest.json").read_bytes()


def test_upload_of_a_directory_whose_manifest_races_with_another_wins_or_tries_again(
    checkpoint, bucket
):
    class Racing(WrappedStore):
        num_races = 0

        def put(self, key, body, **more):
            if key == "last/manifest.json" and self.num_races < 2:
                self.num_races += 1
                bucket.put(key, b"another one %d" % self.num_races)
            return super().put(key, body, **more)

    with Crew(2) as crew:
        Uploader(Racing(bucket.store), crew, "last", CONFIG).upload_directory(str(checkpoint), None)
    assert bucket.read("last/manifest.json") == (checkpoint / "manifest.json").read_bytes()


def test_upload_again_while_another_replaces_it_leaves_a_whole_checkpoint(
    checkpoint, bucket, tmp_path
):
    url = bucket.url("last")
    gdsckpt.upload(checkpoint, url)
    gdsckpt.save_checkpoint({"w": torch.ones(3)}, tmp_path / "other", step=2)

    class Racing(WrappedStore):
        """The other one is committed, and our shard removed, right after we have seen it."""

        def head(self, key):
            info = super().head(key)
            if key.endswith(".pt"):
                gdsckpt.upload(tmp_path / "other", url)
            return info

    with Crew(2) as crew:
        Uploader(Racing(bucket.store), crew, "last", CONFIG).upload_directory(str(checkpoint), None)
    assert gdsckpt.verify(url).ok
    assert len(bucket.list_keys()) == 2


def test_upload_over_a_manifest_that_cannot_be_read_says_that_shards_stay(
    checkpoint, bucket, caplog
):
    gdsckpt.upload(checkpoint, bucket.url("last"))
    gdsckpt.save_checkpoint({"w": torch.ones(3)}, checkpoint, step=2)
    store = FaultyStore(bucket.store, Fault("get_range", Answer(500, "InternalError")))
    with Crew(2) as crew:
        Uploader(store, crew, "last", CONFIG).upload_directory(str(checkpoint), None)
    assert "stay" in caplog.text


def test_upload_whose_old_shards_stay_succeeds(checkpoint, bucket, caplog):
    gdsckpt.upload(checkpoint, bucket.url("last"))
    gdsckpt.save_checkpoint({"w": torch.ones(3)}, checkpoint, step=2)
    store = FaultyStore(bucket.store, Fault("delete", Answer(403, "AccessDenied")))
    with Crew(2) as crew:
        Uploader(store, crew, "last", CONFIG).upload_directory(str(checkpoint), None)
    assert "stay" in caplog.text
    assert len(bucket.list_keys()) == 3


def test_upload_of_a_directory_without_a_manifest_is_refused(tmp_path, bucket):
    with pytest.raises(CheckpointNotFoundError):
        gdsckpt.upload(tmp_path, bucket.url("last"))


def test_upload_of_a_directory_whose_shard_was_exchanged_is_refused(checkpoint, bucket):
    (shard,) = checkpoint.glob("rank-*")
    gdsckpt.save({"w": torch.arange(5.0) + 1}, shard)
    with pytest.raises(FormatError, match="is not the shard that the manifest names"):
        gdsckpt.upload(checkpoint, bucket.url("last"))
    assert bucket.list_keys() == []


def test_upload_of_a_directory_without_its_shard_says_which(checkpoint, bucket):
    (shard,) = checkpoint.glob("rank-*")
    shard.unlink()
    with pytest.raises(CheckpointNotFoundError, match=shard.name):
        gdsckpt.upload(checkpoint, bucket.url("last"))


def test_upload_of_many_ranks_sends_large_shards_in_parts(tmp_path, bucket):
    directory = many_ranks(tmp_path / "step", sizes=[1000, 2_000_000, 10, 3_000_000])
    report = gdsckpt.upload(directory, bucket.url("step"), config=SMALL_PARTS)
    assert report.num_objects == 4
    assert report.num_parts == 1 + 2 + 1 + 3
    assert len(bucket.list_keys()) == 5
    gdsckpt.fetch(bucket.url("step"), tmp_path / "back", config=SMALL_PARTS)
    for path in directory.iterdir():
        assert (tmp_path / "back" / path.name).read_bytes() == path.read_bytes()


def test_progress_of_many_ranks_only_grows(tmp_path, bucket):
    checkpoint = many_ranks(tmp_path / "step", [10, 2_000_000, 1_500_000])
    total = sum(path.stat().st_size for path in checkpoint.glob("*.pt"))
    sent, received = [], []
    gdsckpt.upload(
        checkpoint, bucket.url("m"), config=SMALL_PARTS, progress=lambda *both: sent.append(both)
    )
    gdsckpt.fetch(
        bucket.url("m"),
        tmp_path / "fetched",
        config=SMALL_PARTS,
        progress=lambda *both: received.append(both),
    )
    for seen in (sent, received):
        assert seen == sorted(seen)
        assert seen[-1] == (total, total)
