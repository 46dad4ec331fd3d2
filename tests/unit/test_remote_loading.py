"""Loads, saves and checks by URL give what those of the same files give."""

import io
import tempfile
import warnings
from pathlib import Path

import pytest
import torch
from remote_cases import SMALL_CHUNKS, MiB, flipped, large_state, take_temporary_directories
from states import assert_same, every_dtype, every_kind

import gdsckpt
from gdsckpt.errors import (
    CheckpointNotFoundError,
    ChecksumError,
    ConfigError,
    FormatError,
    StateMismatchError,
    StorageError,
    UnsafePickleError,
    UnverifiedWarning,
)
from gdsckpt.remote.objects import RemoteObject
from gdsckpt.remote.opening import open_object
from gdsckpt.testing.faulty_store import FaultyStore


@pytest.fixture
def url(bucket):
    """A large state in the store."""
    gdsckpt.save(large_state(), bucket.url("a.pt"), config=SMALL_CHUNKS)
    return bucket.url("a.pt")


def stock_file(state, **options):
    sink = io.BytesIO()
    torch.save(state, sink, **options)
    return sink.getvalue()


def test_save_to_an_url_is_the_object_at_exactly_that_key(bucket, tmp_path):
    report = gdsckpt.save(large_state(), bucket.url("run/a.pt"), config=SMALL_CHUNKS)
    gdsckpt.save(large_state(), tmp_path / "a.pt", config=SMALL_CHUNKS)
    assert bucket.list_keys() == ["run/a.pt"]
    assert bucket.read("run/a.pt") == (tmp_path / "a.pt").read_bytes()
    assert (report.path, report.nbytes) == (bucket.url("run/a.pt"), len(bucket.read("run/a.pt")))
    assert report.upload_s > 0


