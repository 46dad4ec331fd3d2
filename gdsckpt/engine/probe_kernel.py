"""Probe steps about the kernel and NVIDIA's modules: which direct path they leave open.

What each path needs: NVIDIA GPUDirect Storage installation guide, and the release notes of GDS 1.13
(P2PDMA without nvidia-fs).
"""

from __future__ import annotations

import gzip
import os
import platform
import re
from collections.abc import Iterable
from dataclasses import dataclass

from gdsckpt.engine.probe_step import Finding, ProbeStep
from gdsckpt.engine.probe_tree import HostTree

_STATIC_BAR = "RMForceStaticBar1=1"
_REGISTRY = f"{_STATIC_BAR};RMForceDisableIomapWC=1;"
_NODES = "dev/nvidia-fs0"


@dataclass(frozen=True, slots=True)
class _Fact:
    """One thing that P2PDMA asks for: whether it is so, or None where nothing tells."""

    text: str
    holds: bool | None
    mend: str = ""
    is_essential: bool = False


def kernel_findings(tree: HostTree, pci_bus_ids: Iterable[str] = ()) -> list[Finding]:
    """Tell what the kernel offers to cuFile.

    Args:
        tree: The host.
        pci_bus_ids: Of the GPUs, as CUDA gives them.
    """
    nvidia_fs = _nvidia_fs_finding(tree)
    p2pdma = _p2pdma_finding(tree, list(pci_bus_ids))
    if nvidia_fs.step.ok:  # one way is enough
        p2pdma = Finding(p2pdma.step)
    return [_container_finding(tree), _modules_finding(tree), nvidia_fs, p2pdma]


def looks_installed(tree: HostTree) -> bool:
    """Tell whether somebody has set this machine up for GPUDirect Storage.

    The library is no sign of it: it comes with torch.
    """
    params = tree.text("proc/driver/nvidia/params") or ""
    return tree.has_module("nvidia_fs") or tree.exists(_NODES) or _STATIC_BAR in params


def _container_finding(tree: HostTree) -> Finding:
    """Not good or bad by itself: it explains others."""
    kind = tree.container()
    return Finding(ProbeStep("container", ok=True, reason=kind or "nothing shows a container"))


def _modules_finding(tree: HostTree) -> Finding:
    ok = tree.exists("proc/modules")
    return Finding(
        ProbeStep(
            "kernel_modules",
            ok=ok,
            reason="/proc/modules is there"
            if ok
            else "/proc/modules is missing: cuFileDriverOpen would wait for it for ever",
            mend="" if ok else "Use a kernel that can load modules; sandboxes often have none.",
        ),
        rules_out=not ok,
    )


def _nvidia_fs_finding(tree: HostTree) -> Finding:
    has_node = tree.exists(_NODES)
    is_usable = has_node and os.access(tree.path(_NODES), os.R_OK | os.W_OK)
    version = tree.text("sys/module/nvidia_fs/version")
    if not tree.has_module("nvidia_fs") and not has_node:
        reason = "the module nvidia_fs is not loaded"
        mend = "Load it (package nvidia-gds), unless the way of p2pdma is open."
    elif not has_node:
        reason = "the module nvidia_fs is loaded, but /dev/nvidia-fs0 is missing"
        mend = "In a container: docker run --device /dev/nvidia-fs0 ... for each of them."
    elif not is_usable:
        reason, mend = "/dev/nvidia-fs0 may not be opened by this user", "Check its owner and mode."
    else:
        reason, mend = f"the module nvidia_fs {version or ''} is loaded".replace("  ", " "), ""
    return Finding(ProbeStep("nvidia_fs", ok=not mend, reason=reason, mend=mend))


def _p2pdma_finding(tree: HostTree, pci_bus_ids: list[str]) -> Finding:
    facts = [
        _config_fact(tree),
        _open_modules_fact(tree),
        _registry_fact(tree),
        *_multipath_facts(tree),
        *_iommu_facts(tree, pci_bus_ids),
    ]
    bad = [fact for fact in facts if fact.holds is False]
    is_known = all(fact.holds for fact in facts)
    return Finding(
        ProbeStep(
            "p2pdma",
            ok=is_known,
            reason="; ".join(fact.text for fact in facts),
            mend=" ".join(fact.mend for fact in bad if fact.mend),
        ),
        rules_out=any(fact.is_essential for fact in bad),
    )


