import json
from dataclasses import asdict, replace

import pytest
from fake_cuda import stand_ins
from host_trees import gpu, p2pdma_host, put

from gdsckpt.engine import probe_cuda, probe_trial
from gdsckpt.engine.probe_step import Finding, ProbeStep
from gdsckpt.engine.probe_trial import Trial, TrialSettings
from gdsckpt.engine.trial_cache import TrialCache

UUID = "10" * 16  # of the stand-in's first GPU
MODULES = "/proc/self/status"
"""There on every kernel, unlike /proc/modules, which the stand-in does not read."""


@pytest.fixture
def settings(monkeypatch):
    """Have child processes load the stand-ins; commands and missing symbols as the test says."""

    def prepare(cuda="", cufile="", without=(), **changes):
        environ = stand_ins.environment(cuda, cufile, without=without)
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        made = TrialSettings(
            libcuda=environ["GDSCKPT_LIBCUDA"],
            libcufile=environ["GDSCKPT_LIBCUFILE"],
            io_threads=2,
            timeout_s=60.0,
            race_s=0.0,
            modules_path=MODULES,
        )
        return replace(made, **changes)

    return prepare


@pytest.mark.parametrize(("path", "way"), [(0, "p2pdma"), (1, "nvidia-fs")])
def test_trial_proves_the_way_by_statistics(tmp_path, settings, path, way):
    trial = probe_trial.run_trial(tmp_path, UUID, settings(cufile=f"set path={path}"))
    assert trial.is_proven
    assert (trial.failure, trial.way, trial.version) == ("", way, stand_ins.cufile_version())
    assert trial.library.endswith("libfakecufile.so")
    assert not trial.has_won  # there was no race
    assert list(tmp_path.iterdir()) == []


def test_trial_continues_short_transfers(tmp_path, settings):
    found = settings(cufile="short cuFileWrite bytes=8192 count=3; short cuFileRead bytes=4096")
    assert probe_trial.run_trial(tmp_path, UUID, found).is_proven


@pytest.mark.parametrize(
    ("cufile", "said", "mend"),
    [
        ("fault cuFileDriverOpen code=5001", "5001", "gdsckpt probe"),
        ("fault cuFileDriverOpen code=5002", "5002", "cufile.json"),
        ("fault cuFileDriverOpen code=5004", "5004", "nvidia-fs"),
        ("fault cuFileDriverOpen code=5025", "5025", "/dev/nvidia-fs"),
        ("fault cuFileHandleRegister code=5008", "5008", "XFS"),
        ("fault cuFileHandleRegister code=5027", "5027", "/run/udev:/run/udev:ro"),
        ("fault cuFileHandleRegister code=5030", "5030", "/run/udev:/run/udev:ro"),
        ("fault cuFileWrite code=5036", "5036", "BAR1"),
        ("fault cuFileWrite code=5036; set old_errors=1", "5036", "BAR1"),
        ("fault cuFileRead code=5008", "5008", "XFS"),
        ("fault cuFileWrite code=5", "errno 5", ""),
        ("fault cuFileGetStatsL3 code=5030", "cuFileGetStatsL3", ""),
        ("set silent_posix=1", "did not say so (statistics: posix", "nvidia_fs and p2pdma"),
        ("set gds=0", "5001", ""),
        ("flip cuFileWrite bit=77", "cuFileWrite reported success, but other bytes", ""),
        ("misplace cuFileWrite bytes=4096", "cuFileWrite reported success, but other bytes", ""),
        ("flip cuFileRead bit=77", "cuFileRead reported success, but other bytes", ""),
        ("set version=1120", "too old: version 1.12", "nvidia-cufile"),
        ("set abort_on_open=1", "signal 6 (SIGABRT) during cuFileDriverOpen", ""),
    ],
)
def test_trial_failure_is_a_reason_with_its_mend(tmp_path, settings, cufile, said, mend):
    trial = probe_trial.run_trial(tmp_path, UUID, settings(cufile=cufile))
    assert not trial.is_proven
    assert said in trial.failure
    assert mend in trial.mend
    assert not trial.failure.endswith(".")
    assert ".gdsckpt-probe" not in trial.failure  # equal from process to process
    assert not trial.is_passing
    assert trial.way == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("function", ["cuFileDriverOpen", "cuFileWrite", "cuFileDriverClose"])
def test_trial_that_hangs_is_killed(tmp_path, settings, function):
    found = settings(cufile=f"hang {function}", timeout_s=3.0)
    trial = probe_trial.run_trial(tmp_path, UUID, found)
    assert trial.failure == f"the process had not ended during {function} after 3 s"
    assert list(tmp_path.iterdir()) == []


