import errno
import os
import zlib

import pytest
import torch
from remote_cases import MiB, flipped, large_state, many_ranks, save_large
from root_cases import finish, start

import gdsckpt
from gdsckpt.config import Config
from gdsckpt.errors import (
    CheckpointNotFoundError,
    ChecksumError,
    ConfigError,
    FormatError,
    StorageError,
    StoreError,
    UnverifiedWarning,
)
from gdsckpt.format import manifest as manifest_format
from gdsckpt.remote.downloader import Fetcher
from gdsckpt.remote.opening import find_place
from gdsckpt.staging import files
from gdsckpt.store.answers import Answer
from gdsckpt.store.wrapped import WrappedStore
from gdsckpt.testing.faulty_store import Fault, FaultyStore

CONFIG = Config()


def fetches_from(store, key, target, crew):
    """Fetch an object from a store without retries."""
    return Fetcher(find_place(store, crew, key), CONFIG).fetch_file(target, None)


def names_in(directory):
    return sorted(path.name for path in directory.iterdir())


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    return save_large(tmp_path_factory.mktemp("saved") / "a.pt").read_bytes()


@pytest.fixture
def checkpoint(bucket):
    """A checkpoint in the store; gives the names of its objects."""
    gdsckpt.save_checkpoint(large_state(), bucket.url("run/step-7"), step=7)
    return [key.removeprefix("run/step-7/") for key in bucket.list_keys()]


def test_fetch_of_an_object_is_the_file(bucket, raw, tmp_path):
    bucket.put("a.pt", raw)
    report = gdsckpt.fetch(bucket.url("a.pt"), tmp_path / "b.pt")
    assert (tmp_path / "b.pt").read_bytes() == raw
    assert names_in(tmp_path) == ["b.pt"]
    assert report == gdsckpt.FetchReport(
        url=bucket.url("a.pt"),
        path=str(tmp_path / "b.pt"),
        nbytes=len(raw),
        num_objects=1,
        is_verified=True,
        seconds=report.seconds,
        direct_io=report.direct_io,
        crc32=zlib.crc32(raw),
    )


@pytest.mark.parametrize("chunk_bytes", ["64KiB", "1MiB", "16MiB", "24MiB"])
def test_fetch_takes_any_chunk_size(bucket, tmp_path, chunk_bytes):
    state = {"w": torch.arange(5_000_000), "b": torch.ones(3)}
    config = {"chunk_bytes": chunk_bytes, "fsync": False}
    gdsckpt.save(state, tmp_path / "a.pt", config=config)
    gdsckpt.upload(tmp_path / "a.pt", bucket.url("a.pt"))
    gdsckpt.fetch(bucket.url("a.pt"), tmp_path / "b.pt")
    assert (tmp_path / "b.pt").read_bytes() == (tmp_path / "a.pt").read_bytes()


def test_fetch_tells_progress_up_to_the_end(bucket, raw, tmp_path):
    bucket.put("a.pt", raw)
    seen = []
    gdsckpt.fetch(bucket.url("a.pt"), tmp_path / "b", progress=lambda *args: seen.append(args))
    assert seen[-1] == (len(raw), len(raw))


def test_fetch_into_a_directory_takes_the_last_part_of_the_key(bucket, raw, tmp_path):
    bucket.put("run/7/a.pt", raw)
    report = gdsckpt.fetch(bucket.url("run/7/a.pt"), tmp_path)
    assert report.path == str(tmp_path / "a.pt")
    assert (tmp_path / "a.pt").read_bytes() == raw


def test_fetch_of_a_key_that_is_kept_for_temporary_files_wants_a_path(bucket, tmp_path):
    key = "run/.gdsckpt-tmp-1"
    bucket.put(key, b"anything")
    with pytest.raises(ConfigError) as caught:
        gdsckpt.fetch(bucket.url(key), tmp_path)
    assert caught.value.field == "path"
    assert names_in(tmp_path) == []


def test_fetch_into_a_directory_that_is_missing_is_refused(bucket, raw, tmp_path):
    bucket.put("a.pt", raw)
    with pytest.raises(ConfigError, match="no directory"):
        gdsckpt.fetch(bucket.url("a.pt"), f"{tmp_path}/missing/")
    with pytest.raises(StorageError) as caught:
        gdsckpt.fetch(bucket.url("a.pt"), tmp_path / "missing" / "a.pt")
    assert caught.value.errno == errno.ENOENT