def _config_fact(tree: HostTree) -> _Fact:
    found = _kernel_config(tree)
    if found is None:
        return _Fact("the kernel's configuration is not to be seen", None)
    where, config = found
    if re.search(r"^CONFIG_PCI_P2PDMA=y$", config, re.MULTILINE):
        return _Fact(f"CONFIG_PCI_P2PDMA=y in {where}", holds=True)
    return _Fact(
        f"no CONFIG_PCI_P2PDMA in {where}",
        holds=False,
        mend="Use a kernel with it: Ubuntu's from 6.2, or that of RHEL 9.4.",
        is_essential=True,
    )


def _kernel_config(tree: HostTree) -> tuple[str, str] | None:
    """Give path and text of the configuration that the running kernel was built with."""
    try:
        raw = tree.path("proc/config.gz").read_bytes()
        return "/proc/config.gz", gzip.decompress(raw).decode(errors="replace")
    except (OSError, EOFError):
        pass
    release = platform.release()
    for relative in (f"boot/config-{release}", f"lib/modules/{release}/config"):
        text = tree.text(relative)
        if text:
            return f"/{relative}", text
    return None


def _open_modules_fact(tree: HostTree) -> _Fact:
    text = tree.text("proc/driver/nvidia/version")
    if text is None:
        return _Fact("/proc/driver/nvidia/version is missing", None)
    line = text.splitlines()[0] if text else ""
    version = re.search(r"\d+\.\d+(\.\d+)?", line)
    shown = version[0] if version else "of unknown version"
    if "Open Kernel Module" in line:
        return _Fact(f"open kernel modules {shown}", holds=True)
    return _Fact(
        f"proprietary kernel modules {shown}",
        holds=False,
        mend="Install NVIDIA's open kernel modules (570 or newer).",
        is_essential=True,
    )


def _registry_fact(tree: HostTree) -> _Fact:
    text = tree.text("proc/driver/nvidia/params")
    if text is None:
        return _Fact("/proc/driver/nvidia/params is missing", None)
    found = re.search(r'^RegistryDwords:\s*"(.*)"', text, re.MULTILINE)
    words = found[1] if found else ""
    if _STATIC_BAR in words:
        return _Fact(f"RegistryDwords {words}", holds=True)
    return _Fact(
        f"RegistryDwords {words or 'are empty'}",
        holds=False,
        mend=f'Set NVreg_RegistryDwords="{_REGISTRY}" for the module nvidia in /etc/modprobe.d, '
        "and start the machine anew.",
    )


def _multipath_facts(tree: HostTree) -> list[_Fact]:
    value = tree.text("sys/module/nvme_core/parameters/multipath")
    if value != "Y":
        return []
    return [
        _Fact(
            "nvme_core.multipath=Y",
            holds=False,
            mend="Start the kernel with nvme_core.multipath=N.",
        )
    ]


def _iommu_facts(tree: HostTree, pci_bus_ids: list[str]) -> list[_Fact]:
    """Tell whether the IOMMU translates for a GPU, which keeps drives from reaching it."""
    kinds = {
        tree.text(f"sys/bus/pci/devices/{bus_id.lower()}/iommu_group/type")
        for bus_id in pci_bus_ids
        if tree.exists(f"sys/bus/pci/devices/{bus_id.lower()}")
    }
    if not kinds:
        return []
    translating = sorted(kind for kind in kinds if kind and kind.startswith("DMA"))
    if not translating:
        return [_Fact("the IOMMU is off or passes through", holds=True)]
    return [
        _Fact(
            f"the IOMMU translates ({', '.join(translating)})",
            holds=False,
            mend="Start the kernel with iommu=pt.",
        )
    ]
