"""Probe steps about what a directory lies on, as far as cuFile cares.

Source: NVIDIA GPUDirect Storage release notes (file systems and block devices), and what cuFile
1.20 does when a file is registered (udev).
"""

from __future__ import annotations

from gdsckpt.engine.mounts import Mount
from gdsckpt.engine.probe_step import Finding, ProbeStep
from gdsckpt.engine.probe_tree import HostTree

_LOCAL = ("ext4", "xfs")
_WITH_HOOKS = ("lustre", "gpfs", "beegfs", "wekafs", "virtiofs", "scatefs", "panfs")
"""File systems whose own modules talk to nvidia-fs."""

_USE_LOCAL = "Save to ext4 or XFS on a local NVMe drive."


def drive_findings(tree: HostTree, kind: str, mount: Mount | None) -> list[Finding]:
    """Tell whether cuFile can reach the files of a mount.

    Args:
        tree: The host.
        kind: The file system by its statfs magic, as ``mounts.file_system_name`` gives it.
        mount: The mount, or None where it is not known.
    """
    if mount is not None and kind not in (*_LOCAL, *_WITH_HOOKS):
        kind = mount.kind if kind.startswith("unknown") else kind
    findings = [_file_system_finding(tree, kind, mount)]
    if kind in _LOCAL and mount is not None:
        findings += [_drive_finding(tree, mount), _udev_finding(tree, mount)]
    return findings


def _file_system_finding(tree: HostTree, kind: str, mount: Mount | None) -> Finding:
    options = mount.options.split(",") if mount else []
    rules_out, mend = True, _USE_LOCAL
    reason = f"{kind}: cuFile has no direct path to it"
    if kind in _LOCAL:
        lacks_option = kind == "ext4" and "data=ordered" not in options
        rules_out = False
        reason = f"{kind}, mounted with {mount.options if mount else 'unknown options'}"
        mend = "Mount it with the option data=ordered, written out." if lacks_option else ""
    elif kind in _WITH_HOOKS or (kind.startswith("nfs") and "proto=rdma" in options):
        rules_out, reason, mend = False, f"{kind}, with hooks of its own into nvidia_fs", ""
    elif kind.startswith("nfs"):
        mend = f"Mount it with proto=rdma, or: {_USE_LOCAL}"
    elif kind.startswith("overlay"):
        mend = (
            "Bind-mount a directory on ext4 or XFS into the container: docker run -v /nvme:/nvme, "
            "and save there."
            if tree.container()
            else _USE_LOCAL
        )
    return Finding(
        ProbeStep("cufile_file_system", ok=not mend, reason=reason, mend=mend), rules_out
    )


def is_overlay(findings: list[Finding]) -> bool:
    """Tell whether an overlay is what stands in cuFile's way: the usual trap of containers."""
    return any(
        finding.step.name == "cufile_file_system" and finding.step.reason.startswith("overlay")
        for finding in findings
    )


def _drive_finding(tree: HostTree, mount: Mount) -> Finding:
    try:
        real = tree.path(f"sys/dev/block/{mount.device}").resolve(strict=True)
    except OSError:
        reason = f"block device {mount.device} is not in /sys/dev/block"
        return _drive(reason, mend="Mount /sys, so that it can be looked at.")
    disk = real if (real / "queue").is_dir() else real.parent  # a partition has no queue
    name = disk.name
    if name.startswith("nvme"):
        return _drive(f"{real.name} on an NVMe drive", ok=True)
    if name.startswith("dm-"):
        label = tree.text(f"sys/dev/block/{mount.device}/dm/name") or ""
        return _drive(
            f"{name} {label} goes through the device mapper (LVM, dm-crypt)".replace("  ", " "),
            mend="Use a partition or a whole drive without LVM and encryption.",
            rules_out=True,
        )
    if name.startswith("md"):
        return _raid_finding(tree, mount, name)
    return _drive(f"{name} is no NVMe drive", mend=_USE_LOCAL, rules_out=True)


def _raid_finding(tree: HostTree, mount: Mount, name: str) -> Finding:
    members = tree.names(f"sys/dev/block/{mount.device}/slaves")
    level = tree.text(f"sys/dev/block/{mount.device}/md/level") or "of unknown level"
    reason = f"{name}, RAID {level} of {', '.join(members) or 'unknown members'}"
    if any(not member.startswith("nvme") for member in members):
        return _drive(reason, mend="Use NVMe drives only.", rules_out=True)
    return _drive(reason, ok=True)


def _drive(reason: str, *, ok: bool = False, mend: str = "", rules_out: bool = False) -> Finding:
    return Finding(ProbeStep("cufile_drive", ok=ok, reason=reason, mend=mend), rules_out)


def _udev_finding(tree: HostTree, mount: Mount) -> Finding:
    """Look for what cuFileHandleRegister looks for; without it, it gives 5027."""
    relative = f"run/udev/data/b{mount.device}"
    text = tree.text(relative)
    reason, mend = f"ID_FS_USAGE is in /{relative}", ""
    if text is None:
        where = "/run/udev" if not tree.exists("run/udev/data") else f"/{relative}"
        reason = f"{where} is missing, so cuFile cannot register files (5027)"
        mend = (
            "Mount /run/udev:ro into the container: docker run -v /run/udev:/run/udev:ro."
            if tree.container()
            else "Start systemd-udevd; in a container: docker run -v /run/udev:/run/udev:ro."
        )
    elif "E:ID_FS_USAGE=" not in text:
        reason = f"/{relative} has no ID_FS_USAGE, so cuFile cannot register files (5027)"
        mend = f"Have udev look at the drive again: udevadm trigger /dev/block/{mount.device}."
    return Finding(ProbeStep("udev", ok=not mend, reason=reason, mend=mend), rules_out=bool(mend))
