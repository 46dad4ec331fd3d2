"""The machine: GPU, driver, kernel, file system, versions."""

from __future__ import annotations

import importlib.metadata
import subprocess
from pathlib import Path
from typing import Any

import torch

from bench import environment
from bench.gpu_steps.recorder import Recorder, run
from gdsckpt import native
from gdsckpt.engine.driver import cuda_unusable

_PACKAGES = (
    *("torch", "numpy", "numba", "numba-cuda", "cupy-cuda13x", "kvikio-cu13", "nvidia-cufile"),
)
_FIELDS = (
    *("name", "driver_version", "pcie.link.gen.current", "pcie.link.width.current"),
    *("memory.total", "ecc.mode.current"),
)


def main(recorder: Recorder) -> None:
    """Record facts; each may be missing."""
    recorder.attempt("machine", lambda: environment.machine(recorder.directory))
    recorder.add("packages", {name: _version(name) for name in _PACKAGES})
    recorder.attempt("nvidia-smi", _nvidia_smi)
    recorder.attempt("driver", _driver)
    recorder.attempt("torch", _torch)
    recorder.add("has_proc_modules", Path("/proc/modules").exists())
    recorder.add("nvidia_params", _lines("/proc/driver/nvidia/params", ("Registry", "DmaRemap")))
    recorder.add("nvidia_version", _begin("/proc/driver/nvidia/version"))
    recorder.add("disks", sorted(path.name for path in Path("/sys/block").glob("*")))


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _nvidia_smi() -> str:
    command = ["nvidia-smi", f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader"]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=15).stdout


def _driver() -> dict[str, Any]:
    why = cuda_unusable()
    if why:
        raise RuntimeError(why)
    return {"cuda": native.cuda_version(), "devices": native.cuda_devices()}


def _torch() -> dict[str, Any]:
    return {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "device": torch.cuda.get_device_name(0),
        "memory_bytes": torch.cuda.get_device_properties(0).total_memory,
    }


def _begin(path: str) -> str:
    try:
        return Path(path).read_text()[:200]
    except OSError as error:
        return f"none: {error.strerror}"


def _lines(path: str, words: tuple[str, ...]) -> list[str]:
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return []
    return [line for line in lines if line.startswith(words)]


if __name__ == "__main__":
    run(main)