def test_save_to_an_url_leaves_no_temporary_file(bucket, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    gdsckpt.save(large_state(), bucket.url("a.pt"))
    with pytest.raises(ConfigError):
        gdsckpt.save(large_state(), bucket.url(""))
    gdsckpt.load(bucket.url("a.pt"))
    assert list(tmp_path.iterdir()) == []


def test_save_to_an_url_without_a_temporary_directory_says_which(bucket, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(StorageError, match=str(tmp_path / "missing")):
        gdsckpt.save(large_state(), bucket.url("a.pt"))


def test_save_to_an_url_where_no_directory_can_be_written_says_what_to_set(bucket, monkeypatch):
    take_temporary_directories(monkeypatch)
    with pytest.raises(StorageError, match="TMPDIR"):
        gdsckpt.save(large_state(), bucket.url("a.pt"))


def test_save_to_an_url_tells_progress_of_both_halves(bucket):
    seen = []
    report = gdsckpt.save(
        large_state(), bucket.url("a.pt"), progress=lambda *args: seen.append(args)
    )
    assert seen[-1] == (2 * report.nbytes, 2 * report.nbytes)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_save_to_an_url_that_became_a_path_is_refused(tmp_path):
    for call in (lambda f: gdsckpt.save({}, f), gdsckpt.load, gdsckpt.verify):
        with pytest.raises(ConfigError, match="Pass it as a str"):
            call(Path("s3://bucket/a.pt"))


@pytest.mark.parametrize("text", ["gs://bucket/a.pt", "s3://", "s3:///a.pt", "https://host/a.pt"])
def test_url_of_no_store_is_refused(text):
    for call in (lambda f: gdsckpt.save({}, f), gdsckpt.load, gdsckpt.verify):
        with pytest.raises(ConfigError):
            call(text)


def test_load_of_every_kind_and_dtype_equals_that_of_the_file(bucket, tmp_path):
    state = {"kinds": every_kind(), "dtypes": every_dtype()}
    gdsckpt.save(state, tmp_path / "a.pt")
    gdsckpt.upload(tmp_path / "a.pt", bucket.url("a.pt"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls some of these kinds beta or deprecated
        expected = gdsckpt.load(tmp_path / "a.pt", weights_only=False)
        assert_same(expected, gdsckpt.load(bucket.url("a.pt"), weights_only=False))


@pytest.mark.parametrize("keys", ["model", ["model.bias", "step"], "model.weight"])
def test_load_of_keys_equals_that_of_the_file(url, keys, tmp_path):
    gdsckpt.fetch(url, tmp_path / "a.pt")
    assert_same(gdsckpt.load(tmp_path / "a.pt", keys=keys), gdsckpt.load(url, keys=keys))


def test_load_into_fills_in_place(url):
    state = {
        "model": {
            "weight": torch.zeros(2_000_000),
            "bias": torch.zeros(300, dtype=torch.float64),  # of another dtype
            "half": torch.zeros(1_500_000, dtype=torch.bfloat16),
        },
        "step": 0,
    }
    address = state["model"]["weight"].data_ptr()
    assert gdsckpt.load(url, into=state) is state
    assert state["model"]["weight"].data_ptr() == address
    assert torch.equal(state["model"]["weight"], large_state()["model"]["weight"])
    assert torch.equal(state["model"]["bias"], torch.arange(300.0).double())
    assert state["step"] == 7


def test_load_into_what_does_not_fit_changes_nothing(url):
    state = {"model": {"weight": torch.zeros(3)}}
    with pytest.raises(StateMismatchError):
        gdsckpt.load(url, into=state)
    assert torch.equal(state["model"]["weight"], torch.zeros(3))


@pytest.mark.parametrize(
    "location", ["cpu", torch.device("cpu"), {"cpu": "cpu"}, lambda storage, _tag: storage]
)
def test_load_with_any_map_location_equals_the_state(url, location):
    assert_same(large_state(), gdsckpt.load(url, location))


def test_load_to_meta_gives_shapes_only(url):
    assert gdsckpt.load(url, "meta")["model"]["weight"].device.type == "meta"


def test_load_with_small_read_ahead_equals_the_state(url):
    assert_same(large_state(), gdsckpt.load(url, config={"read_ahead_bytes": 0}))


def test_load_of_a_checkpoint_takes_its_shard(bucket):
    report = gdsckpt.save_checkpoint(large_state(), bucket.url("step-7"), step=7)
    assert report.path == bucket.url("step-7")
    assert_same(large_state(), gdsckpt.load(bucket.url("step-7")))
    assert_same(large_state(), gdsckpt.load(bucket.url("step-7/")))


def test_save_checkpoint_again_replaces_the_one_before(bucket):
    gdsckpt.save_checkpoint({"w": torch.zeros(3)}, bucket.url("last"), step=1)
    gdsckpt.save_checkpoint({"w": torch.ones(3)}, bucket.url("last"), step=2)
    assert torch.equal(gdsckpt.load(bucket.url("last"))["w"], torch.ones(3))
    assert len(bucket.list_keys()) == 2


def test_load_of_nothing_says_so(bucket):
    for call in (gdsckpt.load, gdsckpt.verify):
        with pytest.raises(CheckpointNotFoundError) as caught:
            call(bucket.url("a.pt"))
        assert caught.value.path == bucket.url("a.pt")


def test_load_of_a_damaged_object_names_the_tensor(bucket, url):
    bucket.put("a.pt", flipped(bucket.read("a.pt"), 2 * MiB))
    with pytest.raises(ChecksumError) as caught:
        gdsckpt.load(url)
    assert (caught.value.fqn, caught.value.path) == ("model.weight", url)
    loaded = gdsckpt.load(url, verify=False)
    assert not torch.equal(loaded["model"]["weight"], large_state()["model"]["weight"])
    assert torch.equal(gdsckpt.load(url, keys="model.half")["model"]["half"], half())


def half():
    return large_state()["model"]["half"]


def test_load_of_a_pickle_that_runs_code_is_refused(bucket):
    gdsckpt.save({"path": Path("a")}, bucket.url("a.pt"))
    with pytest.raises(UnsafePickleError):
        gdsckpt.load(bucket.url("a.pt"))
    assert gdsckpt.load(bucket.url("a.pt"), weights_only=False) == {"path": Path("a")}


@pytest.mark.parametrize("num_tensors", [1, 300])
def test_load_of_a_file_of_torch_equals_the_state(bucket, num_tensors):
    state = {f"w{n}": torch.full((40_000,), float(n)) for n in range(num_tensors)}
    bucket.put("stock.pt", stock_file(state))
    assert_same(state, gdsckpt.load(bucket.url("stock.pt")))
    assert gdsckpt.verify(bucket.url("stock.pt")).ok is None


def test_load_of_a_legacy_file_equals_the_state(bucket):
    bucket.put("old.pt", stock_file(large_state(), _use_new_zipfile_serialization=False))
    with pytest.warns(UnverifiedWarning):
        assert_same(large_state(), gdsckpt.load(bucket.url("old.pt")))
    assert gdsckpt.verify(bucket.url("old.pt")).ok is None


@pytest.mark.filterwarnings("ignore::gdsckpt.errors.UnverifiedWarning")
def test_load_of_safetensors_wants_a_file(bucket):
    from safetensors.torch import save

    bucket.put("a.safetensors", save({"w": torch.ones(3)}))
    with pytest.raises(FormatError, match="gdsckpt fetch"):
        gdsckpt.load(bucket.url("a.safetensors"))


@pytest.mark.parametrize("data", [b"", b"x", b"PK\x03\x04" + bytes(100), b"no checkpoint" * 100])
def test_load_of_another_kind_of_object_is_refused(bucket, data):
    bucket.put("a.bin", data)
    with pytest.raises(FormatError):
        gdsckpt.load(bucket.url("a.bin"))


def test_verify_reads_every_byte(bucket, url):
    report = gdsckpt.verify(url)
    assert report.ok
    assert (report.path, report.nbytes) == (url, len(bucket.read("a.pt")))
    assert report.checked_bytes == report.nbytes


@pytest.mark.parametrize("at", [100, 65536 + 5, 7 * MiB, -1000, -30])
def test_verify_finds_the_same_damage_as_in_the_file(bucket, url, tmp_path, at):
    raw = bucket.read("a.pt")
    damaged = flipped(raw, at % len(raw))
    bucket.put("a.pt", damaged)
    (tmp_path / "a.pt").write_bytes(damaged)
    here, there = gdsckpt.verify(tmp_path / "a.pt"), gdsckpt.verify(url)
    assert there.ok is here.ok is False
    for mine, theirs in zip(here.damaged, there.damaged, strict=True):
        assert (mine.offset, mine.nbytes, mine.tensors) == (
            theirs.offset,
            theirs.nbytes,
            theirs.tensors,
        )


def test_verify_of_a_checkpoint_checks_its_shards(bucket):
    gdsckpt.save_checkpoint(large_state(), bucket.url("step"), step=1)
    report = gdsckpt.verify(bucket.url("step"))
    assert report.ok
    (shard,) = (key for key in bucket.list_keys() if key.endswith(".pt"))
    assert report.shards[0].path == bucket.url(shard)
    bucket.put(shard, flipped(bucket.read(shard), MiB))
    damaged = gdsckpt.verify(bucket.url("step"))
    assert not damaged.ok
    assert damaged.damaged[0].tensors == ("model.weight",)
    bucket.store.delete(shard)
    assert "lacks its shard" in gdsckpt.verify(bucket.url("step")).reason


def test_verify_of_a_damaged_manifest_says_so(bucket):
    bucket.put("step/manifest.json", b"{}")
    report = gdsckpt.verify(bucket.url("step"))
    assert not report.ok
    assert "cannot be trusted" in report.reason


def test_open_object_receives_little_of_a_large_one(bucket, url, crew):
    store = FaultyStore(bucket.store)
    with open_object(RemoteObject.find(store, "a.pt"), crew) as opened:
        assert opened.shard.read_table().tensors
        assert opened.shard.read_record(opened.shard.find("data.pkl"))
    received = sum(call.nbytes for call in store.calls if call.op == "get_range")
    assert received <= MiB + (64 << 10)


def test_open_object_of_many_records_of_torch_asks_a_few_times(bucket, crew):
    state = {f"w{n}": torch.full((4_000,), float(n)) for n in range(300)}
    bucket.put("stock.pt", stock_file(state))
    store = FaultyStore(bucket.store)
    with open_object(RemoteObject.find(store, "stock.pt"), crew):
        pass
    assert len([call for call in store.calls if call.op == "get_range"]) < 10
