"""Engines from save to load, over stand-in GPUs: what is chosen, recorded and told."""

import json
import warnings

import pytest
from choosing import LOST, Machine, expect_stand_ins
from cufile_bench import in_child, pattern
from device_arrays import FakeArray

import gdsckpt
from gdsckpt.errors import EngineUnavailableError, FallbackWarning

MiB = 1 << 20
LARGE = pattern(9 * MiB)
"""Goes by cuFile; smaller ones go through the slabs."""


def warnings_of(call):
    """Call; gives the result and the texts of the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = call()
    assert all(issubclass(each.category, FallbackWarning) for each in caught)
    return result, [str(each.message) for each in caught]


def save(machine, name="a.pt", data=LARGE, **config):
    state = {"w": FakeArray(machine.cuda, data), "step": 7}
    return warnings_of(
        lambda: gdsckpt.save(state, machine.directory / name, config={"io_threads": 2, **config})
    )


def load_into(machine, name="a.pt", **config):
    state = {"w": FakeArray(machine.cuda, bytes(len(LARGE))), "step": 0}
    return warnings_of(
        lambda: gdsckpt.load(
            machine.directory / name, into=state, config={"io_threads": 2, **config}
        )
    )


@in_child()
def test_save_and_load_take_the_engine_that_was_proven(tmp_path):
    machine = Machine(tmp_path)
    report, told = save(machine)
    assert (report.engine, told) == ("cufile", [])
    assert report.engine_reasons[0] == "auto: cufile was proven to go by p2pdma"
    assert machine.cufile.stat("device_write_bytes") > 8 * MiB
    state, told = load_into(machine)
    assert told == []
    assert state["w"].read() == LARGE
    assert state["step"] == 7
    assert machine.cufile.stat("device_read_bytes") > 8 * MiB
    assert gdsckpt.verify(tmp_path / "a.pt", config={"engine": "cufile"}).ok
    assert machine.num_trials == 1


@in_child()
def test_state_in_host_memory_is_not_probed(tmp_path):
    import torch

    machine = Machine(tmp_path)
    report = gdsckpt.save({"w": torch.arange(1000)}, tmp_path / "a.pt")
    assert report.engine == "pinned"
    gdsckpt.load(tmp_path / "a.pt")
    assert machine.num_trials == 0


@in_child()
def test_lost_race_saves_by_pinned(tmp_path):
    machine = Machine(tmp_path)
    machine.race = LOST
    report, told = save(machine)
    assert (report.engine, told) == ("pinned", [])
    assert machine.cufile.calls("cuFileWrite") == 0
    assert load_into(machine)[0]["w"].read() == LARGE


@in_child()
def test_refusal_in_mid_save_is_recorded_in_report_and_manifest_and_told_once(tmp_path):
    machine = Machine(tmp_path)
    save(machine)
    machine.cufile("fault cuFileWrite code=5036 count=-1")
    state = {"w": FakeArray(machine.cuda, LARGE)}
    report, told = warnings_of(lambda: gdsckpt.save_checkpoint(state, tmp_path / "step-1", step=1))
    assert report.engine == "cufile"
    (reason,) = [reason for reason in report.engine_reasons if "5036" in reason]
    assert reason.startswith("from some point on GPU memory went through the host")
    manifest = json.loads((tmp_path / "step-1/manifest.json").read_text())
    assert reason in manifest["engine_reasons"]
    assert len(told) == 1
    assert "5036" in told[0]
    report, told = save(machine, "b.pt")
    assert any("5036" in reason for reason in report.engine_reasons)
    assert told == []
    for name in ("step-1", "b.pt"):
        assert gdsckpt.verify(tmp_path / name).ok
    assert load_into(machine, "b.pt")[0]["w"].read() == LARGE


@in_child()
def test_refusal_in_mid_load_is_told_once(tmp_path):
    machine = Machine(tmp_path)
    save(machine)
    machine.cufile("fault cuFileRead code=5008 count=-1")
    state, told = load_into(machine)
    assert state["w"].read() == LARGE
    assert len(told) == 1
    assert "5008" in told[0]
    assert load_into(machine)[1] == []


@in_child()
def test_memory_that_is_not_for_cufile_is_recorded(tmp_path):
    machine = Machine(tmp_path)
    state = {"w": FakeArray(machine.cuda, LARGE, kind="mapped"), "step": 7}
    report, told = warnings_of(lambda: gdsckpt.save(state, tmp_path / "a.pt"))
    assert any("expandable_segments" in reason for reason in report.engine_reasons)
    assert len(told) == 1
    assert load_into(machine)[0]["w"].read() == LARGE


@pytest.mark.parametrize("engine", ["auto", "pinned", "cufile"])
@in_child(cuda="fault cuMemHostRegister code=1 count=-1")
def test_slabs_that_cannot_be_page_locked_are_recorded(tmp_path, engine):
    machine = Machine(tmp_path)
    report, told = save(machine, engine=engine)
    assert any("page-locked" in reason for reason in report.engine_reasons)
    assert len(told) == 1
    assert load_into(machine)[0]["w"].read() == LARGE


@in_child(cufile="fault cuFileDriverOpen code=5001 count=-1")
def test_demand_that_cannot_be_met_saves_nothing(tmp_path):
    machine = Machine(tmp_path)
    (tmp_path / "to").mkdir()
    machine.directory = tmp_path / "to"
    with pytest.raises(EngineUnavailableError) as raised:
        save(machine, engine="cufile")
    assert "5001" in raised.value.reasons[0]
    assert list((tmp_path / "to").iterdir()) == []
    save(machine)
    with pytest.raises(EngineUnavailableError):
        load_into(machine, engine="cufile")


@in_child(cuda=None)
def test_demand_on_a_machine_without_a_gpu_holds_for_host_memory_too(tmp_path):
    import torch

    expect_stand_ins()
    state = {"w": torch.arange(10)}
    with pytest.raises(EngineUnavailableError) as raised:
        gdsckpt.save(state, tmp_path / "a.pt", config={"engine": "cufile"})
    assert raised.value.engine == "cufile"
    gdsckpt.save(state, tmp_path / "a.pt")
    with pytest.raises(EngineUnavailableError):
        gdsckpt.load(tmp_path / "a.pt", config={"engine": "cufile"})
