import json
import os

import pytest
from cli_runs import run_here

import gdsckpt
from gdsckpt.engine import mounts, probe_storage
from gdsckpt.errors import StorageError

STEPS = [
    "platform",
    "memory",
    "extension",
    "crc32",
    "file_system",
    "free_space",
    "write",
    "direct_io",
    "io_alignment",
    "fallocate",
    "flock",
    "fsync",
    "rename",
    "fsync_directory",
    "cuda_driver",
    "container",
    "kernel_modules",
    "nvidia_fs",
    "p2pdma",
    "cufile_file_system",
    "device_checksums",
    "cufile_library",
    "cufile_trial",
    "kvikio",
    "engine",
]
OF_GPUS = {"gpus", "cufile_race"}
"""Only where there is a GPU."""
OF_DRIVES = {"cufile_drive", "udev"}
"""Only of ext4 and XFS."""


def test_probe_json_has_engine_and_steps(capsys, tmp_path):
    done = run_here(capsys, "probe", "--json", tmp_path)
    assert (done.code, done.err) == (0, "")
    document = json.loads(done.out)
    assert document["ok"] is True
    assert document["engine"] in ("pinned", "cufile")  # on a machine with GPUs it may be both
    names = [step["name"] for step in document["steps"]]
    assert [name for name in names if name not in OF_GPUS | OF_DRIVES] == STEPS
    assert isinstance(document["gpus"], list)
    for step in document["steps"]:
        assert set(step) == {"name", "ok", "reason", "needed", "mend"}
        assert isinstance(step["ok"], bool)
        assert step["reason"]


def test_probe_leaves_nothing_behind(capsys, tmp_path):
    run_here(capsys, "probe", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_probe_text_has_a_line_per_step(capsys, tmp_path):
    done = run_here(capsys, "probe", tmp_path)
    assert done.code == 0
    for name in STEPS:
        assert f"  {name} " in done.out
    assert "engine=auto: " in done.out


@pytest.mark.parametrize("name", ["absent", "file"])
def test_probe_without_directory_is_code_4(capsys, tmp_path, name):
    (tmp_path / "file").touch()
    done = run_here(capsys, "probe", tmp_path / name)
    assert done.code == 4
    assert done.err.startswith("gdsckpt: error: open of ")
    assert done.err.count("\n") == 1


def test_probe_function_raises(tmp_path):
    with pytest.raises(StorageError) as raised:
        gdsckpt.probe(tmp_path / "absent")
    assert raised.value.op == "open"


def test_probe_directory_without_files_fails_the_write_step():
    report = gdsckpt.probe("/proc/self")  # nobody can make a file there
    assert not report.ok
    (step,) = [step for step in report.steps if step.name == "write"]
    assert not step.ok
    assert step.mend
    assert "direct_io" not in [step.name for step in report.steps]


def test_probe_names_memory_file_systems():
    step = next(probe_storage.file_system_steps(probe_storage.Path("/dev/shm")))
    assert not step.ok
    assert step.reason.startswith("tmpfs")
    assert step.mend


MOUNTINFO = r"""
21 1 253:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
22 21 0:21 / /tmp rw,nosuid - tmpfs tmpfs rw,size=1k
23 21 253:1 / /data rw - xfs /dev/vdb rw,noquota
24 23 0:50 /export /data/my\040share rw,noatime master:2 - nfs4 server:/export rw,vers=4.2
25 21 253:2 / /data rw - ext4 /dev/vdc rw
26 21 0:30 / /btrfs rw - btrfs /dev/vdd rw,subvol=/
not a line
""".strip()


@pytest.mark.parametrize(
    ("path", "device", "source"),
    [
        ("/home/me", "253:0", "/dev/vda"),
        ("/tmp", "0:21", "tmpfs"),
        ("/tmpfile", "253:0", "/dev/vda"),
        ("/data/x", "253:2", "/dev/vdc"),  # mounted over /dev/vdb
        ("/data/x", "253:1", "/dev/vdb"),  # seen from below
        ("/data/my share/x", "0:50", "server:/export"),
        ("/btrfs/subvolume/x", "0:99", "/dev/vdd"),  # btrfs shows a device number of its own
    ],
)
def test_best_mount(path, device, source):
    assert mounts.best_mount(mounts.parse_mountinfo(MOUNTINFO), path, device).source == source


def test_parse_mountinfo_joins_the_options():
    mount = mounts.parse_mountinfo(MOUNTINFO)[0]
    assert mount == mounts.Mount("253:0", "/", "ext4", "/dev/vda", "rw,relatime,discard")


def test_file_system_name_agrees_with_the_mount():
    magic, name = mounts.file_system_name(probe_storage.Path("/proc"))
    assert (magic, name) == (0x9FA0, "unknown (0x9fa0)")
    assert mounts.mount_of(probe_storage.Path("/proc")).kind == "proc"


def test_file_system_name_of_nothing_raises(tmp_path):
    with pytest.raises(FileNotFoundError):
        mounts.file_system_name(tmp_path / "absent")


def test_open_file_steps_report_what_is_refused(tmp_path):
    path = tmp_path / "f"
    path.touch()
    fd = os.open(path, os.O_RDONLY)  # as on a file system that takes no writes
    try:
        steps = {step.name: step for step in probe_storage.open_file_steps(fd, path)}
    finally:
        os.close(fd)
    assert not steps["write"].ok
    assert steps["write"].needed
    assert not steps["fallocate"].ok
    assert steps["rename"].ok
