from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from host_trees import DEVICE, EXT4, STATIC_BAR, gpu, p2pdma_host, put

from gdsckpt.engine import probe_cuda
from gdsckpt.engine.mounts import Mount
from gdsckpt.engine.probe_cufile import CuFileProbe, Sources, library_step, trial_steps
from gdsckpt.engine.probe_step import Finding, ProbeStep
from gdsckpt.engine.probe_trial import Trial, TrialSettings
from gdsckpt.engine.trial_cache import TrialCache

CHECKSUMS = Finding(ProbeStep("device_checksums", ok=True, reason="there"))
NO_CHECKSUMS = Finding(
    ProbeStep("device_checksums", ok=False, reason="numba-cuda is not installed", mend="pip"),
    rules_out=True,
)
PROVEN = Trial(way="p2pdma", version=1200, cufile_bytes_per_s=2e9, pinned_bytes_per_s=1e9)
FAILED = Trial(failure="5027", mend="mount /run/udev")


class Machine:
    """A machine, its trials, and probes of it as processes make them one after the other.

    Attributes:
        outcomes: Of the trials to come; the last one again and again.
        tried: UUIDs of the GPUs, in the order of their trials.
        place: File system and mount of all directories.
        has_numba: Whether what takes checksums on GPUs is installed.
        checksums: What is found when one is taken.
    """

    def __init__(self, tmp_path):
        self.tree = p2pdma_host(tmp_path / "host")
        self.cache = tmp_path / "cache"
        self.outcomes = [PROVEN]
        self.tried = []
        self.place = ("ext4", EXT4)
        self.has_numba = True
        self.checksums = CHECKSUMS
        self.now_s = 0.0

    def _run_trial(self, where, uuid, settings):
        self.tried.append(uuid)
        return self.outcomes[min(len(self.tried), len(self.outcomes)) - 1]

    def probe(self):
        """Start as a new process does."""
        return CuFileProbe(
            TrialSettings(libcufile="/there/is/no/libcufile.so.0"),
            TrialCache(self.cache),
            Sources(
                tree=self.tree,
                locate=lambda where: self.place,
                checksums=lambda: CHECKSUMS if self.has_numba else NO_CHECKSUMS,
                try_checksums=lambda libcuda: self.checksums,
                run_trial=self._run_trial,
                clock=lambda: self.now_s,
            ),
        )


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def test_verdict_of_a_good_machine(tmp_path, machine):
    verdict = machine.probe().verdict(tmp_path, [gpu()])
    assert verdict.is_proven
    assert verdict.obstacles == []
    assert verdict.trials == ((gpu(), PROVEN),)
    assert machine.tried == [gpu().uuid]


def test_verdict_is_remembered_in_the_process_and_by_the_next(tmp_path, machine):
    first = machine.probe()
    assert first.verdict(tmp_path, [gpu()]) is first.verdict(tmp_path, [gpu()])
    assert machine.probe().verdict(tmp_path, [gpu()]).is_proven
    assert len(machine.tried) == 1


def test_verdict_that_several_threads_ask_for_is_one_trial(tmp_path, machine):
    probe = machine.probe()
    with ThreadPoolExecutor(8) as pool:
        verdicts = list(pool.map(lambda _: probe.verdict(tmp_path, [gpu()]), range(16)))
    assert all(verdict is verdicts[0] for verdict in verdicts)
    assert len(machine.tried) == 1


def test_verdict_of_another_gpu_is_another_trial(tmp_path, machine):
    first = machine.probe()
    first.verdict(tmp_path, [gpu()])
    assert first.verdict(tmp_path, [gpu(), gpu(1)]).is_proven
    assert machine.tried == [gpu().uuid, gpu(1).uuid]


def test_verdict_of_a_rank_is_that_of_a_probe_of_all(tmp_path, machine):
    all_gpus = [gpu(number, pci_bus_id=f"0000:{number:02X}:00.0") for number in range(4)]
    machine.probe().verdict_anew(tmp_path, all_gpus)
    assert machine.probe().verdict(tmp_path, [all_gpus[2]]).is_proven
    assert len(machine.tried) == 4


def test_verdict_after_a_start_of_the_machine_is_a_new_trial(tmp_path, machine):
    machine.probe().verdict(tmp_path, [gpu()])
    put(tmp_path / "host", "proc/sys/kernel/random/boot_id", "another")
    machine.probe().verdict(tmp_path, [gpu()])
    assert len(machine.tried) == 2


def test_verdict_with_a_damaged_cache_is_a_new_trial(tmp_path, machine):
    machine.probe().verdict(tmp_path, [gpu()])
    (path,) = (tmp_path / "cache").iterdir()
    path.write_bytes(path.read_bytes()[:-9])
    assert machine.probe().verdict(tmp_path, [gpu()]).is_proven
    assert len(machine.tried) == 2


def test_verdict_without_a_place_for_the_cache_is_a_trial_per_process(tmp_path, machine):
    (tmp_path / "cache").touch()
    first = machine.probe()
    for _ in range(2):
        assert first.verdict(tmp_path, [gpu()]).is_proven
    assert machine.probe().verdict(tmp_path, [gpu()]).is_proven
    assert len(machine.tried) == 2


def test_verdict_anew_makes_trials_and_refreshes_what_is_remembered(tmp_path, machine):
    machine.outcomes = [FAILED, PROVEN]
    assert not machine.probe().verdict(tmp_path, [gpu()]).is_proven
    assert machine.probe().verdict_anew(tmp_path, [gpu()]).is_proven
    assert machine.probe().verdict(tmp_path, [gpu()]).is_proven
    assert len(machine.tried) == 2