def test_trial_without_proc_modules_does_not_open_the_driver(tmp_path, settings):
    found = settings(cufile="hang cuFileDriverOpen", modules_path="/there/is/no/modules")
    trial = probe_trial.run_trial(tmp_path, UUID, found)
    assert "/there/is/no/modules does not exist" in trial.failure


@pytest.mark.parametrize("symbol", ["cuFileHandleRegister", "cuFileSetParameterBool"])
def test_trial_with_a_library_that_lacks_a_symbol(tmp_path, settings, symbol):
    trial = probe_trial.run_trial(tmp_path, UUID, settings(without=[symbol]))
    assert f"it has no {symbol}" in trial.failure


def test_trial_with_a_library_that_cannot_count_proves_nothing(tmp_path, settings):
    trial = probe_trial.run_trial(tmp_path, UUID, settings(without=["cuFileGetStatsL3"]))
    assert "can't count" in trial.failure


def test_trial_without_a_library(tmp_path, settings):
    trial = probe_trial.run_trial(tmp_path, UUID, settings(cufile=None))
    assert trial.failure.startswith("no cuFile: ")
    assert trial.mend


def test_trial_with_the_real_library_over_a_stand_in_gpu(tmp_path, settings, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = replace(settings(), libcufile="", timeout_s=5.0)
    trial = probe_trial.run_trial(tmp_path, UUID, found)
    assert trial.version >= 1150  # of the wheel nvidia-cufile
    assert not trial.is_proven
    assert trial.failure
    assert list(tmp_path.iterdir()) == []  # no cufile.log either


def test_trial_of_a_gpu_that_a_new_process_does_not_see(tmp_path, settings):
    trial = probe_trial.run_trial(tmp_path, "ab" * 16, settings())
    assert "does not see this GPU" in trial.failure


@pytest.mark.parametrize(
    ("cuda", "said"),
    [
        ("fault cuMemAlloc code=2", "out of memory"),
        ("fault cuDevicePrimaryCtxRetain code=46", "CUDA_ERROR_DEVICE_UNAVAILABLE"),
    ],
)
def test_trial_without_room_on_the_gpu_may_pass(tmp_path, settings, cuda, said):
    trial = probe_trial.run_trial(tmp_path, UUID, settings(cuda=cuda))
    assert said in trial.failure
    assert trial.is_passing
    assert "gdsckpt probe" in trial.mend


def test_trial_where_no_file_can_be_made_may_pass(settings):
    trial = probe_trial.run_trial(probe_trial.Path("/proc/self"), UUID, settings())
    assert "no file to try it on" in trial.failure
    assert trial.is_passing


def test_race_gives_both_rates(tmp_path, settings):
    trial = probe_trial.run_trial(tmp_path, UUID, settings(race_s=0.05))
    assert trial.race_failure == ""
    assert trial.cufile_bytes_per_s > 0
    assert trial.pinned_bytes_per_s > 0


@pytest.mark.parametrize(
    ("cufile", "changes", "said"),
    [
        ("fault cuFileWrite code=5036 nth=2", {}, "5036"),
        ("delay cuFileWrite us=1000000", {"timeout_s": 6.0}, "during the race after 6 s"),
    ],
    ids=["refused", "slow"],
)
def test_race_without_end_leaves_the_proof(tmp_path, settings, cufile, changes, said):
    trial = probe_trial.run_trial(tmp_path, UUID, settings(cufile=cufile, race_s=60.0, **changes))
    assert trial.is_proven
    assert said in trial.race_failure
    assert not trial.has_won


def test_race_without_memory_leaves_the_proof(tmp_path, settings):
    found = settings(cuda="fault cuMemAlloc code=2 nth=3", race_s=0.05)
    trial = probe_trial.run_trial(tmp_path, UUID, found)
    assert trial.is_proven
    assert "out of memory" in trial.race_failure


@pytest.mark.parametrize(
    ("cufile_rate", "pinned_rate", "won"),
    [(100.0, 100.0, True), (95.0, 100.0, True), (94.0, 100.0, False), (0.0, 0.0, False)],
)
def test_race_is_lost_below_95_percent(cufile_rate, pinned_rate, won):
    trial = Trial(way="p2pdma", cufile_bytes_per_s=cufile_rate, pinned_bytes_per_s=pinned_rate)
    assert trial.has_won == won


def test_look_describes_the_gpus(settings):
    found = settings(cuda="attribute device=1 number=100 value=1; set driver_version=13020")
    look = probe_cuda.look(found.libcuda, [found.libcufile])
    assert look.cuda_missing == ""
    assert (look.cuda_version, look.cufile_version) == (13020, stand_ins.cufile_version())
    assert [gpu.number for gpu in look.gpus] == [0, 1]
    assert look.gpus[0].uuid == UUID
    assert [gpu.is_coherent_with_host for gpu in look.gpus] == [False, True]


@pytest.mark.parametrize(
    ("cuda", "said"),
    [
        ("set devices=0", "CUDA_ERROR_NO_DEVICE"),
        ("fault cuInit code=803", "803"),
        ("fault cuDeviceGetCount code=999", "cuDeviceGetCount"),
    ],
)
def test_look_at_a_driver_that_cannot_be_used(settings, cuda, said):
    found = settings(cuda=cuda)
    look = probe_cuda.look(found.libcuda, [found.libcufile])
    assert said in look.cuda_missing
    assert look.gpus == ()
    assert look.cufile_version == stand_ins.cufile_version()  # looked at all the same


def test_look_at_a_driver_that_hangs(settings):
    found = settings(cuda="hang cuInit")
    look = probe_cuda.look(found.libcuda, [found.libcufile], timeout_s=3.0)
    assert "had not ended during cuInit after 3 s" in look.cuda_missing
    assert "it was not tried" in look.cufile_missing
    assert look.mend


# What is remembered.

GPU = gpu()
FINDINGS = (Finding(ProbeStep("p2pdma", ok=True, reason="fine")),)
PROVEN = Trial(way="p2pdma", version=1200, cufile_bytes_per_s=2.0, pinned_bytes_per_s=1.0)


@pytest.fixture
def key_of(tmp_path):
    tree = p2pdma_host(tmp_path / "host")

    def make(of=GPU, findings=FINDINGS, **changes):
        settings = TrialSettings(libcufile="/there/is/no/libcufile.so.0", **changes)
        return probe_trial.trial_key(tmp_path, of, findings, settings, tree)

    return make


@pytest.mark.parametrize(
    "trial", [PROVEN, replace(PROVEN, race_failure="late"), Trial(failure="5027", mend="mount")]
)
def test_remembered_trial_is_the_same(tmp_path, key_of, trial):
    cache = TrialCache(tmp_path / "cache")
    probe_trial.keep_trial(cache, key_of(), trial)
    assert probe_trial.cached_trial(cache, key_of()) == trial


def test_passing_failure_is_not_remembered(tmp_path, key_of):
    cache = TrialCache(tmp_path / "cache")
    probe_trial.keep_trial(cache, key_of(), Trial(failure="out of memory", is_passing=True))
    assert probe_trial.cached_trial(cache, key_of()) is None


@pytest.mark.parametrize(
    ("trial", "is_kept"),
    [(PROVEN, True), (replace(PROVEN, race_failure="late"), False), (Trial(failure="5027"), False)],
)
def test_only_a_full_success_is_believed_after_an_hour(tmp_path, key_of, trial, is_kept):
    now = [1000.0]
    cache = TrialCache(tmp_path / "cache", lambda: now[0])
    probe_trial.keep_trial(cache, key_of(), trial)
    now[0] += probe_trial.FAILURE_AGE_MAX_S
    assert probe_trial.cached_trial(cache, key_of()) == trial
    now[0] += 1
    assert (probe_trial.cached_trial(cache, key_of()) == trial) == is_kept


@pytest.mark.parametrize("file", ["sys/kernel/random/boot_id", "driver/nvidia/version"])
def test_key_changes_with_the_host(tmp_path, key_of, file):
    before = key_of()
    assert key_of() == before
    put(tmp_path / "host", f"proc/{file}", "another")
    assert key_of() != before


def test_key_changes_with_gpu_driver_findings_and_library(key_of):
    keys = [
        key_of(),
        key_of(gpu(1)),
        key_of(gpu(cuda_version=13010)),
        key_of(findings=(Finding(ProbeStep("p2pdma", ok=False, reason="gone")),)),
        key_of(libcuda="/mine.so"),
    ]
    assert len({json.dumps(key) for key in keys}) == len(keys)


def test_key_without_boot_id_or_directory_is_none(tmp_path, key_of):
    assert key_of() is not None
    (tmp_path / "host/proc/sys/kernel/random/boot_id").unlink()
    assert key_of() is None


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {},
        {**asdict(PROVEN), "more": 1},
        {**asdict(PROVEN), "version": "1200"},
        {**asdict(PROVEN), "is_passing": 0},
        {**asdict(PROVEN), "cufile_bytes_per_s": None},
    ],
)
def test_remembered_rubbish_is_no_trial(document):
    assert probe_trial.trial_from(document) is None


def test_remembered_rates_may_be_whole_numbers():
    document = json.loads(json.dumps({**asdict(PROVEN), "cufile_bytes_per_s": 2}))
    assert probe_trial.trial_from(document) == PROVEN
