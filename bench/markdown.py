"""Results as a Markdown page. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench.results import Target

_TITLES = {
    "save": "Durable save",
    "load_cold": "Load, page cache dropped",
    "load_warm": "Load, file in the page cache",
    "small_save": "Durable save of many small tensors",
    "small_load_cold_safe": "Load of many small tensors, weights_only=True, page cache dropped",
    "small_load_cold_full": "Load of many small tensors, weights_only=False, page cache dropped",
    "small_load_warm_safe": "Load of many small tensors, weights_only=True, in the page cache",
    "small_load_warm_full": "Load of many small tensors, weights_only=False, in the page cache",
}


def page(report: Mapping[str, Any], held: Sequence[Target]) -> str:
    """Write the whole page.

    Args:
        report: What goes into the JSON file.
        held: Its targets.
    """
    results = report["results"]
    parts = [_head(report), targets(held)]
    parts += [_scenario(title, results[key]) for key, title in _TITLES.items() if key in results]
    if "memory" in results:
        parts.append(_memory(results["memory"]))
    if "file_size" in results:
        parts.append(_file_size(results["file_size"]))
    return "\n".join(parts)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Write one table; all columns but the first are aligned to the right."""
    lines = ["| " + " | ".join(header) + " |"]
    lines.append("|---|" + "---:|" * (len(header) - 1))
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def machine(report: Mapping[str, Any]) -> str:
    """Write the command, and what it ran on."""
    machine = report["machine"]
    versions = ", ".join(f"{k} {v}" for k, v in report["versions"].items() if v)
    return (
        f"    {report['command']}\n\n"
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_bytes'] / 2**30:.0f} GiB, "
        f"Linux {machine['kernel']}, {machine['file_system']} ({machine['mount_options']}), "
        f"load average {machine['load_average_before']} before. {versions}.\n\n"
    )


def _head(report: Mapping[str, Any]) -> str:
    plan = report["plan"]
    fio = plan["fio"]
    return (
        f"# Benchmark\n\n{machine(report)}"
        f"State: {plan['total_bytes'] / 2**30:g} GiB in tensors of "
        f"{plan['tensor_bytes'] / 2**20:g} MiB; {plan['rounds']} rounds, in another order each. "
        "Times are medians; a ratio is the median over the rounds of the rates in the same round, "
        "more than 1 being faster. Every save goes to a new file and ends with the file and its "
        f"directory synced. fio: {fio['ioengine']}, {fio['iodepth']} requests of "
        f"{fio['block_bytes'] / 2**20:g} MiB in flight, timed by its own clock, which leaves out "
        "the start of its process and includes the final fsync. Before each run as much memory as "
        "it needs is touched and freed, so that none pays for pages that a hypervisor took back.\n"
    )


def targets(held: Sequence[Target]) -> str:
    """Write the table of what had to be reached."""
    rows = [
        (
            target.what,
            _number(target.measured, target.unit),
            ("at least " if target.is_minimum else "at most ") + _number(target.bound, target.unit),
            "yes" if target.is_met else "**no**",
        )
        for target in held
    ]
    return "## Targets\n\n" + table(("what", "measured", "target", "met"), rows)


def _number(value: float, unit: str) -> str:
    digits = f"{value:.0f}" if unit == "MiB" else f"{value:.2f}"
    return f"{digits} {unit}".rstrip()


def _scenario(title: str, rows: Sequence[Mapping[str, Any]]) -> str:
    header = ("method", "median s", "min to max s", "GB/s", "by drive", "by torch", "CPU s/GB")
    body = [
        (
            row["method"],
            f"{row['median_s']:.3f}",
            f"{row['min_s']:.3f} to {row['max_s']:.3f}",
            f"{row['gb_per_s']:.2f}",
            _ratio(row["ratio_to_limit"]),
            _ratio(row["ratio_to_torch"]),
            f"{row['cpu_s_per_gb']:.2f}",
        )
        for row in rows
    ]
    return f"## {title}\n\n" + table(header, body)


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _memory(rows: Sequence[Mapping[str, Any]]) -> str:
    body = [
        (
            row["library"],
            f"{row['state_bytes'] / 2**30:g}",
            f"{row['save_extra_bytes'] / 2**20:.0f}",
            f"{row['load_extra_bytes'] / 2**20:.0f}",
        )
        for row in rows
    ]
    header = ("library", "state, GiB", "save, MiB", "load, MiB")
    return "## Peak resident memory beyond the state\n\n" + table(header, body)


def _file_size(rows: Sequence[Mapping[str, Any]]) -> str:
    body = []
    for row in rows:
        payload = row["payload_bytes"]
        ours, stock = row["gdsckpt_bytes"], row["torch_bytes"]
        body.append(
            (
                f"{row['tensor_bytes'] / 1024:g}",
                f"{(ours / payload - 1) * 100:.2f}",
                f"{(stock / payload - 1) * 100:.2f}",
            )
        )
    header = ("tensor, KiB", "gdsckpt, % over payload", "torch.save, % over payload")
    return "## File size\n\n" + table(header, body)
