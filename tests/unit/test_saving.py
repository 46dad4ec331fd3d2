import io
import shutil
import subprocess
import sys
import zipfile
import zlib

import pytest
import torch
from states import DTYPES, ONLY_WITH_CODE, assert_same, every_dtype, every_kind

import gdsckpt
from gdsckpt.errors import ConfigError

KINDS = list(every_kind())


def stock_modes(path, *, weights_only):
    """Load with stock torch in all its modes."""
    yield torch.load(path, weights_only=weights_only)
    yield torch.load(path, weights_only=weights_only, mmap=True)
    with path.open("rb") as file:
        yield torch.load(io.BytesIO(file.read()), weights_only=weights_only)


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("name", DTYPES)
def test_save_every_dtype_loads_to_the_bit_here_and_in_stock_torch(tmp_path, name):
    state = {"t": every_dtype()[name]}
    path = tmp_path / "a.pt"
    gdsckpt.save(state, path)
    assert_same(state, gdsckpt.load(path))
    for loaded in stock_modes(path, weights_only=True):
        assert_same(state, loaded)


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
@pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta state")
@pytest.mark.parametrize("name", KINDS)
def test_save_every_kind_loads_to_the_bit_here_and_in_stock_torch(tmp_path, name):
    state = {"x": every_kind()[name]}
    path = tmp_path / "a.pt"
    gdsckpt.save(state, path)
    weights_only = name not in ONLY_WITH_CODE
    assert_same(state, gdsckpt.load(path, weights_only=weights_only))
    for loaded in stock_modes(path, weights_only=weights_only):
        assert_same(state, loaded)


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_save_everything_at_once_loads_and_verifies(tmp_path):
    state = every_kind()
    path = tmp_path / "a.pt"
    gdsckpt.save(state, path)
    assert_same(state, gdsckpt.load(path, weights_only=False))
    assert gdsckpt.verify(path).ok is True


def test_save_one_storage_of_several_dtypes_keeps_the_sharing(tmp_path):
    floats = torch.arange(8.0)
    state = {
        "ints": floats.view(torch.int32),
        "floats": floats,
        "shorts": floats.view(torch.uint16),
        "part": floats.view(torch.bfloat16)[1:3],
    }
    path = tmp_path / "a.pt"
    gdsckpt.save(state, path)
    for loaded in (gdsckpt.load(path), *stock_modes(path, weights_only=True)):
        assert_same(state, loaded)
        assert len({t.untyped_storage().data_ptr() for t in loaded.values()}) == 1


def test_save_storage_with_a_rest_smaller_than_an_element_keeps_all_its_bytes(tmp_path):
    raw = torch.arange(7, dtype=torch.uint8)
    first = torch.empty(0, dtype=torch.float32).set_(raw.untyped_storage(), 0, (1,))
    path = tmp_path / "a.pt"
    gdsckpt.save({"first": first, "raw": raw}, path)
    for loaded in (gdsckpt.load(path), *stock_modes(path, weights_only=True)):
        assert_same({"first": first, "raw": raw}, loaded)


def test_save_dtype_without_typed_storage_works_though_torch_refuses(tmp_path):
    state = {"t": torch.arange(4, dtype=torch.uint8).view(torch.uint4)}
    path = tmp_path / "a.pt"
    gdsckpt.save(state, path)
    loaded = torch.load(path)
    assert loaded["t"].dtype == torch.uint4
    assert bytes(loaded["t"].untyped_storage()) == bytes(range(4))


def test_save_untyped_storage_loads_as_stock_torch_loads_it(tmp_path):
    storage = torch.arange(5, dtype=torch.uint8).untyped_storage()
    path = tmp_path / "a.pt"
    gdsckpt.save({"s": storage}, path)
    loaded = gdsckpt.load(path)["s"]
    stock = torch.load(path)["s"]
    assert type(loaded) is type(stock)
    assert list(loaded.untyped()) == list(storage)


def test_save_tied_weights_are_written_once(tmp_path):
    weight = torch.randn(1000)
    path = tmp_path / "a.pt"
    report = gdsckpt.save({"a": weight, "b": weight, "c": weight[:10]}, path)
    assert report.payload_bytes == 4000
    assert report.num_tensors == 3
    loaded = gdsckpt.load(path)
    assert loaded["a"] is not None
    loaded["a"][0] = 42.0
    assert loaded["b"][0] == loaded["c"][0] == 42.0


