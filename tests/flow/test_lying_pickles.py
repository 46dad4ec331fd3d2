"""Pickles that lie about storages, or would run code: refused, with right or no data."""

import pickle

import crafting
import pytest
import torch
from crafting import Call, Storage, tensor

import gdsckpt
from gdsckpt.errors import ConfigError, FormatError, UnsafePickleError
from gdsckpt.format.table import TensorEntry

FOUR = torch.arange(4, dtype=torch.float32)
PAYLOADS = (FOUR.numpy().tobytes(), b"x" * 4096)

LIES = {
    "numel-beyond-record": tensor(Storage(numel=100), size=(100,)),
    "numel-huge": tensor(Storage(numel=2**60)),
    "numel-overflow": tensor(Storage(numel=2**62)),
    "numel-beyond-64-bits": tensor(Storage(numel=2**70)),
    "numel-negative": tensor(Storage(numel=-4)),
    "numel-zero": tensor(Storage(numel=0)),
    "numel-text": tensor(Storage(numel="4")),
    "size-beyond-storage": tensor(Storage(), size=(100,)),
    "size-huge": tensor(Storage(), size=(2**60,)),
    "size-negative": tensor(Storage(), size=(-4,)),
    "offset-beyond-storage": tensor(Storage(), offset=1000),
    "offset-negative": tensor(Storage(), offset=-1),
    "stride-beyond-storage": tensor(Storage(), stride=(100,)),
    "stride-negative": tensor(Storage(), stride=(-1,)),
    "shared-storage-grown": [tensor(Storage()), tensor(Storage(), size=(400,))],
    "second-claim-larger": [tensor(Storage()), tensor(Storage(numel=400), size=(400,))],
    "dtype-of-other-size": tensor(Storage(storage_type=torch.DoubleStorage)),
    "record-not-there": tensor(Storage(key="7")),
    "record-of-other-kind": tensor(Storage(key="../data.pkl", numel=1)),
    "record-empty-name": tensor(Storage(key="")),
    "persistent-id-odd": tensor(type("P", (Storage,), {"__init__": lambda s: None, "id": 7})()),
}


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("write", [crafting.write_ours, crafting.write_foreign])
@pytest.mark.parametrize("weights_only", [True, False])
@pytest.mark.parametrize("how", ["whole", "keys", "into"])
def test_load_of_a_pickle_that_lies_about_storages_raises(tmp_path, lie, write, weights_only, how):
    path = tmp_path / "lie.pt"
    write(path, crafting.pickled({"t": LIES[lie]}), *PAYLOADS)
    target = {"t": torch.full((4,), 7.0)}
    arguments = {"whole": {}, "keys": {"keys": "t"}, "into": {"into": target}}[how]
    with pytest.raises(gdsckpt.errors.GdsckptError) as caught:
        gdsckpt.load(path, weights_only=weights_only, **arguments)
    if how != "into":  # there the shapes may differ first
        assert isinstance(caught.value, FormatError)
        assert caught.value.path == str(path)
    assert torch.equal(target["t"], torch.full((4,), 7.0))


def test_load_of_a_pickle_with_an_unknown_location_raises(tmp_path):
    path = tmp_path / "lie.pt"
    crafting.write_ours(path, crafting.pickled(tensor(Storage(location="nowhere"))), *PAYLOADS)
    with pytest.raises(ConfigError) as caught:
        gdsckpt.load(path)
    assert caught.value.field == "map_location"
    assert torch.equal(gdsckpt.load(path, map_location="cpu"), FOUR)


def test_load_of_a_pickle_with_a_location_of_another_kind_raises(tmp_path):
    path = tmp_path / "lie.pt"
    crafting.write_ours(path, crafting.pickled(tensor(Storage(location=5))), *PAYLOADS)
    with pytest.raises(FormatError) as caught:
        gdsckpt.load(path)
    assert caught.value.path == str(path)


def test_load_of_a_truthful_crafted_pickle_gives_the_tensor(tmp_path):
    path = tmp_path / "truth.pt"
    for write in (crafting.write_ours, crafting.write_foreign):
        write(path, crafting.pickled({"t": tensor(Storage())}), *PAYLOADS)
        assert torch.equal(gdsckpt.load(path)["t"], FOUR)
        assert torch.equal(torch.load(path)["t"], FOUR)


@pytest.mark.parametrize("write", [crafting.write_ours, crafting.write_foreign])
def test_load_of_a_pickle_that_would_run_code_is_refused(tmp_path, write):
    path, ran = tmp_path / "evil.pt", tmp_path / "ran"
    write(path, crafting.pickled({"t": Call(open, str(ran), "w")}), *PAYLOADS)
    with pytest.raises(UnsafePickleError) as caught:
        gdsckpt.load(path)
    assert isinstance(caught.value, pickle.UnpicklingError)
    assert (caught.value.path, caught.value.offset) == (str(path), 0)
    for selection in ({"keys": "t"}, {"into": {"t": 1}}, {"map_location": "meta"}):
        with pytest.raises(UnsafePickleError):
            gdsckpt.load(path, **selection)
    assert not ran.exists()
    assert gdsckpt.verify(path).ok is (True if write is crafting.write_ours else None)
    assert not ran.exists()


def test_load_of_a_pickle_that_runs_code_loads_when_trusted(tmp_path):
    path, made = tmp_path / "trusted.pt", tmp_path / "made"
    crafting.write_ours(path, crafting.pickled({"n": Call(made.mkdir)}))
    assert gdsckpt.load(path, weights_only=False) == {"n": None}
    assert made.is_dir()


@pytest.mark.parametrize(
    "raw",
    [b"", b"\x80\x02", b"\x80\x02}", b"garbage", b"\x80\x02(((((", b"\x80\x09.", b"\x80\x02N"],
)
@pytest.mark.parametrize("weights_only", [True, False])
@pytest.mark.parametrize("write", [crafting.write_ours, crafting.write_foreign])
def test_load_of_a_broken_pickle_raises_format_error(tmp_path, raw, weights_only, write):
    path = tmp_path / "broken.pt"
    write(path, raw, *PAYLOADS)
    with pytest.raises(FormatError) as caught:
        gdsckpt.load(path, weights_only=weights_only)
    assert caught.value.path == str(path)


def test_load_of_a_missing_class_names_it(tmp_path):
    path = tmp_path / "class.pt"
    crafting.write_ours(path, b"\x80\x02cno_such_module\nNoSuchClass\n.", *PAYLOADS)
    with pytest.raises(FormatError, match="no_such_module"):
        gdsckpt.load(path, weights_only=False)


def test_verify_of_a_table_that_lies_about_tensors_is_harmless(tmp_path):
    path = tmp_path / "table.pt"
    lie = TensorEntry("t", "float32", (10**9,), None, 10**9, -5)
    crafting.write_ours(path, crafting.pickled({"t": tensor(Storage())}), *PAYLOADS, tensors=[lie])
    assert gdsckpt.verify(path).ok is True
    assert torch.equal(gdsckpt.load(path)["t"], FOUR)