def test_failed_verdict_is_found_out_again_for_a_demand(tmp_path, machine):
    machine.outcomes = [FAILED, FAILED, PROVEN]
    first = machine.probe()
    assert first.verdict(tmp_path, [gpu()]).obstacles == [("cuda:0: 5027", "mount /run/udev")]
    assert not first.verdict(tmp_path, [gpu()]).is_proven
    assert len(machine.tried) == 1
    assert not first.verdict(tmp_path, [gpu()], retry=True).is_proven
    assert machine.probe().verdict(tmp_path, [gpu()], retry=True).is_proven
    assert len(machine.tried) == 3


def test_failed_verdict_is_not_believed_for_the_life_of_a_process(tmp_path, machine):
    machine.outcomes = [Trial(failure="no memory on the GPU", is_passing=True), PROVEN]
    machine.cache.write_text("not a directory, so nothing is remembered but here")
    probe = machine.probe()
    for now_s, is_proven in ((0, False), (3600, False), (3601, True), (99999, True)):
        machine.now_s = now_s
        assert probe.verdict(tmp_path, [gpu()]).is_proven == is_proven
    assert len(machine.tried) == 2


def test_one_gpu_that_fails_is_enough(tmp_path, machine):
    machine.outcomes = [PROVEN, FAILED]
    verdict = machine.probe().verdict(tmp_path, [gpu(), gpu(1), gpu(2)])
    assert not verdict.is_proven
    assert verdict.obstacles == [("cuda:1: 5027", "mount /run/udev")]
    assert len(machine.tried) == 2


def test_cheap_finding_makes_trials_needless(tmp_path, machine):
    (tmp_path / "host/proc/modules").unlink()
    (tmp_path / f"host/run/udev/data/b{DEVICE}").unlink()
    verdict = machine.probe().verdict(tmp_path, [gpu()])
    assert not verdict.is_proven
    assert [reason.partition(" ")[0] for reason, _ in verdict.obstacles] == [
        "/proc/modules",
        f"/run/udev/data/b{DEVICE}",
    ]
    assert all(mend for _, mend in verdict.obstacles)
    assert machine.tried == []


def test_missing_checksums_make_trials_needless(tmp_path, machine):
    machine.has_numba = False
    verdict = machine.probe().verdict(tmp_path, [gpu()])
    assert verdict.obstacles == [("numba-cuda is not installed", "pip")]
    assert machine.tried == []


def test_checksums_that_fail_make_trials_needless(tmp_path, machine):
    machine.checksums = NO_CHECKSUMS
    verdict = machine.probe().verdict_anew(tmp_path, [gpu()])
    assert verdict.obstacles == [("numba-cuda is not installed", "pip")]
    assert [f.step.name for f in verdict.findings].count("device_checksums") == 1
    assert machine.tried == []


OVERLAY = Mount("0:40", "/", "overlay", "overlay", "rw")


@pytest.mark.parametrize(
    ("kind", "mount", "trial", "setup", "is_warned"),
    [
        ("ext4", EXT4, FAILED, True, True),
        ("ext4", EXT4, FAILED, False, False),  # nobody wanted GDS here
        ("ext4", EXT4, PROVEN, True, False),
        ("overlayfs", OVERLAY, PROVEN, True, True),  # a container's usual trap
        ("nfs", replace(OVERLAY, kind="nfs"), PROVEN, True, False),  # not meant to be reached
        ("tmpfs", replace(OVERLAY, kind="tmpfs"), PROVEN, True, False),
    ],
    ids=["failed", "not set up", "proven", "overlay", "nfs", "tmpfs"],
)
def test_warning_is_for_who_gets_less_than_was_set_up(
    tmp_path, machine, kind, mount, trial, setup, is_warned
):
    machine.place = (kind, mount)
    machine.outcomes = [trial]
    params = STATIC_BAR if setup else 'RegistryDwords: ""'
    put(tmp_path / "host", "proc/driver/nvidia/params", params)
    verdict = machine.probe().verdict(tmp_path, [gpu()])
    assert verdict.is_worth_a_warning == is_warned


def test_steps_of_trials(tmp_path, machine):
    machine.outcomes = [PROVEN, replace(PROVEN, cufile_bytes_per_s=5e8)]
    verdict = machine.probe().verdict_anew(tmp_path, [gpu(), gpu(1)])
    trial, race = trial_steps(verdict, "")
    assert trial.ok
    assert "cuda:1: 16 MiB written and read back by p2pdma" in trial.reason
    assert not race.ok
    assert race.reason == (
        "cuda:0: cufile wrote 2 GB/s, pinned 1 GB/s; cuda:1: cufile wrote 500 MB/s, pinned 1 GB/s"
    )


def test_steps_of_a_failed_trial(tmp_path, machine):
    machine.outcomes = [FAILED]
    (trial,) = trial_steps(machine.probe().verdict_anew(tmp_path, [gpu()]), "")
    assert (trial.ok, trial.reason, trial.mend) == (False, "cuda:0: 5027", "mount /run/udev")


def test_steps_without_a_trial_say_why(tmp_path, machine):
    (trial,) = trial_steps(machine.probe().cheap_verdict(tmp_path, []), "there is no GPU")
    assert (trial.name, trial.ok, trial.reason) == (
        "cufile_trial",
        False,
        "not tried: there is no GPU",
    )


def test_library_step():
    look = probe_cuda.Look("", 13000, (), "", "/lib/libcufile.so.0", 1200, "")
    assert library_step(look).reason == "cuFile 1.20, /lib/libcufile.so.0"
    missing = library_step(replace(look, cufile_missing="no cuFile: none"))
    assert not missing.ok
    assert "pip install nvidia-cufile" in missing.mend
