"""Which storage was where, read out of a pickle that is not run."""

import io
import pickle
import zipfile

import pytest
import torch
from states import every_kind

import gdsckpt
from gdsckpt.loading.places import location_tags


class Trap:
    """A pickle that would do something when it is run."""

    def __reduce__(self):
        return (exec, ("raise SystemExit('the pickle was run')",))


class Stored:
    """Stands for a storage in a pickle."""

    def __init__(self, pid):
        self.pid = pid


class Pickler(pickle.Pickler):
    def persistent_id(self, obj):
        return obj.pid if isinstance(obj, Stored) else None


def pickle_of(path):
    with zipfile.ZipFile(path) as archive:
        name = next(n for n in archive.namelist() if n.endswith("data.pkl"))
        return archive.read(name)


def persistent(*storages):
    """Pickle a state whose storages have these ids."""

    sink = io.BytesIO()
    Pickler(sink, protocol=2).dump([Trap(), *(Stored(pid) for pid in storages)])
    return sink.getvalue()


def test_location_tags_of_every_storage_without_running_the_pickle():
    raw = persistent(
        ("storage", torch.FloatStorage, "0", "cpu", 10),
        ("storage", torch.UntypedStorage, "1", "cuda:3", 4),
    )
    assert location_tags(raw) == {"0": "cpu", "1": "cuda:3"}


@pytest.mark.parametrize("raw", [b"", b"\x80\x02", b"no pickle", b"\x80\x02(" * 50, b"\x80\x02Q."])
def test_location_tags_of_a_broken_pickle_are_none(raw):
    assert location_tags(raw) == {}


def test_location_tags_stop_at_damage():
    raw = persistent(("storage", torch.FloatStorage, "0", "cpu", 10))
    assert location_tags(raw[:-2]) == {"0": "cpu"}


def test_location_tags_of_strange_ids_are_left_out():
    assert location_tags(persistent("a text", ("storage",), ("other", 1, 2, 3, 4))) == {}


@pytest.mark.parametrize("name", sorted(every_kind()))
def test_location_tags_of_what_save_writes_name_every_record(tmp_path, name):
    path = tmp_path / "state.pt"
    gdsckpt.save(every_kind()[name], path)
    with zipfile.ZipFile(path) as archive:
        keys = {n.rsplit("/", 1)[1] for n in archive.namelist() if "/data/" in n}
    tags = location_tags(pickle_of(path))
    assert set(tags) == keys
    assert set(tags.values()) <= {"cpu"}
