"""What a result was measured on: machine, file system, versions; no paths and no names of hosts."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import platform
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import gdsckpt
from bench import fio
from gdsckpt.config import Config

_PATH_OPTIONS = {"--dir": "DIR", "--json": "OUT.json", "--plot": "OUT.png", "--markdown": "OUT.md"}


def machine(directory: Path) -> dict[str, Any]:
    """Describe the machine and the file system that ``directory`` is on."""
    file_system, options = mount_of(directory)
    return {
        "cpu": _first_value("/proc/cpuinfo", "model name") or platform.machine(),
        "architecture": platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "file_system": file_system,
        "mount_options": options,
        "transparent_hugepage": _chosen("/sys/kernel/mm/transparent_hugepage/enabled"),
        "load_average_before": round(os.getloadavg()[0], 2),
    }


def versions() -> dict[str, str | None]:
    """Give the versions of all that is compared; None where it is missing."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "gdsckpt": gdsckpt.__version__,
        "safetensors": _version("safetensors"),
        "fio": fio.version(),
    }


def settings() -> dict[str, Any]:
    """Give the settings of gdsckpt in force, and the number of torch's threads."""
    ours = dataclasses.asdict(Config.resolve(None, os.environ))
    return {**ours, "torch_threads": torch.get_num_threads()}


def command_line(argv: Sequence[str], program: str) -> str:
    """Give the command without the paths of this machine."""
    shown: list[str] = []
    replacement = ""
    for word in argv:
        name, equals, _ = word.partition("=")
        if replacement:
            shown.append(replacement)
            replacement = ""
        elif name in _PATH_OPTIONS and equals:
            shown.append(f"{name}={_PATH_OPTIONS[name]}")
        else:
            shown.append(word)
            replacement = _PATH_OPTIONS.get(word, "")
    return shlex.join(["python", program, *shown])


def mount_of(directory: Path) -> tuple[str, str]:
    """Give type and options of the file system that a directory is on.

    Source: proc(5), /proc/pid/mountinfo: the fields before and after the separating hyphen.
    """
    resolved = directory.resolve()
    best: tuple[int, str, str] = (-1, "unknown", "")
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        mount_point, mount_options = before.split()[4:6]
        file_system, _, super_options = after.split(maxsplit=2)
        point = Path(mount_point.encode().decode("unicode_escape"))
        if resolved.is_relative_to(point) and len(point.parts) >= best[0]:
            own = super_options.split(",")
            rest = [option for option in mount_options.split(",") if option not in own]
            best = (len(point.parts), file_system, ",".join([*rest, *own]))
    return best[1], best[2]


def _first_value(path: str, key: str) -> str:
    for line in Path(path).read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return ""


def _chosen(path: str) -> str:
    """Give the word in brackets of a setting that lists its choices."""
    try:
        text = Path(path).read_text()
    except OSError:
        return "unknown"
    return text.partition("[")[2].partition("]")[0]


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
