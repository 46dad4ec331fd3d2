import gzip
import platform

import pytest
from host_trees import BUS_ID, STATIC_BAR, p2pdma_host, put

from gdsckpt.engine.probe_kernel import kernel_findings, looks_installed
from gdsckpt.engine.probe_tree import HostTree


def by_name(tree, bus_ids=(BUS_ID,)):
    return {finding.step.name: finding for finding in kernel_findings(tree, bus_ids)}


def test_p2pdma_where_all_is_there(tmp_path):
    found = by_name(p2pdma_host(tmp_path))
    assert found["p2pdma"].step.ok
    assert not found["p2pdma"].rules_out
    assert "open kernel modules 580.65.06" in found["p2pdma"].step.reason
    assert not found["nvidia_fs"].step.ok
    assert found["kernel_modules"].step.ok


def test_nothing_to_be_seen_rules_out_only_what_makes_cufile_hang(tmp_path):
    found = by_name(HostTree(tmp_path))
    assert [name for name, finding in found.items() if finding.rules_out] == ["kernel_modules"]
    assert "wait for it for ever" in found["kernel_modules"].step.reason
    assert not found["p2pdma"].step.ok  # not known is not good


@pytest.mark.parametrize(
    ("relative", "content", "said", "mended"),
    [
        ("proc/config.gz", gzip.compress(b"# CONFIG_PCI_P2PDMA is not set\n"), "no CONFIG", "6.2"),
        (
            "proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15",
            "proprietary kernel modules 550.54.15",
            "open kernel modules",
        ),
    ],
)
def test_p2pdma_without_what_it_needs_is_ruled_out(tmp_path, relative, content, said, mended):
    tree = p2pdma_host(tmp_path)
    put(tmp_path, relative, content)
    finding = by_name(tree)["p2pdma"]
    assert finding.rules_out
    assert said in finding.step.reason
    assert mended in finding.step.mend


@pytest.mark.parametrize(
    ("relative", "content", "mended"),
    [
        ("proc/driver/nvidia/params", 'RegistryDwords: ""\n', "RMForceStaticBar1=1"),
        ("sys/module/nvme_core/parameters/multipath", "Y\n", "nvme_core.multipath=N"),
        (f"sys/bus/pci/devices/{BUS_ID.lower()}/iommu_group/type", "DMA-FQ\n", "iommu=pt"),
    ],
)
def test_p2pdma_with_a_doubt_is_left_to_the_trial(tmp_path, relative, content, mended):
    tree = p2pdma_host(tmp_path)
    put(tmp_path, relative, content)
    finding = by_name(tree)["p2pdma"]
    assert not finding.step.ok
    assert not finding.rules_out
    assert mended in finding.step.mend


@pytest.mark.parametrize("kind", ["identity", ""])
def test_iommu_that_passes_through_is_good(tmp_path, kind):
    tree = p2pdma_host(tmp_path)
    device = f"sys/bus/pci/devices/{BUS_ID.lower()}"
    put(tmp_path, f"{device}/vendor", "0x10de")
    if kind:
        put(tmp_path, f"{device}/iommu_group/type", kind)
    assert by_name(tree)["p2pdma"].step.ok


def test_kernel_config_in_boot(tmp_path):
    tree = p2pdma_host(tmp_path)
    (tmp_path / "proc/config.gz").unlink()
    put(tmp_path, f"boot/config-{platform.release()}", "CONFIG_PCI_P2PDMA=y\n")
    assert f"/boot/config-{platform.release()}" in by_name(tree)["p2pdma"].step.reason


@pytest.mark.parametrize("damaged", [b"no gzip", gzip.compress(b"CONFIG_PCI=y\n" * 99)[:30]])
def test_kernel_config_that_is_damaged_is_not_known(tmp_path, damaged):
    tree = p2pdma_host(tmp_path)
    put(tmp_path, "proc/config.gz", damaged)
    assert "is not to be seen" in by_name(tree)["p2pdma"].step.reason


def test_nvidia_fs_makes_p2pdma_needless(tmp_path):
    tree = p2pdma_host(tmp_path)
    put(tmp_path, "proc/config.gz", gzip.compress(b"# CONFIG_PCI_P2PDMA is not set\n"))
    put(tmp_path, "proc/modules", "nvidia_fs 1 2 - Live 0x0\n")
    put(tmp_path, "sys/module/nvidia_fs/version", "2.25.6\n")
    put(tmp_path, "dev/nvidia-fs0")
    found = by_name(tree)
    assert found["nvidia_fs"].step.ok
    assert "2.25.6" in found["nvidia_fs"].step.reason
    assert not found["p2pdma"].rules_out


def test_nvidia_fs_that_is_not_in_the_container(tmp_path):
    tree = p2pdma_host(tmp_path)
    put(tmp_path, "proc/modules", "nvidia_fs 1 2 - Live 0x0\n")
    finding = by_name(tree)["nvidia_fs"]
    assert not finding.step.ok
    assert "--device /dev/nvidia-fs0" in finding.step.mend


@pytest.mark.parametrize(
    ("relative", "content", "shown"),
    [
        (".dockerenv", "", "docker"),
        ("run/.containerenv", "", "podman"),
        ("proc/1/cgroup", "0::/kubepods/besteffort/pod1\n", "kubepods"),
        ("proc/1/cgroup", "0::/init.scope\n", "nothing"),
    ],
)
def test_container(tmp_path, relative, content, shown):
    put(tmp_path, relative, content)
    step = by_name(HostTree(tmp_path))["container"].step
    assert step.ok
    assert step.reason.startswith(shown)


def test_looks_installed_by_module_node_or_registry(tmp_path):
    assert not looks_installed(HostTree(tmp_path / "plain"))
    put(tmp_path, "module/proc/modules", "nvidia_fs 1 2 - Live 0x0\n")
    put(tmp_path, "node/dev/nvidia-fs0")
    put(tmp_path, "registry/proc/driver/nvidia/params", STATIC_BAR)
    for name in ("module", "node", "registry"):
        assert looks_installed(HostTree(tmp_path / name)), name
