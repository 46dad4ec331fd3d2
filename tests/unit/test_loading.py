import io
import os
import pickle
import socket
import threading
import zipfile
from pathlib import Path

import pytest
import torch
from states import assert_same
from torch._subclasses.fake_tensor import FakeTensorMode

import gdsckpt
from gdsckpt.errors import (
    CheckpointNotFoundError,
    ChecksumError,
    ConfigError,
    FormatError,
    UnsafePickleError,
    UnverifiedWarning,
)

STATE = {
    "model": {"w": torch.arange(600_000.0).reshape(600, 1000), "b": torch.ones(7)},
    "optim": {"state": {0: {"exp_avg": torch.full((600, 1000), 0.5)}}, "lr": 0.1},
    "step": 7,
}


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "a.pt"
    gdsckpt.save(STATE, path)
    return path


def rewrite(source, target, change):
    """Copy a zip archive record by record through ``change(name, bytes)``; None drops one."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for info in old.infolist():
            payload = change(info.filename, old.read(info.filename))
            if payload is not None:
                new.writestr(zipfile.ZipInfo(info.filename), payload)


def flip(path, offset, bit=1):
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ bit]))


class TestMapLocation:
    @pytest.mark.parametrize(
        "map_location",
        [None, "cpu", torch.device("cpu"), {"cpu": "cpu"}, {}, lambda storage, tag: storage],
    )
    def test_load_map_location_in_each_form_equals_torch(self, saved, map_location):
        assert_same(torch.load(saved, map_location), gdsckpt.load(saved, map_location))

    @pytest.mark.parametrize("map_location", ["meta", torch.device("meta")])
    def test_load_to_meta_gives_shapes_only(self, saved, map_location):
        assert_same(torch.load(saved, map_location), gdsckpt.load(saved, map_location))

    def test_load_callable_sees_finished_bytes(self, saved):
        seen = []

        def look(storage, tag):
            seen.append((tag, bytes(storage[:4])))

        gdsckpt.load(saved, look)
        one = torch.ones(1).numpy().tobytes()
        assert ("cpu", one) in seen
        assert len(seen) == 3

    def test_load_exception_of_callable_passes_unchanged(self, saved):
        class MineError(Exception):
            pass

        def fail(storage, tag):
            raise MineError("mine")

        with pytest.raises(MineError):
            gdsckpt.load(saved, fail)

    def test_load_to_absent_device_is_a_config_error(self, saved):
        with pytest.raises(ConfigError) as caught:
            gdsckpt.load(saved, "cuda:7")
        assert caught.value.field == "map_location"

    def test_load_map_location_of_wrong_type_fails_before_reading(self, tmp_path):
        with pytest.raises(ConfigError) as caught:
            gdsckpt.load(tmp_path / "absent.pt", 5)
        assert caught.value.field == "map_location"

    def test_load_under_fake_mode_reads_no_data(self, saved):
        with FakeTensorMode():
            loaded = gdsckpt.load(saved)
        assert loaded["model"]["w"].shape == (600, 1000)


class TestInto:
    def blank(self):
        return {
            "model": {"w": torch.zeros(600, 1000), "b": torch.zeros(7)},
            "optim": {"state": {0: {"exp_avg": torch.zeros(600, 1000)}}, "lr": 0.0},
            "step": 0,
        }

    def test_load_into_fills_in_place(self, saved):
        target = self.blank()
        tensors = [target["model"]["w"], target["model"]["b"]]
        versions = [t._version for t in tensors]
        result = gdsckpt.load(saved, into=target)
        assert result is target
        assert target["model"]["w"] is tensors[0]
        assert all(t._version > v for t, v in zip(tensors, versions, strict=True))
        assert_same(STATE, target)

    def test_load_into_module_parameters_trains_on(self, tmp_path):
        source, target = torch.nn.Linear(300, 400), torch.nn.Linear(300, 400)
        gdsckpt.save(source.state_dict(), tmp_path / "a.pt")
        gdsckpt.load(tmp_path / "a.pt", into=target.state_dict())
        assert torch.equal(source.weight, target.weight)
        assert target.weight.requires_grad

    @pytest.mark.parametrize(
        ("change", "field", "value"),
        [
            (lambda s: s["model"].pop("b"), "unexpected", ("model.b",)),
            (lambda s: s["model"].update(c=torch.ones(1)), "missing", ("model.c",)),
            (
                lambda s: s["model"].update(b=torch.zeros(8)),
                "shapes",
                {"model.b": ((7,), (8,))},
            ),
        ],
    )
    def test_load_into_other_structure_changes_nothing(self, saved, change, field, value):
        target = self.blank()
        change(target)
        with pytest.raises(gdsckpt.errors.StateMismatchError) as caught:
            gdsckpt.load(saved, into=target)
        assert getattr(caught.value, field) == value
        assert not target["model"]["w"].any()
        assert target["step"] == 0

    def test_load_into_converts_dtype_and_layout_as_copy_does(self, saved):
        target = self.blank()
        target["model"]["w"] = torch.zeros(1000, 600, dtype=torch.float64).t()
        gdsckpt.load(saved, into=target)
        assert torch.equal(target["model"]["w"], STATE["model"]["w"].double())
        assert not target["model"]["w"].is_contiguous()

    def test_load_into_tied_tensors_and_views_of_one_buffer(self, tmp_path):
        weight = torch.arange(200_000.0)
        flat = torch.arange(10.0)
        state = {"a": weight, "b": weight, "left": flat[:4], "right": flat[4:]}
        gdsckpt.save(state, tmp_path / "a.pt")
        target = {key: torch.zeros_like(value) for key, value in state.items()}
        gdsckpt.load(tmp_path / "a.pt", into=target)
        for key, value in state.items():
            assert torch.equal(target[key], value), key

    def test_load_into_two_names_of_one_tensor_writes_it_by_one_writer(self, tmp_path):
        state = {"a": torch.ones(300_000), "b": torch.ones(300_000)}
        gdsckpt.save(state, tmp_path / "a.pt")
        shared = torch.zeros(300_000)
        gdsckpt.load(tmp_path / "a.pt", into={"a": shared, "b": shared})
        assert torch.equal(shared, state["a"])

    def test_load_into_part_by_keys_leaves_the_rest(self, saved):
        target = self.blank()
        gdsckpt.load(saved, into=target, keys="model")
        assert_same(STATE["model"], target["model"])
        assert target["step"] == 0
        assert not target["optim"]["state"][0]["exp_avg"].any()

    def test_load_into_damaged_tensor_raises_and_names_it(self, saved):
        flip(saved, 70_000)
        with pytest.raises(ChecksumError) as caught:
            gdsckpt.load(saved, into=self.blank())
        assert caught.value.fqn == "model.w"

    def test_load_into_with_map_location_is_refused(self, saved):
        with pytest.raises(ConfigError) as caught:
            gdsckpt.load(saved, "cpu", into=self.blank())
        assert caught.value.field == "map_location"

    def test_load_into_sets_other_kinds_of_leaves(self, tmp_path):
        state = {"sparse": torch.eye(3).to_sparse(), "q": None, "l": [1, torch.ones(2)]}
        gdsckpt.save(state, tmp_path / "a.pt")
        target = {"sparse": torch.zeros(3, 3).to_sparse(), "q": 5, "l": [0, torch.zeros(2)]}
        gdsckpt.load(tmp_path / "a.pt", into=target)
        assert torch.equal(target["sparse"].to_dense(), torch.eye(3))
        assert target["q"] is None
        assert target["l"][0] == 1
        assert torch.equal(target["l"][1], torch.ones(2))


class TestKeys:
    @pytest.mark.parametrize(
        ("keys", "expected"),
        [
            ("model", {"model": STATE["model"]}),
            ("model.b", {"model": {"b": STATE["model"]["b"]}}),
            (["model.b", "step"], {"model": {"b": STATE["model"]["b"]}, "step": 7}),
            (lambda name: name.endswith("lr"), {"optim": {"lr": 0.1}}),
        ],
    )
    def test_load_keys_gives_the_part(self, saved, keys, expected):
        assert_same(expected, gdsckpt.load(saved, keys=keys))

    def test_load_keys_reads_nothing_of_the_rest(self, saved):
        flip(saved, 70_000)  # in model.w
        assert_same(STATE["optim"], gdsckpt.load(saved, keys="optim")["optim"])
        with pytest.raises(ChecksumError):
            gdsckpt.load(saved, keys="model.w")

    def test_load_keys_prefix_is_whole_components(self, tmp_path):
        gdsckpt.save({"ab": 1, "a": {"b": 2}}, tmp_path / "a.pt")
        assert gdsckpt.load(tmp_path / "a.pt", keys="a") == {"a": {"b": 2}}

    def test_load_keys_without_match_names_them(self, saved):
        with pytest.raises(gdsckpt.errors.StateMismatchError) as caught:
            gdsckpt.load(saved, keys=["model", "modle"])
        assert caught.value.missing == ("modle",)

    def test_load_keys_keeps_length_of_lists(self, tmp_path):
        gdsckpt.save({"l": [torch.ones(1), torch.zeros(1)], "t": (1, 2)}, tmp_path / "a.pt")
        loaded = gdsckpt.load(tmp_path / "a.pt", keys=["l.1", "t.0"])
        assert_same({"l": [None, torch.zeros(1)], "t": (1, None)}, loaded)

    def test_load_keys_of_file_of_stock_torch(self, tmp_path):
        torch.save(STATE, tmp_path / "a.pt")
        assert_same({"step": 7}, gdsckpt.load(tmp_path / "a.pt", keys="step"))

    def test_load_keys_of_wrong_kind_is_a_config_error(self, saved):
        with pytest.raises(ConfigError) as caught:
            gdsckpt.load(saved, keys=[1])
        assert caught.value.field == "keys"

    def test_load_keys_with_whole_module_loads_all_of_it(self, tmp_path):
        module = torch.nn.Linear(200, 300)
        gdsckpt.save({"m": module, "x": torch.ones(100_000)}, tmp_path / "a.pt")
        loaded = gdsckpt.load(tmp_path / "a.pt", keys="m", weights_only=False)
        assert_same({"m": module}, loaded)


class TestForeignFiles:
    @pytest.mark.parametrize("weights_only", [True, False])
    def test_load_file_of_stock_torch(self, tmp_path, weights_only):
        torch.save(STATE, tmp_path / "a.pt")
        loaded = gdsckpt.load(tmp_path / "a.pt", weights_only=weights_only)
        assert_same(STATE, loaded)

    def test_load_file_of_stock_torch_with_a_flip_is_found(self, tmp_path):
        path = tmp_path / "a.pt"
        torch.save(STATE, path)
        flip(path, 100_000)
        with pytest.raises(ChecksumError) as caught:
            gdsckpt.load(path)
        assert caught.value.record == "a/data/0"

    def test_load_legacy_file_warns_that_nothing_was_checked(self, tmp_path):
        torch.save(STATE, tmp_path / "a.pt", _use_new_zipfile_serialization=False)
        with pytest.warns(UnverifiedWarning):
            assert_same(STATE, gdsckpt.load(tmp_path / "a.pt"))
        assert gdsckpt.verify(tmp_path / "a.pt").ok is None

    def test_load_file_without_checksums_warns(self, tmp_path):
        torch.serialization.set_crc32_options(False)
        try:
            torch.save(STATE, tmp_path / "a.pt")
        finally:
            torch.serialization.set_crc32_options(True)
        with pytest.warns(UnverifiedWarning):
            assert_same(STATE, gdsckpt.load(tmp_path / "a.pt"))
        report = gdsckpt.verify(tmp_path / "a.pt")
        assert report.ok is None
        assert "no checksum" in report.reason

    @pytest.mark.parametrize("alignment", [64, 4096])
    def test_load_file_of_stock_torch_with_its_own_alignment(self, tmp_path, alignment):
        from torch.utils.serialization import config

        with config.patch("save.storage_alignment", alignment):
            torch.save(STATE, tmp_path / "a.pt")
        assert_same(STATE, gdsckpt.load(tmp_path / "a.pt"))

    def test_load_foreign_byte_order(self, tmp_path):
        torch.save({"w": torch.arange(5.0), "n": torch.arange(3)}, tmp_path / "a.pt")
        item_nbytes = {"a/data/0": 4, "a/data/1": 8}

        def swap(name, payload):
            if name.endswith("byteorder"):
                return b"big"
            size = item_nbytes.get(name, 1)
            return b"".join(payload[n : n + size][::-1] for n in range(0, len(payload), size))

        rewrite(tmp_path / "a.pt", tmp_path / "big.pt", lambda n, p: swap(n, p))
        loaded = gdsckpt.load(tmp_path / "big.pt")
        assert_same({"w": torch.arange(5.0), "n": torch.arange(3)}, loaded)

    def test_load_with_calculated_storage_offsets_switched_on(self, saved, tmp_path):
        from torch.utils.serialization import config

        torch.save(STATE, tmp_path / "b.pt")
        with config.patch("load.calculate_storage_offsets", True):
            assert_same(STATE, gdsckpt.load(saved))
            assert_same(STATE, gdsckpt.load(tmp_path / "b.pt"))
            assert_same(STATE, torch.load(saved, mmap=True))

    @pytest.mark.filterwarnings("ignore:'torch.load' received a zip file that looks like")
    @pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
    def test_load_torchscript_goes_to_torch(self, tmp_path):
        module = torch.jit.script(torch.nn.Linear(2, 2))
        module.save(str(tmp_path / "a.pt"))
        loaded = gdsckpt.load(tmp_path / "a.pt", weights_only=False)
        assert torch.equal(loaded.weight, module.weight)

    @pytest.mark.parametrize(
        "content",
        [b"", b"x", b"hello world" * 100, bytes(range(256)) * 20],
        ids=["empty", "one byte", "text", "binary"],
    )
    def test_load_other_files_is_a_format_error(self, tmp_path, content):
        path = tmp_path / "a.pt"
        path.write_bytes(content)
        for read in (gdsckpt.load, gdsckpt.verify):
            with pytest.raises(FormatError) as caught:
                read(path)
            assert caught.value.path == str(path)
            assert not isinstance(caught.value, pickle.UnpicklingError)

    def test_load_cut_zip_of_stock_torch_is_damaged(self, tmp_path):
        torch.save(STATE, tmp_path / "a.pt")
        os.truncate(tmp_path / "a.pt", 1_000_000)
        with pytest.raises(FormatError) as caught:
            gdsckpt.load(tmp_path / "a.pt")
        assert "cut short" in str(caught.value)
        assert gdsckpt.verify(tmp_path / "a.pt").ok is False

    def test_load_zip_without_pickle_is_a_format_error(self, tmp_path):
        with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
            archive.writestr("a/b", "c")
        with pytest.raises(FormatError) as caught:
            gdsckpt.load(tmp_path / "a.zip")
        assert "data.pkl" in str(caught.value)

    def test_load_absent_file_is_not_found(self, tmp_path):
        for read in (gdsckpt.load, gdsckpt.verify):
            with pytest.raises(CheckpointNotFoundError) as caught:
                read(tmp_path / "absent.pt")
            assert caught.value.path == str(tmp_path / "absent.pt")

    def test_load_directory_without_manifest_is_not_found(self, tmp_path):
        for read in (gdsckpt.load, gdsckpt.verify):
            with pytest.raises(CheckpointNotFoundError):
                read(tmp_path)


class TestUnsafePickles:
    def test_load_refuses_code_and_runs_none_of_it(self, tmp_path):
        marker = tmp_path / "ran"

        class Evil:
            def __reduce__(self):
                return (os.mkdir, (str(marker),))

        gdsckpt.save({"x": Evil()}, tmp_path / "a.pt")
        with pytest.raises(UnsafePickleError) as caught:
            gdsckpt.load(tmp_path / "a.pt")
        assert isinstance(caught.value, pickle.UnpicklingError)
        assert caught.value.path == str(tmp_path / "a.pt")
        assert not marker.exists()

    def test_load_class_that_is_gone_is_a_format_error(self, tmp_path, monkeypatch):
        module = type(os)("vanishing")
        cls = type("Thing", (), {"__module__": "vanishing"})
        module.Thing = cls
        monkeypatch.setitem(__import__("sys").modules, "vanishing", module)
        gdsckpt.save({"x": cls()}, tmp_path / "a.pt")
        monkeypatch.delitem(__import__("sys").modules, "vanishing")
        with pytest.raises(FormatError) as caught:
            gdsckpt.load(tmp_path / "a.pt", weights_only=False)
        assert isinstance(caught.value.__cause__, ModuleNotFoundError)


class TestFileObjects:
    def test_load_from_bytes_io(self, saved):
        assert_same(STATE, gdsckpt.load(io.BytesIO(saved.read_bytes())))

    def test_load_from_open_file(self, saved):
        with saved.open("rb") as file:
            assert_same(STATE, gdsckpt.load(file))

    def test_load_from_a_position_in_a_file(self, saved, tmp_path):
        (tmp_path / "b").write_bytes(b"before" + saved.read_bytes())
        with (tmp_path / "b").open("rb") as file:
            file.seek(6)
            assert_same(STATE, gdsckpt.load(file))

    def test_save_and_load_through_a_socket(self, saved):
        left, right = socket.socketpair()
        with left, right:
            writer = threading.Thread(target=self._send, args=(left,))
            writer.start()
            with right.makefile("rb") as source:
                loaded = gdsckpt.load(source)
            writer.join()
        assert_same(STATE, loaded)

    @staticmethod
    def _send(sock):
        with sock.makefile("wb") as sink:
            gdsckpt.save(STATE, sink)
        sock.shutdown(socket.SHUT_WR)

    def test_load_flipped_stream_is_found(self, saved):
        flip(saved, 70_000)
        with pytest.raises(ChecksumError):
            gdsckpt.load(io.BytesIO(saved.read_bytes()))


class TestChecksums:
    def test_load_flip_names_file_tensor_record_and_offset(self, saved):
        flip(saved, 65536 + 5)
        with pytest.raises(ChecksumError) as caught:
            gdsckpt.load(saved)
        error = caught.value
        assert (error.path, error.shard, error.fqn) == (str(saved), "a.pt", "model.w")
        assert (error.record, error.offset) == ("archive/data/0", 4096)
        assert error.expected != error.actual

    @pytest.mark.parametrize(
        "options", [{"verify": False}, {"config": {"checksum": "none"}}], ids=["verify", "config"]
    )
    def test_load_without_verification_returns_what_is_there(self, saved, options):
        flip(saved, 65536 + 5)
        loaded = gdsckpt.load(saved, **options)
        assert not torch.equal(loaded["model"]["w"], STATE["model"]["w"])
        assert torch.equal(loaded["model"]["b"], STATE["model"]["b"])

    def test_load_of_unused_record_damaged_is_right_data(self, saved, tmp_path):
        report = gdsckpt.verify(saved)
        assert report.ok is True
        flip(saved, 4000)  # in the gap before the first payload
        assert_same(STATE, gdsckpt.load(saved))
        report = gdsckpt.verify(saved)
        assert report.ok is False
        assert report.damaged[0].what == "chunk 0, between records"


class TestReadAhead:
    @pytest.mark.parametrize("read_ahead", ["1MiB", "256MiB"])
    def test_load_many_waves_in_any_order_of_keys(self, tmp_path, read_ahead):
        state = {f"t{n}": torch.full((1_500_000,), float(n)) for n in range(8)}
        gdsckpt.save(state, tmp_path / "a.pt")
        config = {"read_ahead_bytes": read_ahead}
        assert_same(state, gdsckpt.load(tmp_path / "a.pt", config=config))

    def test_load_damage_in_a_later_wave_ends_the_transfers(self, tmp_path):
        path = tmp_path / "a.pt"
        gdsckpt.save({f"t{n}": torch.ones(5_000_000) for n in range(4)}, path)
        flip(path, path.stat().st_size - 1_000_000)
        before = len(list(Path("/proc/self/fd").iterdir()))
        with pytest.raises(ChecksumError) as caught:
            gdsckpt.load(path)
        assert caught.value.fqn == "t3"
        assert len(list(Path("/proc/self/fd").iterdir())) == before