def test_fetch_over_a_file_keeps_its_mode_and_follows_a_link(bucket, raw, tmp_path):
    (tmp_path / "old").write_bytes(b"old")
    (tmp_path / "old").chmod(0o640)
    (tmp_path / "link").symlink_to("old")
    bucket.put("a.pt", raw)
    gdsckpt.fetch(bucket.url("a.pt"), tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "old").read_bytes() == raw
    assert (tmp_path / "old").stat().st_mode & 0o777 == 0o640


def test_fetch_over_what_is_no_file_is_refused(bucket, raw, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    bucket.put("a.pt", raw)
    with pytest.raises(StorageError, match="no regular file"):
        gdsckpt.fetch(bucket.url("a.pt"), tmp_path / "pipe")


@pytest.mark.parametrize("nbytes", [0, 1, 5000, 17 * MiB + 3])
def test_fetch_of_a_foreign_object_compares_the_checksum_of_the_store(bucket, tmp_path, nbytes):
    data = os.urandom(nbytes)
    bucket.put("any.bin", data)
    report = gdsckpt.fetch(bucket.url("any.bin"), tmp_path / "any.bin")
    assert (tmp_path / "any.bin").read_bytes() == data
    assert (report.is_verified, report.crc32) == (True, zlib.crc32(data))


def test_fetch_of_a_foreign_object_without_a_checksum_warns(tmp_path):
    (tmp_path / "any.bin").write_bytes(b"anything")  # no store wrote it
    with pytest.warns(UnverifiedWarning):
        report = gdsckpt.fetch((tmp_path / "any.bin").as_uri(), tmp_path / "back")
    assert not report.is_verified
    assert (tmp_path / "back").read_bytes() == b"anything"


def test_fetch_of_nothing_says_so(bucket, tmp_path):
    with pytest.raises(CheckpointNotFoundError) as caught:
        gdsckpt.fetch(bucket.url("a.pt"), tmp_path / "a.pt")
    assert caught.value.path == bucket.url("a.pt")


class Flipping(WrappedStore):
    """Flips a bit of some byte of the object, for a number of times."""

    def __init__(self, inner, at, times):
        super().__init__(inner)
        self._at = at
        self._times = times

    def get_range(self, key, begin, into, *, if_match=""):
        super().get_range(key, begin, into, if_match=if_match)
        if self._times and begin <= self._at < begin + into.nbytes:
            self._times -= 1
            into[self._at - begin] ^= 1


@pytest.mark.parametrize("at", ["payload", "table", "end", "beginning"])
def test_fetch_receives_again_what_was_flipped_on_the_way(bucket, raw, tmp_path, crew, at):
    offset = {"payload": 6 * MiB, "table": len(raw) - 1000, "end": len(raw) - 20, "beginning": 40}
    bucket.put("a.pt", raw)
    fetches_from(Flipping(bucket.store, offset[at], 1), "a.pt", tmp_path / "b.pt", crew)
    assert (tmp_path / "b.pt").read_bytes() == raw


def test_fetch_of_a_damaged_object_names_the_chunk_and_leaves_nothing(bucket, raw, tmp_path):
    bucket.put("a.pt", flipped(raw, 6 * MiB + 5))
    (tmp_path / "b.pt").write_bytes(b"the old one")
    with pytest.raises(ChecksumError, match="chunk 96, 65536 bytes") as caught:
        gdsckpt.fetch(bucket.url("a.pt"), tmp_path / "b.pt")
    assert (caught.value.path, caught.value.offset) == (bucket.url("a.pt"), 6 * MiB)
    assert (tmp_path / "b.pt").read_bytes() == b"the old one"
    assert names_in(tmp_path) == ["b.pt"]


def test_fetch_of_a_foreign_object_that_is_flipped_on_the_way_fails(bucket, tmp_path, crew):
    bucket.put("any.bin", b"anything")
    with pytest.raises(ChecksumError) as caught:
        fetches_from(Flipping(bucket.store, 3, 99), "any.bin", tmp_path / "any.bin", crew)
    assert caught.value.expected == zlib.crc32(b"anything")
    assert names_in(tmp_path) == []


def test_fetch_of_an_object_cut_short_is_refused(bucket, raw, tmp_path):
    bucket.put("a.pt", raw[: len(raw) // 2])
    with pytest.raises(FormatError, match="cut short"):
        gdsckpt.fetch(bucket.url("a.pt"), tmp_path / "b.pt")
    assert names_in(tmp_path) == []


def test_fetch_of_an_object_that_is_replaced_meanwhile_fails(bucket, raw, tmp_path, crew):
    class Replacing(WrappedStore):
        num_reads = 0

        def get_range(self, key, begin, into, *, if_match=""):
            self.num_reads += 1
            if self.num_reads == 3:
                bucket.put(key, raw)
            super().get_range(key, begin, into, if_match=if_match)

    bucket.put("a.pt", raw)
    with pytest.raises(StoreError, match="was replaced while it was read"):
        fetches_from(Replacing(bucket.store), "a.pt", tmp_path / "b.pt", crew)
    assert names_in(tmp_path) == []


def test_fetch_that_fails_half_way_leaves_nothing(bucket, raw, tmp_path, crew):
    bucket.put("a.pt", raw)
    store = FaultyStore(bucket.store, Fault("get_range", Answer(500, "InternalError"), skip=2))
    with pytest.raises(StoreError):
        fetches_from(store, "a.pt", tmp_path / "b.pt", crew)
    assert names_in(tmp_path) == []


def test_fetch_interrupted_by_its_progress_leaves_nothing(bucket, raw, tmp_path):
    def interrupt(_done, _total):
        raise KeyboardInterrupt

    bucket.put("a.pt", raw)
    with pytest.raises(KeyboardInterrupt):
        gdsckpt.fetch(bucket.url("a.pt"), tmp_path / "b.pt", progress=interrupt)
    assert names_in(tmp_path) == []


def test_fetch_without_direct_io_goes_through_the_page_cache(bucket, raw, tmp_path):
    bucket.put("a.pt", raw)
    report = gdsckpt.fetch(bucket.url("a.pt"), tmp_path / "b.pt", config={"direct_io": "off"})
    assert not report.direct_io
    assert (tmp_path / "b.pt").read_bytes() == raw


def test_fetch_of_a_checkpoint_is_a_directory(bucket, checkpoint, tmp_path):
    target = tmp_path / "step-7"
    report = gdsckpt.fetch(bucket.url("run/step-7"), target)
    assert names_in(target) == checkpoint
    for name in checkpoint:
        assert (target / name).read_bytes() == bucket.read(f"run/step-7/{name}")
    assert (report.num_objects, report.is_verified, report.crc32) == (1, True, None)
    assert gdsckpt.verify(target).ok


def test_fetch_of_a_checkpoint_over_another_replaces_it(bucket, checkpoint, tmp_path):
    target = tmp_path / "last"
    gdsckpt.save_checkpoint({"w": torch.ones(3)}, target, step=1)
    gdsckpt.fetch(bucket.url("run/step-7/"), target)
    assert names_in(target) == checkpoint


def test_fetch_of_a_checkpoint_follows_no_link_out_of_its_directory(bucket, checkpoint, tmp_path):
    outside = tmp_path / "precious"
    outside.write_text("mine")
    target = tmp_path / "step-7"
    target.mkdir()
    for name in checkpoint:
        (target / name).symlink_to(outside)
    gdsckpt.fetch(bucket.url("run/step-7"), target)
    assert outside.read_text() == "mine"
    assert gdsckpt.verify(target).ok


def test_fetch_of_a_checkpoint_into_a_directory_with_other_things_is_refused(
    bucket, checkpoint, tmp_path
):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="notes.txt"):
        gdsckpt.fetch(bucket.url("run/step-7"), tmp_path)
    assert names_in(tmp_path) == ["notes.txt"]


def test_fetch_of_a_checkpoint_that_fails_leaves_nothing(bucket, checkpoint, tmp_path):
    (shard,) = (name for name in checkpoint if name != "manifest.json")
    key = f"run/step-7/{shard}"
    bucket.put(key, flipped(bucket.read(key), MiB))
    with pytest.raises(ChecksumError):
        gdsckpt.fetch(bucket.url("run/step-7"), tmp_path / "step-7")
    assert names_in(tmp_path) == []


def test_fetch_of_a_checkpoint_that_fails_keeps_the_one_that_is_there(bucket, checkpoint, tmp_path):
    target = tmp_path / "last"
    gdsckpt.save_checkpoint({"w": torch.ones(3)}, target, step=1)
    before = names_in(target)
    (shard,) = (name for name in checkpoint if name != "manifest.json")
    bucket.store.delete(f"run/step-7/{shard}")
    with pytest.raises(CheckpointNotFoundError, match=shard):
        gdsckpt.fetch(bucket.url("run/step-7"), target)
    assert names_in(target) == before
    assert gdsckpt.verify(target).ok


def test_fetch_of_a_checkpoint_that_is_replaced_meanwhile_takes_the_new_one(
    bucket, checkpoint, tmp_path, crew
):
    place = find_place(bucket.store, crew, "run/step-7")
    gdsckpt.save_checkpoint({"w": torch.ones(3)}, bucket.url("run/step-7"), step=8)
    Fetcher(place, CONFIG).fetch_directory(tmp_path / "step", None)
    assert torch.equal(gdsckpt.load(tmp_path / "step")["w"], torch.ones(3))


LISTINGS = """
import sys
import gdsckpt
listed = []
def hook(event, given):
    if event in ("os.scandir", "os.listdir"):
        listed.append(str(given[0]))
sys.addaudithook(hook)
gdsckpt.fetch(sys.argv[1], sys.argv[2])
print(listed.count(sys.argv[2]))
"""


def test_fetch_of_a_checkpoint_does_not_list_the_directory_for_each_shard(tmp_path):
    counted = set()
    for num_shards in (1, 20):
        source = many_ranks(tmp_path / f"source-{num_shards}", sizes=[4] * num_shards)
        target = tmp_path / f"target-{num_shards}"
        counted.add(int(finish(start(LISTINGS, source.as_uri(), target))))
        assert names_in(target) == names_in(source)
    assert len(counted) == 1
    assert 0 < counted.pop() < 10


@pytest.mark.parametrize("to_directory", [False, True], ids=["file", "directory"])
def test_fetch_removes_what_a_killed_one_left(bucket, checkpoint, tmp_path, to_directory):
    (shard,) = (name for name in checkpoint if name != "manifest.json")
    key = "run/step-7" if to_directory else f"run/step-7/{shard}"
    target = tmp_path / "step" if to_directory else tmp_path / "step" / shard
    (tmp_path / "step").mkdir()
    with files.temporary_file(tmp_path / "step" / shard) as (_, temporary):
        pass
    temporary.write_bytes(b"left")
    gdsckpt.fetch(bucket.url(key), target)
    assert names_in(tmp_path / "step") == sorted(checkpoint if to_directory else [shard])


@pytest.mark.parametrize("name", ["../evil.pt", "/evil.pt", "a/b.pt", "..", "a\\b.pt"])
def test_fetch_of_a_checkpoint_whose_names_lead_elsewhere_is_refused(
    bucket, checkpoint, tmp_path, name
):
    import dataclasses

    manifest = manifest_format.decode(bucket.read("run/step-7/manifest.json"), "m")
    entry = dataclasses.replace(manifest.shards[0], name=name)
    bad = dataclasses.replace(manifest, shards=(entry,))
    bucket.put("run/step-7/manifest.json", manifest_format.encode(bad))
    with pytest.raises(FormatError, match="leads outside"):
        gdsckpt.fetch(bucket.url("run/step-7"), tmp_path / "step-7")
    assert names_in(tmp_path) == []


def test_fetch_of_a_checkpoint_with_a_foreign_shard_is_refused(bucket, checkpoint, tmp_path):
    (shard,) = (name for name in checkpoint if name != "manifest.json")
    bucket.put(f"run/step-7/{shard}", b"something else")
    with pytest.raises(FormatError, match="not the shard that the manifest names"):
        gdsckpt.fetch(bucket.url("run/step-7"), tmp_path / "step-7")
    assert names_in(tmp_path) == []


def test_fetch_of_a_huge_manifest_is_refused(bucket, tmp_path, monkeypatch):
    from gdsckpt.remote import opening

    monkeypatch.setattr(opening, "MANIFEST_MAX_BYTES", 10)
    bucket.put("step/manifest.json", b"{" + b" " * 20 + b"}")
    with pytest.raises(FormatError, match="which no manifest is"):
        gdsckpt.fetch(bucket.url("step"), tmp_path / "step")
