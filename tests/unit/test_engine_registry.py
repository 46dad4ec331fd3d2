import warnings

import pytest
from choosing import LOST, Machine, expect_stand_ins
from cufile_bench import in_child
from host_trees import DEVICE, gpu

from gdsckpt import kernels, native
from gdsckpt.config import Config
from gdsckpt.engine import registry
from gdsckpt.engine.probe_cufile import Verdict
from gdsckpt.engine.probe_gpu import GpuReport, examine
from gdsckpt.engine.probe_step import Finding, ProbeStep
from gdsckpt.engine.probe_trial import Trial
from gdsckpt.engine.registry import choose_engine, decide, foresee
from gdsckpt.errors import CudaError, EngineUnavailableError, FallbackWarning

GPU = [0]


def choose(directory, engine="auto", devices=GPU, **settings):
    return choose_engine(Config(engine=engine, **settings), directory=directory, devices=devices)


def told(directory, **arguments):
    """Choose; gives the choice and the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        choice = choose(directory, **arguments)
    assert all(issubclass(each.category, FallbackWarning) for each in caught)
    return choice, [str(each.message) for each in caught]


@in_child()
def test_auto_takes_what_was_proven(tmp_path):
    machine = Machine(tmp_path)
    choice, told_of = told(tmp_path)
    assert choice.engine.name == "cufile"
    assert choice.reasons == (
        "auto: cufile was proven to go by p2pdma",
        "cuda:0: cufile wrote 3 GB/s, pinned 1 GB/s",
    )
    assert told_of == []
    assert native.cufile_facts()["is_open"]
    assert choose(tmp_path).engine is choice.engine
    assert machine.num_trials == 1


@in_child()
def test_auto_with_host_memory_looks_at_nothing(tmp_path):
    machine = Machine(tmp_path)
    for devices in ([], [native.HOST], {native.HOST}):
        choice = choose(tmp_path, devices=devices)
        assert choice.engine.name == "pinned"
        assert choice.reasons == ("auto: nothing of it is in GPU memory",)
    assert machine.num_trials == 0
    assert machine.cufile.calls("cuFileDriverOpen") == 0
    assert machine.cuda.calls("cuDeviceGetName") == 0


@in_child(cufile="fault cuFileDriverOpen code=5001 count=-1")
def test_auto_without_gds_is_silent(tmp_path):
    machine = Machine(tmp_path)
    choice, told_of = told(tmp_path)
    assert choice.engine.name == "pinned"
    assert "auto: not cufile: cuda:0: cuFileDriverOpen failed" in choice.reasons[0]
    assert told_of == []
    assert choose(tmp_path).engine.name == "pinned"
    assert machine.num_trials == 1
    assert machine.cufile.calls("cuFileDriverOpen") == 0  # in the child only


@in_child(cufile="fault cuFileHandleRegister code=5027 count=-1")
def test_auto_warns_once_where_gds_was_set_up(tmp_path):
    Machine(tmp_path, is_set_up=True)
    choice, told_of = told(tmp_path)
    assert choice.engine.name == "pinned"
    (text,) = told_of
    assert "5027" in text
    assert "/run/udev:/run/udev:ro" in text
    assert "engine=pinned" in text
    assert told(tmp_path)[1] == []


@in_child(cufile="set silent_posix=1")
def test_auto_does_not_believe_in_silent_posix(tmp_path):
    Machine(tmp_path)
    choice, _ = told(tmp_path)
    assert choice.engine.name == "pinned"
    assert "did not say so" in choice.reasons[0]


@in_child()
def test_auto_with_a_lost_race_is_pinned_and_silent(tmp_path):
    Machine(tmp_path, is_set_up=True).race = LOST
    choice, told_of = told(tmp_path)
    assert choice.engine.name == "pinned"
    assert choice.reasons == (
        "auto: cufile works, but was not as fast as pinned",
        "cuda:0: cufile wrote 1 GB/s, pinned 3 GB/s",
    )
    assert told_of == []


@in_child(cuda="attribute device=0 number=100 value=1")
def test_auto_on_grace_is_pinned_without_a_trial(tmp_path):
    machine = Machine(tmp_path, is_set_up=True)
    choice, told_of = told(tmp_path)
    assert choice.engine.name == "pinned"
    assert "cuda:0 is coherent" in choice.reasons[0]
    assert told_of == []
    assert machine.num_trials == 0


@in_child()
def test_auto_with_two_gpus_needs_both(tmp_path):
    machine = Machine(tmp_path)
    assert choose(tmp_path, devices=[1, 0]).engine.name == "cufile"
    assert machine.num_trials == 2


@in_child()
def test_auto_takes_a_cheap_finding_for_an_answer(tmp_path):
    machine = Machine(tmp_path, is_set_up=True)
    (tmp_path / f"host/run/udev/data/b{DEVICE}").unlink()
    choice, told_of = told(tmp_path)
    assert choice.engine.name == "pinned"
    assert len(told_of) == 1
    assert machine.num_trials == 0


@in_child()
def test_auto_where_the_process_cannot_do_what_the_child_could(tmp_path):
    Machine(tmp_path)

    def warm_up(number):
        raise EngineUnavailableError("no kernel", reasons=["numba-cuda cannot be imported"])

    kernels.warm_up = warm_up
    choice, told_of = told(tmp_path)
    assert choice.engine.name == "pinned"
    assert "not in this one: numba-cuda cannot be imported" in choice.reasons[0]
    assert len(told_of) == 1
    assert told(tmp_path)[1] == []
    with pytest.raises(EngineUnavailableError) as raised:
        choose(tmp_path, "cufile")
    assert raised.value.reasons == ("numba-cuda cannot be imported",)


@in_child()
def test_auto_where_a_kernel_fails(tmp_path):
    Machine(tmp_path)

    def warm_up(number):
        raise CudaError("cuModuleLoadData failed", op="cuModuleLoadData", code=209)

    kernels.warm_up = warm_up
    choice, told_of = told(tmp_path)
    assert choice.engine.name == "pinned"
    assert "cuModuleLoadData failed" in told_of[0]


@in_child()
def test_auto_where_somebody_opened_cufile_with_compatibility_mode(tmp_path):
    machine = Machine(tmp_path)
    machine.cufile.library.cuFileDriverOpen()
    choice, told_of = told(tmp_path)
    assert choice.engine.name == "pinned"
    assert "compatibility mode" in choice.reasons[0]
    assert len(told_of) == 1


@in_child()
def test_auto_without_direct_io_is_pinned(tmp_path):
    machine = Machine(tmp_path)
    assert choose(tmp_path, direct_io="off").reasons == ("auto: not cufile: direct_io=off",)
    assert choose(None).engine.name == "pinned"
    assert machine.num_trials == 0


@in_child()
def test_choice_is_remembered_by_the_next_process(tmp_path):
    machine = Machine(tmp_path)
    assert choose(tmp_path).engine.name == "cufile"
    machine.start()
    assert choose(tmp_path).engine.name == "cufile"
    assert machine.num_trials == 1


@in_child()
def test_pinned_is_taken_when_asked_for(tmp_path):
    machine = Machine(tmp_path)
    choice = choose(tmp_path, "pinned")
    assert choice.engine.name == "pinned"
    assert choice.reasons == ("asked for by the setting engine=pinned",)
    assert machine.num_trials == 0


@pytest.mark.parametrize("devices", [GPU, []], ids=["gpu", "host"])
@in_child()
def test_demand_is_met_whoever_is_faster(tmp_path, devices):
    Machine(tmp_path).race = LOST
    choice = choose(tmp_path, "cufile", devices)
    assert choice.engine.name == "cufile"
    assert choice.reasons == ("asked for by the setting engine=cufile, and proven to go by p2pdma",)


@in_child(cuda="attribute device=0 number=100 value=1")
def test_demand_is_met_on_grace(tmp_path):
    Machine(tmp_path)
    assert choose(tmp_path, "cufile").engine.name == "cufile"


@in_child(cufile="fault cuFileHandleRegister code=5027 count=-1")
def test_demand_that_cannot_be_met_has_reason_and_mend(tmp_path):
    machine = Machine(tmp_path)
    with pytest.raises(EngineUnavailableError) as raised:
        choose(tmp_path, "cufile")
    assert raised.value.engine == "cufile"
    assert len(raised.value.reasons) == 1
    assert "5027" in raised.value.reasons[0]
    assert "/run/udev:/run/udev:ro" in str(raised.value)
    with pytest.raises(EngineUnavailableError):
        choose(tmp_path, "cufile")
    assert machine.num_trials == 2  # who demands may have mended it


@in_child()
def test_demand_has_all_reasons(tmp_path):
    machine = Machine(tmp_path)
    machine.place = ("tmpfs", None)
    (tmp_path / "host/proc/modules").unlink()
    with pytest.raises(EngineUnavailableError) as raised:
        choose(tmp_path, "cufile")
    assert [reason.partition(" ")[0] for reason in raised.value.reasons] == [
        "/proc/modules",
        "tmpfs:",
    ]


@in_child()
def test_demand_without_direct_io_is_refused(tmp_path):
    Machine(tmp_path)
    with pytest.raises(EngineUnavailableError, match="direct_io=off"):
        choose(tmp_path, "cufile", direct_io="off")


@in_child(cuda="set devices=0")
def test_demand_without_a_gpu(tmp_path):
    expect_stand_ins()
    with pytest.raises(EngineUnavailableError) as raised:
        choose(tmp_path, "cufile", [])
    assert "CUDA_ERROR_NO_DEVICE" in raised.value.reasons[0]


@in_child(cuda=None)
def test_demand_without_a_driver(tmp_path):
    expect_stand_ins()
    with pytest.raises(EngineUnavailableError) as raised:
        choose(tmp_path, "cufile", [])
    assert raised.value.reasons[0].startswith("no CUDA driver: ")


# A probe of all there is, as `gdsckpt probe` makes it.


def steps_of(found):
    return {step.name: step for step in found.steps}


@in_child()
def test_probe_tries_every_gpu_and_is_remembered(tmp_path):
    machine = Machine(tmp_path)
    found = examine(tmp_path, registry.cufile_probe(Config()))
    assert machine.num_trials == 2
    steps = steps_of(found)
    assert steps["cufile_trial"].ok
    assert "cuda:1: 16 MiB written and read back by p2pdma" in steps["cufile_trial"].reason
    assert steps["cufile_race"].ok
    assert foresee(Config(), found).name == "cufile"
    machine.start()
    assert choose(tmp_path).engine.name == "cufile"
    assert machine.num_trials == 2
    examine(tmp_path, registry.cufile_probe(Config()))
    assert machine.num_trials == 4


@in_child(cufile="hang cuFileDriverOpen")
def test_probe_of_a_driver_that_hangs(tmp_path):
    machine = Machine(tmp_path)
    machine.timeout_s = 3.0
    machine.start()
    found = examine(tmp_path, registry.cufile_probe(Config()))
    step = steps_of(found)["cufile_trial"]
    assert not step.ok
    assert "had not ended during cuFileDriverOpen after 3 s" in step.reason
    assert foresee(Config(), found).name == "pinned"
    assert choose(tmp_path).engine.name == "pinned"
    assert machine.num_trials == 2  # of the probe: a new process believes it


# Decisions, without anything behind them.

PROVEN = Trial(way="nvidia-fs", cufile_bytes_per_s=2e9, pinned_bytes_per_s=1e9)
NO_UDEV = Finding(ProbeStep("udev", ok=False, reason="no udev", mend="mount it"), rules_out=True)


def verdict(*trials, findings=(), looks_installed=False):
    made = tuple((gpu(number), trial) for number, trial in enumerate(trials))
    return Verdict(tuple(findings), made, looks_installed)


def test_decide_without_gpus():
    assert decide([], None).name == "pinned"


def test_decide_for_a_race_without_end():
    found = verdict(Trial(way="p2pdma", race_failure="late"))
    decision = decide([gpu()], found)
    assert decision.name == "pinned"
    assert "no end of the race: late" in decision.reasons[1]


def test_decide_names_every_obstacle():
    decision = decide([gpu()], verdict(findings=[NO_UDEV], looks_installed=True))
    assert decision.reasons == ("auto: not cufile: no udev",)
    assert "no udev. mount it" in decision.warning


STEP = ProbeStep("kvikio", ok=False, reason="not installed")


@pytest.mark.parametrize(
    ("engine", "found", "name"),
    [
        ("auto", verdict(PROVEN), "cufile"),
        ("auto", verdict(findings=[NO_UDEV]), "pinned"),
        ("cufile", verdict(PROVEN), "cufile"),
        ("cufile", verdict(findings=[NO_UDEV]), ""),
        ("cufile", verdict(), ""),
        ("pinned", verdict(PROVEN), "pinned"),
        ("kvikio", verdict(PROVEN), ""),
    ],
    ids=["auto", "auto without", "cufile", "cufile without", "untried", "pinned", "kvikio"],
)
def test_foresee(engine, found, name):
    decision = foresee(Config(engine=engine), GpuReport((STEP,), (gpu(),), found, ""))
    assert decision.name == name
    assert decision.reasons
