"""Nodes by name: what each moves and holds, every figure with its source and date."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from gdsckpt.errors import ConfigError
from gdsckpt.planning.band import Band

_GB, _TB = 1e9, 1e12
_AS_OF = "2025-09"
"""Date of what is known of data sheets; newer drives are faster."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One property of hardware.

    Attributes:
        value: The value, in the unit that the name of the property ends with.
        source: Where it comes from, or ``estimate`` with the reason.
        as_of: Date of that knowledge, ISO 8601.
    """

    value: Band
    source: str
    as_of: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node of a cluster.

    Attributes:
        name: Short name, a key of ``NODES``.
        gpus: GPUs of the node.
        link: How GPUs reach host memory: ``PCIe Gen4``, ``PCIe Gen5`` or ``NVLink-C2C``.
        gpu_to_host_bytes_per_s: Per GPU, all GPUs of the node at the same time, pinned memory.
        gpu_memory_bytes: Memory of one GPU.
        host_memory_bytes: Memory of the host.
        drives: Local NVMe drives for checkpoints.
        drive_write_bytes_per_s: Sustained sequential write rate of one of them.
        drive_bytes: Capacity of one of them.
        drives_max_bytes_per_s: What all drives of a node reach together at most (links, file
            system); None for no such limit.
        store_bytes_per_s: What a node sends to an object store.
    """

    name: str
    gpus: int
    link: str
    gpu_to_host_bytes_per_s: Figure
    gpu_memory_bytes: Figure
    host_memory_bytes: Figure
    drives: int
    drive_write_bytes_per_s: Figure
    drive_bytes: Figure
    drives_max_bytes_per_s: Figure | None
    store_bytes_per_s: Figure

    @property
    def nvme_write_bytes_per_s(self) -> Band:
        """What all drives of the node write together."""
        together = self.drive_write_bytes_per_s.value * self.drives
        limit = self.drives_max_bytes_per_s
        return together if limit is None else together.at_most(limit.value)

    @property
    def nvme_bytes(self) -> Band:
        """Capacity of all drives of the node."""
        return self.drive_bytes.value * self.drives

    def as_dict(self) -> dict[str, Any]:
        """Give all of it as values that JSON has."""
        return dataclasses.asdict(self)


def node(name: str) -> Node:
    """Give a known node.

    Raises:
        ConfigError: None has this name; the field is ``node``.
    """
    if name not in NODES:
        raise ConfigError(f"--node is {name!r}. Known: {', '.join(NODES)}.", field="node")
    return NODES[name]


def _figure(low: float, mid: float, high: float, source: str, as_of: str = _AS_OF) -> Figure:
    return Figure(Band(low, mid, high), source, as_of)


_GEN5 = _figure(
    40 * _GB,
    50 * _GB,
    55 * _GB,
    "PCIe Gen5 x16 has 63 GB/s each way; pinned copies of one H100 reach about 55, eight at a time "
    "less (estimate)",
)
_C2C = _figure(
    150 * _GB,
    183 * _GB,
    225 * _GB,
    "device to host by nvbandwidth, four GB300 at a time: 182 to 184 (NVIDIA/Megatron-LM#6491); "
    "NVLink-C2C has 450 GB/s each way for the two GPUs of a Grace",
    "2026-11",
)
_GEN5_DRIVE = _figure(
    6 * _GB,
    8 * _GB,
    11 * _GB,
    "sustained sequential write of PCIe Gen5 TLC drives (estimate from data sheets)",
)
_GEN4_DRIVE = _figure(
    2.5 * _GB,
    4 * _GB,
    6.5 * _GB,
    "sustained sequential write of PCIe Gen4 TLC drives (estimate from data sheets)",
)
_CLOUD_100G = _figure(
    2.5 * _GB,
    8 * _GB,
    12.5 * _GB,
    "100 Gbit/s to the store at most; less where other traffic shares it (estimate: measure it)",
)
_FABRIC_400G = _figure(
    5 * _GB,
    15 * _GB,
    45 * _GB,
    "400 Gbit/s of storage network at most; object stores are often slower (estimate: measure it)",
)
_EIGHT_GEN5_DRIVES = _figure(
    20 * _GB,
    26 * _GB,
    45 * _GB,
    "26 GB/s written by 8 Gen5 drives of an H200 node (DeepNVMe, DeepSpeedExamples, 2025)",
)


