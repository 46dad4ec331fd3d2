"""Probe steps about CUDA and cuFile. Neither is needed, and neither is called in this process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from gdsckpt.engine.probe_step import ProbeStep

_CHILD_TIMEOUT_S = 20.0
_CUFILE_NAMES = ("libcufile.so.0", "libcufile.so")
_SYSTEM_PATTERNS = (
    "usr/local/cuda*/lib64",
    "usr/local/cuda*/targets/*/lib",
    "usr/lib/*-linux-gnu",
    "usr/lib64",
)

# A broken driver may hang or kill the process that loads it, so that is a child of its own.
_CHILD = """
import ctypes, json
found = {}
try:
    cuda = ctypes.CDLL("libcuda.so.1")
except OSError as error:
    found["missing"] = str(error)
else:
    found["code"] = cuda.cuInit(0)
    version, devices = ctypes.c_int(0), ctypes.c_int(0)
    cuda.cuDriverGetVersion(ctypes.byref(version))
    if found["code"] == 0:
        cuda.cuDeviceGetCount(ctypes.byref(devices))
    found.update(version=version.value, devices=devices.value)
print(json.dumps(found))
"""


def steps() -> Iterator[ProbeStep]:
    """Tell whether CUDA's driver and cuFile are there."""
    yield _cuda_driver_step()
    yield _cufile_step()


def _cuda_driver_step() -> ProbeStep:
    command = [sys.executable or "python3", "-I", "-c", _CHILD]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_CHILD_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        reason = f"loading libcuda.so.1 did not end within {_CHILD_TIMEOUT_S:.0f} s"
        return _cuda_step(ok=False, reason=reason, mend="Look at 'nvidia-smi' and the kernel log.")
    except OSError as error:
        return _cuda_step(ok=False, reason=f"no child process could be started: {error.strerror}")
    try:
        found = json.loads(done.stdout)
    except ValueError:
        reason = f"the process that loaded libcuda.so.1 ended with status {done.returncode}"
        return _cuda_step(ok=False, reason=reason, mend="Install the driver again.")
    if "missing" in found:
        reason = f"no CUDA driver: {found['missing']}. Not needed to save host memory"
        return _cuda_step(ok=False, reason=reason)
    version = f"{found['version'] // 1000}.{found['version'] % 1000 // 10}"
    if found["code"] != 0:
        reason = f"the driver for CUDA {version} is there, but cuInit gives {found['code']}"
        return _cuda_step(ok=False, reason=reason, mend="Look at 'nvidia-smi' and the kernel log.")
    return _cuda_step(ok=True, reason=f"driver for CUDA {version}, {found['devices']} devices")


def _cuda_step(*, ok: bool, reason: str, mend: str = "") -> ProbeStep:
    return ProbeStep("cuda_driver", ok=ok, reason=reason, mend=mend)


def _cufile_step() -> ProbeStep:
    """Look for what cuFile needs; cuFileDriverOpen itself is never called here.

    Without /proc/modules it spins for ever (facts of cuFile 1.20).
    """
    library = find_cufile()
    has_modules = Path("/proc/modules").exists()
    has_udev = Path("/run/udev/data").is_dir()
    facts = [
        f"library {library}" if library else "libcufile.so.0 is not found",
        f"/proc/modules {_is_there(has_modules)}",
        f"/run/udev/data {_is_there(has_udev)}",
        f"nvidia_fs {'loaded' if _has_module('nvidia_fs') else 'not loaded'}",
        "this version of gdsckpt has no cufile engine",
    ]
    return ProbeStep(
        "cufile", ok=bool(library) and has_modules and has_udev, reason="; ".join(facts)
    )


def find_cufile() -> str | None:
    """Give the path of libcufile where it is installed, without loading it."""
    folders = [Path(entry) for entry in os.environ.get("LD_LIBRARY_PATH", "").split(":") if entry]
    for entry in sys.path:
        folders.extend(_glob(Path(entry), "nvidia/*/lib"))
    for pattern in _SYSTEM_PATTERNS:
        folders.extend(_glob(Path("/"), pattern))
    for folder in folders:
        for name in _CUFILE_NAMES:
            if (folder / name).is_file():
                return str(folder / name)
    return None


def _glob(folder: Path, pattern: str) -> list[Path]:
    try:
        return sorted(folder.glob(pattern))
    except OSError:
        return []


def _has_module(name: str) -> bool:
    try:
        lines = Path("/proc/modules").read_text().splitlines()
    except OSError:
        return False
    return any(line.split(" ", 1)[0] == name for line in lines)


def _is_there(there: bool) -> str:
    return "is there" if there else "is missing"
