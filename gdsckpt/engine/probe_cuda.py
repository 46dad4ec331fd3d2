"""Probe steps about CUDA's driver, the GPUs, and checksums on them."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from gdsckpt.engine import probe_process
from gdsckpt.engine.probe_step import Finding, ProbeStep

LOOK_TIMEOUT_S = 20.0
"""To load CUDA's driver: takes seconds where a machine has many GPUs and none is in use."""

CHECKSUMS_TIMEOUT_S = 60.0
"""Numba compiles a kernel."""

_REASON_MAX_LENGTH = 300  # numba lists whole directories

_LOOK_AT_DRIVER = "Look at 'nvidia-smi' and the kernel log."


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU that this process sees.

    Attributes:
        number: CUDA's, as N in torch's ``cuda:N``.
        name: The product.
        uuid: 32 hex digits.
        pci_bus_id: As CUDA gives it.
        numa_node: -1 where nothing tells.
        compute_capability: 10 * major + minor.
        has_gpu_direct_rdma: Whether the driver says that other devices can reach its memory.
        is_coherent_with_host: Whether it shares the host's page tables (Grace).
        cuda_version: Of the driver: 1000 * major + 10 * minor.
    """

    number: int
    name: str
    uuid: str
    pci_bus_id: str
    numa_node: int
    compute_capability: int
    has_gpu_direct_rdma: bool
    is_coherent_with_host: bool
    cuda_version: int


@dataclass(frozen=True, slots=True)
class Look:
    """What a child process saw of CUDA's driver and of cuFile.

    Attributes:
        cuda_missing: Why CUDA cannot be used; empty if it can.
        cuda_version: Of the driver; 0 where it is not known.
        gpus: In CUDA's order.
        cufile_missing: Why cuFile cannot be loaded; empty if it can.
        cufile_path: The library.
        cufile_version: 1000 * major + 10 * minor.
        mend: What can be done about CUDA.
    """

    cuda_missing: str
    cuda_version: int
    gpus: tuple[Gpu, ...]
    cufile_missing: str
    cufile_path: str
    cufile_version: int
    mend: str


def look(libcuda: str, candidates: Sequence[str], *, timeout_s: float = LOOK_TIMEOUT_S) -> Look:
    """Have a child process load CUDA's driver and libcufile, which may hang or end a process.

    Args:
        libcuda: The setting; empty for the system's library.
        candidates: What to try for libcufile.
        timeout_s: Limit of both together.
    """
    request = {"libcuda": libcuda, "candidates": list(candidates)}
    outcome = probe_process.run("look", request, timeout_s=timeout_s)
    facts = outcome.facts
    is_known = "cuda_missing" in facts
    version = int(facts.get("cuda_version", 0))
    not_reached = f"it was not tried: {outcome.failure}" if not is_known else outcome.failure
    return Look(
        cuda_missing=str(facts["cuda_missing"]) if is_known else outcome.failure,
        cuda_version=version,
        gpus=gpus_from(facts.get("devices", []), version),
        cufile_missing=str(facts.get("cufile_missing", not_reached)),
        cufile_path=str(facts.get("cufile_path", "")),
        cufile_version=int(facts.get("cufile_version", 0)),
        mend="" if is_known and not facts["cuda_missing"] else _LOOK_AT_DRIVER,
    )


def gpus_from(devices: Sequence[Mapping[str, Any]], cuda_version: int) -> tuple[Gpu, ...]:
    """Make GPUs of what ``native.cuda_devices`` gives."""
    return tuple(
        Gpu(number=number, cuda_version=cuda_version, **facts)
        for number, facts in enumerate(devices)
    )


def gpus_here() -> tuple[Gpu, ...]:
    """Describe the GPUs by the driver that this process has loaded.

    Raises:
        EngineUnavailableError: CUDA cannot be used.
    """
    from gdsckpt import native

    return gpus_from(native.cuda_devices(), native.cuda_version())


def cuda_steps(found: Look) -> list[ProbeStep]:
    """Say what there is of CUDA."""
    version = version_text(found.cuda_version)
    if found.cuda_missing:
        is_absent = found.cuda_missing.startswith("no CUDA driver")
        reason = found.cuda_missing + (". Not needed to save host memory" if is_absent else "")
        mend = "" if is_absent else found.mend
        return [ProbeStep("cuda_driver", ok=False, reason=reason, mend=mend)]
    return [
        ProbeStep("cuda_driver", ok=True, reason=f"driver for CUDA {version}"),
        ProbeStep("gpus", ok=bool(found.gpus), reason=_describe(found.gpus)),
    ]


def version_text(version: int) -> str:
    """Write 13020 as ``13.2``: CUDA's way to number its versions, and cuFile's."""
    return f"{version // 1000}.{version % 1000 // 10}"


def _describe(gpus: Sequence[Gpu]) -> str:
    """Describe GPUs, equal neighbours together."""
    parts = []
    for (name, capability, node, is_coherent), group in groupby(gpus, key=_kind):
        numbers = [gpu.number for gpu in group]
        shown = f"cuda:{numbers[0]}"
        if len(numbers) > 1:
            shown += f" to cuda:{numbers[-1]}"
        place = f"NUMA node {node}" if node >= 0 else "NUMA node unknown"
        memory = ", memory coherent with the host" if is_coherent else ""
        parts.append(
            f"{shown}: {name}, compute capability {capability // 10}.{capability % 10}, "
            f"{place}{memory}"
        )
    return "; ".join(parts) or "none"


def _kind(gpu: Gpu) -> tuple[str, int, int, bool]:
    return gpu.name, gpu.compute_capability, gpu.numa_node, gpu.is_coherent_with_host


def checksums_finding() -> Finding:
    """Tell whether checksums can be taken on GPUs, as far as that shows without doing so."""
    missing = _missing_package()
    if missing:
        reason = f"{missing} is not installed, and bytes that pass the CPU by need checksums"
        mend = "pip install 'gdsckpt[gpu]'"
    else:
        reason, mend = f"numba-cuda {importlib.metadata.version('numba-cuda')}", ""
    return Finding(
        ProbeStep("device_checksums", ok=not missing, reason=reason, mend=mend),
        rules_out=bool(missing),
    )


@functools.cache
def _missing_package() -> str:
    for package, module in (("numba", "numba"), ("numba-cuda", "numba_cuda")):
        try:
            importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            return package
        if importlib.util.find_spec(module) is None:
            return package
    return ""


def tried_checksums_finding(libcuda: str, *, timeout_s: float = CHECKSUMS_TIMEOUT_S) -> Finding:
    """Take a checksum on the first GPU, in a child process."""
    cheap = checksums_finding()
    if not cheap.step.ok:
        return cheap
    request = {"libcuda": libcuda, "folders": [entry for entry in sys.path if entry]}
    outcome = probe_process.run("checksums", request, timeout_s=timeout_s)
    found = outcome.failure or "a checksum taken on the GPU agrees with zlib's"
    reason = textwrap.shorten(f"{cheap.step.reason}: {found}", _REASON_MAX_LENGTH)
    mend = outcome.mend or "pip install 'gdsckpt[gpu]', for the CUDA version of the driver"
    return Finding(
        ProbeStep(
            "device_checksums",
            ok=not outcome.failure,
            reason=reason,
            mend=mend if outcome.failure else "",
        ),
        rules_out=bool(outcome.failure),
    )