def _dgx(name: str, gpu_memory: Figure, host_memory: Figure) -> Node:
    """Give an 8-GPU node of the DGX and HGX kind with PCIe Gen5."""
    return Node(
        name=name,
        gpus=8,
        link="PCIe Gen5",
        gpu_to_host_bytes_per_s=_GEN5,
        gpu_memory_bytes=gpu_memory,
        host_memory_bytes=host_memory,
        drives=8,
        drive_write_bytes_per_s=_figure(
            3 * _GB,
            4 * _GB,
            8 * _GB,
            "Gen4 drives of a DGX, or Gen5 ones (estimate from data sheets)",
        ),
        drive_bytes=_figure(3.5 * _TB, 3.84 * _TB, 7.68 * _TB, "8 x 3.84 TB, DGX data sheet"),
        drives_max_bytes_per_s=_EIGHT_GEN5_DRIVES,
        store_bytes_per_s=_CLOUD_100G,
    )


def _nvl72(name: str, gpu_memory: Figure) -> Node:
    """Give a tray of an NVL72 rack: 18 trays of 4 GPUs and 2 Grace."""
    return Node(
        name=name,
        gpus=4,
        link="NVLink-C2C",
        gpu_to_host_bytes_per_s=_C2C,
        gpu_memory_bytes=gpu_memory,
        host_memory_bytes=_figure(
            0.85 * _TB, 0.96 * _TB, 1.87 * _TB, "2 x 480 GB LPDDR5X, NVIDIA data sheet"
        ),
        drives=4,
        drive_write_bytes_per_s=_GEN5_DRIVE,
        drive_bytes=_figure(
            1.92 * _TB, 3.84 * _TB, 7.68 * _TB, "4 E1.S drives, sizes differ by maker (estimate)"
        ),
        drives_max_bytes_per_s=None,
        store_bytes_per_s=_FABRIC_400G,
    )


_ALL = (
    _nvl72("gb200-nvl72-tray", _figure(184 * _GB, 186 * _GB, 192 * _GB, "GB200 NVL72 data sheet")),
    _nvl72("gb300-nvl72-tray", _figure(277 * _GB, 279 * _GB, 288 * _GB, "GB300 NVL72 data sheet")),
    _dgx(
        "b200-8",
        _figure(179 * _GB, 180 * _GB, 192 * _GB, "DGX B200 data sheet"),
        _figure(1.9 * _TB, 2 * _TB, 4 * _TB, "DGX B200 data sheet"),
    ),
    _dgx(
        "h200-8",
        _figure(140 * _GB, 141 * _GB, 144 * _GB, "DGX H200 data sheet"),
        _figure(1.9 * _TB, 2 * _TB, 2.1 * _TB, "DGX H200 data sheet"),
    ),
    _dgx(
        "h100-8",
        _figure(80 * _GB, 80 * _GB, 85.9 * _GB, "DGX H100 data sheet; 80 GB may mean GiB"),
        _figure(1.9 * _TB, 2 * _TB, 2.1 * _TB, "DGX H100 data sheet"),
    ),
    Node(
        name="a100-8",
        gpus=8,
        link="PCIe Gen4",
        gpu_to_host_bytes_per_s=_figure(
            12 * _GB, 20 * _GB, 26 * _GB, "PCIe Gen4 x16, two GPUs to a switch (estimate)"
        ),
        gpu_memory_bytes=_figure(80 * _GB, 80 * _GB, 85.9 * _GB, "DGX A100 data sheet"),
        host_memory_bytes=_figure(1.9 * _TB, 2 * _TB, 2.1 * _TB, "DGX A100 data sheet"),
        drives=8,
        drive_write_bytes_per_s=_GEN4_DRIVE,
        drive_bytes=_figure(3.5 * _TB, 3.84 * _TB, 3.84 * _TB, "8 x 3.84 TB, DGX A100 data sheet"),
        drives_max_bytes_per_s=_figure(
            5 * _GB, 15 * _GB, 25 * _GB, "5 GB/s by 4 drives (DeepNVMe); 8 at most twice or more"
        ),
        store_bytes_per_s=_CLOUD_100G,
    ),
    Node(
        name="workstation",
        gpus=1,
        link="PCIe Gen5",
        gpu_to_host_bytes_per_s=_figure(
            20 * _GB, 40 * _GB, 55 * _GB, "PCIe Gen4 or Gen5 x16 (estimate)"
        ),
        gpu_memory_bytes=_figure(24 * _GB, 32 * _GB, 96 * _GB, "cards of 24 to 96 GB"),
        host_memory_bytes=_figure(64 * _GB, 128 * _GB, 512 * _GB, "estimate"),
        drives=1,
        drive_write_bytes_per_s=_figure(
            1 * _GB, 3 * _GB, 8 * _GB, "a client drive once its cache is full, or a server's"
        ),
        drive_bytes=_figure(1 * _TB, 2 * _TB, 4 * _TB, "estimate"),
        drives_max_bytes_per_s=None,
        store_bytes_per_s=_figure(
            0.1 * _GB, 1 * _GB, 1.25 * _GB, "1 to 10 Gbit/s to the store (estimate)"
        ),
    ),
)

NODES: dict[str, Node] = {each.name: each for each in _ALL}
"""The known nodes by name."""
