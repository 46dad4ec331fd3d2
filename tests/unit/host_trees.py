"""Machines as the kernel shows them, made of a few files."""

import gzip
from pathlib import Path

from gdsckpt.engine.mounts import Mount
from gdsckpt.engine.probe_cuda import Gpu
from gdsckpt.engine.probe_tree import HostTree

DEVICE = "259:5"
EXT4 = Mount(DEVICE, "/nvme", "ext4", "/dev/nvme0n1p1", "rw,relatime,data=ordered")
OPEN_MODULES = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build"
STATIC_BAR = 'RegistryDwords: "RMForceStaticBar1=1;RmForceDisableIomapWC=1;"'
BUS_ID = "0000:3B:00.0"


def put(root: Path, relative: str, content: str | bytes = "") -> None:
    """Write a file and the directories above it."""
    path = root / relative
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(content)


def put_drive(root: Path, disk: str, partition: str = "") -> None:
    """Make a block device, as sysfs shows it."""
    node = root / "sys/devices/pci" / disk
    (node / "queue").mkdir(parents=True)
    if partition:
        node = node / partition
        node.mkdir()
    link = root / "sys/dev/block" / DEVICE
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(node)


def p2pdma_host(root: Path) -> HostTree:
    """Make a machine on which nothing shows that P2PDMA would not work."""
    put(root, "proc/modules", "nvidia 1 2 - Live 0x0\n")
    put(root, "proc/config.gz", gzip.compress(b"CONFIG_PCI=y\nCONFIG_PCI_P2PDMA=y\n"))
    put(root, "proc/driver/nvidia/version", OPEN_MODULES)
    put(root, "proc/driver/nvidia/params", STATIC_BAR)
    put(root, "proc/sys/kernel/random/boot_id", "b00t\n")
    put(root, f"run/udev/data/b{DEVICE}", "E:ID_FS_TYPE=ext4\nE:ID_FS_USAGE=filesystem\n")
    put_drive(root, "nvme0n1", "nvme0n1p1")
    return HostTree(root)


def gpu(number: int = 0, **changes: object) -> Gpu:
    """Describe a GPU."""
    facts = {
        "name": "NVIDIA H200",
        "uuid": f"{number:032x}",
        "pci_bus_id": BUS_ID,
        "numa_node": 0,
        "compute_capability": 90,
        "has_gpu_direct_rdma": True,
        "is_coherent_with_host": False,
        "cuda_version": 13000,
    }
    return Gpu(number=number, **{**facts, **changes})
