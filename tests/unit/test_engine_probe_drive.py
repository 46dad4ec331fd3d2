import dataclasses

import pytest
from host_trees import DEVICE, EXT4, p2pdma_host, put, put_drive

from gdsckpt.engine.mounts import Mount
from gdsckpt.engine.probe_drive import drive_findings, is_overlay
from gdsckpt.engine.probe_tree import HostTree


def by_name(tree, kind="ext4", mount=EXT4):
    return {finding.step.name: finding for finding in drive_findings(tree, kind, mount)}


def mount_of(kind, options="rw"):
    return Mount("0:50", "/where", kind, "source", options)


def test_ext4_on_nvme_is_good(tmp_path):
    found = by_name(p2pdma_host(tmp_path))
    assert list(found) == ["cufile_file_system", "cufile_drive", "udev"]
    assert all(finding.step.ok for finding in found.values())
    assert found["cufile_drive"].step.reason == "nvme0n1p1 on an NVMe drive"


def test_ext4_without_its_option_is_left_to_the_trial(tmp_path):
    mount = dataclasses.replace(EXT4, options="rw,relatime")
    finding = by_name(p2pdma_host(tmp_path), mount=mount)["cufile_file_system"]
    assert not finding.step.ok
    assert not finding.rules_out
    assert "data=ordered" in finding.step.mend


def test_xfs_needs_no_option(tmp_path):
    mount = dataclasses.replace(EXT4, kind="xfs", options="rw")
    assert by_name(p2pdma_host(tmp_path), "xfs", mount)["cufile_file_system"].step.ok


@pytest.mark.parametrize("kind", ["tmpfs", "btrfs", "zfs", "fuse", "unknown (0x1)"])
def test_other_file_systems_are_ruled_out(tmp_path, kind):
    found = by_name(HostTree(tmp_path), kind, mount_of(kind))
    assert list(found) == ["cufile_file_system"]
    assert found["cufile_file_system"].rules_out
    assert found["cufile_file_system"].step.mend


def test_overlay_in_a_container_says_what_to_mount(tmp_path):
    put(tmp_path, ".dockerenv")
    findings = drive_findings(HostTree(tmp_path), "overlayfs", mount_of("overlay"))
    assert findings[0].rules_out
    assert "docker run -v" in findings[0].step.mend
    assert is_overlay(findings)


@pytest.mark.parametrize(
    ("kind", "mount"),
    [
        ("lustre", mount_of("lustre")),
        ("unknown (0x19)", mount_of("wekafs")),
        ("nfs", mount_of("nfs4", "rw,vers=4.2,proto=rdma")),
    ],
)
def test_file_systems_with_hooks_are_left_to_the_trial(tmp_path, kind, mount):
    found = by_name(HostTree(tmp_path), kind, mount)
    assert list(found) == ["cufile_file_system"]
    assert found["cufile_file_system"].step.ok


def test_nfs_over_tcp_is_ruled_out(tmp_path):
    finding = by_name(HostTree(tmp_path), "nfs", mount_of("nfs4", "rw,proto=tcp"))
    assert finding["cufile_file_system"].rules_out
    assert "proto=rdma" in finding["cufile_file_system"].step.mend


@pytest.mark.parametrize(
    ("disk", "rules_out", "said"),
    [
        ("dm-3", True, "device mapper"),
        ("sda", True, "no NVMe drive"),
        ("md127", False, "RAID"),
        ("nvme3n1", False, "nvme3n1 on an NVMe drive"),
    ],
)
def test_drives(tmp_path, disk, rules_out, said):
    put_drive(tmp_path, disk)
    finding = by_name(HostTree(tmp_path))["cufile_drive"]
    assert finding.rules_out == rules_out
    assert said in finding.step.reason
    assert bool(finding.step.mend) == rules_out


def test_raid_of_other_drives_is_ruled_out(tmp_path):
    put_drive(tmp_path, "md0")
    for member in ("nvme0n1", "sdb"):
        put(tmp_path, f"sys/devices/pci/md0/slaves/{member}/size")
    finding = by_name(HostTree(tmp_path))["cufile_drive"]
    assert finding.rules_out
    assert "nvme0n1, sdb" in finding.step.reason


def test_drive_that_sysfs_does_not_show_is_left_to_the_trial(tmp_path):
    finding = by_name(HostTree(tmp_path))["cufile_drive"]
    assert not finding.step.ok
    assert not finding.rules_out


def test_missing_udev_is_ruled_out_with_the_mount_that_mends_it(tmp_path):
    tree = p2pdma_host(tmp_path)
    (tmp_path / f"run/udev/data/b{DEVICE}").unlink()
    (tmp_path / "run/udev/data").rmdir()
    finding = by_name(tree)["udev"]
    assert finding.rules_out
    assert "5027" in finding.step.reason
    assert "/run/udev:/run/udev:ro" in finding.step.mend


def test_udev_without_this_drive(tmp_path):
    tree = p2pdma_host(tmp_path)
    (tmp_path / f"run/udev/data/b{DEVICE}").unlink()
    assert f"/run/udev/data/b{DEVICE} is missing" in by_name(tree)["udev"].step.reason


def test_udev_entry_without_the_file_system(tmp_path):
    tree = p2pdma_host(tmp_path)
    put(tmp_path, f"run/udev/data/b{DEVICE}", "E:ID_MODEL=drive\n")
    finding = by_name(tree)["udev"]
    assert finding.rules_out
    assert "udevadm trigger" in finding.step.mend
