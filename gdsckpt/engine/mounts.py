"""Which file system a directory lies on: name, mount point, options, device."""

from __future__ import annotations

import ctypes
import os
import re
from dataclasses import dataclass
from pathlib import Path

# include/uapi/linux/magic.h; Lustre, GPFS, WekaFS, BeeGFS and XFS from their own sources.
_NAMES = {
    0xEF53: "ext4",
    0x58465342: "xfs",
    0x9123683E: "btrfs",
    0x2FC12FC1: "zfs",
    0xF2F52010: "f2fs",
    0xCA451A4E: "bcachefs",
    0x01021994: "tmpfs",
    0x858458F6: "ramfs",
    0x794C7630: "overlayfs",
    0x6969: "nfs",
    0xFF534D42: "cifs",
    0xFE534D42: "smb2",
    0x65735546: "fuse",
    0x0BD00BD0: "lustre",
    0x47504653: "gpfs",
    0x19830326: "beegfs",
    0x00C36400: "ceph",
    0x01021997: "9p",
    0x6A656A63: "virtiofs",
    0x73717368: "squashfs",
}
_OCTAL = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of ``/proc/self/mountinfo``.

    Attributes:
        device: ``major:minor`` as ``st_dev`` shows it.
        mount_point: Where it is mounted.
        kind: Name that the kernel gives the file system.
        source: What is mounted: a block device, a server's export, a name.
        options: Of this mount and of the file system, by commas.
    """

    device: str
    mount_point: str
    kind: str
    source: str
    options: str


def file_system_name(path: Path) -> tuple[int, str]:
    """Give magic number and name of the file system of a path, by statfs(2).

    Raises:
        OSError: The call failed.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    # struct statfs is 120 bytes on 64-bit Linux and begins with f_type, a long.
    raw = ctypes.create_string_buffer(256)
    if libc.statfs(os.fsencode(path), raw) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), os.fspath(path))
    magic = ctypes.c_long.from_buffer(raw).value & 0xFFFFFFFF
    return magic, _NAMES.get(magic, f"unknown ({magic:#x})")


def mount_of(path: Path) -> Mount | None:
    """Give the mount that a path lies on, or None where /proc does not tell."""
    try:
        text = Path("/proc/self/mountinfo").read_bytes().decode(errors="surrogateescape")
        real = path.resolve()
        status = real.stat()
    except OSError:
        return None
    device = f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}"
    return best_mount(parse_mountinfo(text), str(real), device)


def best_mount(mounts: list[Mount], path: str, device: str) -> Mount | None:
    """Pick the mount of a path: the longest mount point above it, the last of equal ones.

    Args:
        mounts: In the order of mounting.
        path: Absolute, without links.
        device: ``major:minor`` of the path; mounts of this device are preferred, since a mount
            may lie hidden under another. btrfs and overlayfs show other numbers than their mount.
    """
    above = [mount for mount in mounts if _is_above(mount.mount_point, path)]
    candidates = [mount for mount in above if mount.device == device] or above
    best: Mount | None = None
    for mount in candidates:
        if best is None or len(mount.mount_point) >= len(best.mount_point):
            best = mount
    return best


def parse_mountinfo(text: str) -> list[Mount]:
    """Read ``/proc/self/mountinfo``; lines that are not understood are left out.

    Source: proc_pid_mountinfo(5).
    """
    mounts = []
    for line in text.splitlines():
        front, separator, back = line.partition(" - ")
        fields, more = front.split(" "), back.split(" ")
        if not separator or len(fields) < 6 or len(more) < 3:
            continue
        mounts.append(
            Mount(
                device=fields[2],
                mount_point=_unescape(fields[4]),
                kind=more[0],
                source=_unescape(more[1]),
                options=",".join(dict.fromkeys([*fields[5].split(","), *more[2].split(",")])),
            )
        )
    return mounts


def block_device_facts(device: str) -> str:
    """Describe a block device by ``major:minor``, as far as sysfs tells; may be empty."""
    node = Path("/sys/dev/block") / device
    try:
        real = node.resolve(strict=True)
    except OSError:
        return ""
    disk = real if (real / "queue").is_dir() else real.parent  # a partition has no queue
    facts = [f"block device {real.name}"]
    model = _read(disk / "device" / "model")
    if model:
        facts.append(model)
    rotational = _read(disk / "queue" / "rotational")
    if rotational:
        facts.append("rotating" if rotational == "1" else "not rotating")
    block_bytes = _read(disk / "queue" / "logical_block_size")
    if block_bytes:
        facts.append(f"logical blocks of {block_bytes} B")
    return ", ".join(facts)


def _is_above(mount_point: str, path: str) -> bool:
    return path == mount_point or path.startswith(f"{mount_point.rstrip('/')}/")


def _unescape(field: str) -> str:
    """Undo the octal escapes of space, tab, line end and backslash."""
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), field)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
