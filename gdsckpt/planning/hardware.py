"""Nodes by name: what each moves and holds, every figure with its source and date."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from gdsckpt.planning.band import Band


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


NODES: dict[str, Node] = {}
"""The known nodes: gb200-nvl72-tray, gb300-nvl72-tray, b200-8, h200-8, h100-8, a100-8,
workstation.
"""


def node(name: str) -> Node:
    """Give a known node.

    Raises:
        ConfigError: None has this name; the field is ``node``.
    """
    raise NotImplementedError