def test_save_file_passes_zipfile(tmp_path):
    path = tmp_path / "a.pt"
    gdsckpt.save({"big": torch.randn(300_000), "small": torch.randn(3)}, path)
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None


@pytest.mark.skipif(shutil.which("unzip") is None, reason="unzip is not installed")
def test_save_file_passes_unzip(tmp_path):
    path = tmp_path / "a.pt"
    gdsckpt.save({"big": torch.randn(300_000), "small": torch.randn(3)}, path)
    done = subprocess.run(["unzip", "-t", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_save_same_state_twice_gives_the_same_bytes(tmp_path):
    state = {"w": torch.arange(1000.0), "n": 3}
    gdsckpt.save(state, tmp_path / "a.pt")
    gdsckpt.save(state, tmp_path / "b.pt")
    assert (tmp_path / "a.pt").read_bytes() == (tmp_path / "b.pt").read_bytes()


def test_save_to_stream_gives_the_bytes_of_the_file(tmp_path):
    state = {"big": torch.randn(3_000_000), "small": [torch.randn(3), torch.empty(0)]}
    config = {"chunk_bytes": "1MiB", "pinned_pool_bytes": "4MiB"}
    gdsckpt.save(state, tmp_path / "a.pt", config=config)
    sink = io.BytesIO()
    report = gdsckpt.save(state, sink, config=config)
    assert sink.getvalue() == (tmp_path / "a.pt").read_bytes()
    assert report.nbytes == len(sink.getvalue())


def test_save_report_says_what_was_written(tmp_path):
    path = tmp_path / "a.pt"
    report = gdsckpt.save({"w": torch.ones(1000), "v": torch.ones(10)}, path)
    assert report.path == str(path)
    assert report.nbytes == path.stat().st_size
    assert report.payload_bytes == 4040
    assert report.num_tensors == 2
    with zipfile.ZipFile(path) as archive:
        assert report.num_records == len(archive.infolist())
    assert report.crc32 == zlib.crc32(path.read_bytes())


def test_save_unpicklable_object_is_a_config_error_and_leaves_nothing(tmp_path):
    with pytest.raises(ConfigError) as caught:
        gdsckpt.save({"f": lambda: None}, tmp_path / "a.pt")
    assert caught.value.field == "obj"
    assert list(tmp_path.iterdir()) == []


def test_save_object_whose_reduce_raises_is_a_config_error(tmp_path):
    class Broken:
        def __reduce__(self):
            raise ZeroDivisionError("no")

    with pytest.raises(ConfigError) as caught:
        gdsckpt.save(Broken(), tmp_path / "a.pt")
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_save_to_something_that_is_no_file_is_a_config_error():
    with pytest.raises(ConfigError) as caught:
        gdsckpt.save({}, 3)
    assert caught.value.field == "f"


def test_save_state_without_tensors_works(tmp_path):
    for number, state in enumerate(({}, None, 5, "text", [1, {"a": ()}])):
        path = tmp_path / f"{number}.pt"
        gdsckpt.save(state, path)
        assert gdsckpt.load(path) == state == torch.load(path)


def test_save_many_small_tensors_crosses_chunks_and_zip64_entries(tmp_path):
    state = {f"t{n}": torch.full((3,), float(n)) for n in range(66_000)}
    path = tmp_path / "a.pt"
    gdsckpt.save(state, path, config={"chunk_bytes": "64KiB", "pinned_pool_bytes": "256KiB"})
    loaded = gdsckpt.load(path, weights_only=False)
    assert loaded["t65999"].tolist() == [65999.0] * 3
    assert gdsckpt.verify(path).ok is True
    with zipfile.ZipFile(path) as archive:
        assert len(archive.infolist()) == 66_000 + 5
    stock = torch.load(path, weights_only=False, mmap=True)
    assert all(torch.equal(stock[name], state[name]) for name in ("t0", "t33000", "t65999"))


def test_save_big_endian_host_is_written_as_such(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "byteorder", "big")
    gdsckpt.save({"t": torch.ones(1)}, tmp_path / "a.pt")
    with zipfile.ZipFile(tmp_path / "a.pt") as archive:
        assert archive.read("archive/byteorder") == b"big"


def test_save_progress_ends_at_the_total(tmp_path):
    seen = []
    gdsckpt.save(
        {"w": torch.ones(1_000_000)},
        tmp_path / "a.pt",
        progress=lambda done, total: seen.append((done, total)),
    )
    done, total = seen[-1]
    assert done == total >= 4_000_000
