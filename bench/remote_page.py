"""Results of `bench/remote.py` as a Markdown page. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench.markdown import table
from bench.results import Target

_WHATS = {
    "upload": "Upload",
    "download": "Download to a file, until it is on the drive",
    "memory": "Download into memory that is there",
}
_SERVERS = {
    "plain": "null server, plain HTTP",
    "tls": "null server, TLS 1.3",
    "seaweedfs": "SeaweedFS, plain HTTP",
}


def page(report: Mapping[str, Any], held: Sequence[Target]) -> str:
    """Write the whole page.

    Args:
        report: What goes into the JSON file.
        held: Its targets.
    """
    parts = [_head(report)]
    if held:
        parts.append(_targets(held))
    parts += [_table(name, found) for name, found in report["results"].items()]
    missing = _missing(report)
    return "\n".join([*parts, missing] if missing else parts)


def _head(report: Mapping[str, Any]) -> str:
    machine, plan = report["machine"], report["plan"]
    versions = ", ".join(f"{name} {found}" for name, found in report["versions"].items() if found)
    sizes = [plan[name] / 2**20 for name in ("state_bytes", "seaweedfs_state_bytes")]
    return (
        "# Clients of object stores\n\n"
        f"    {report['command']}\n\n"
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_bytes'] / 2**30:.0f} GiB, "
        f"Linux {machine['kernel']}, {machine['file_system']} ({machine['mount_options']}), "
        f"load average {machine['load_average_before']} before. {versions}.\n\n"
        f"A file of {sizes[0]:.0f} MiB ({sizes[1]:.0f} MiB for SeaweedFS) in the page cache, parts "
        f"of {plan['part_bytes'] / 2**20:g} MiB, {plan['streams']} streams where a client can be "
        f"told; {plan['rounds']} rounds, in another order each. CPU is user and system time of the "
        "client alone: a library in a process of its own, imports excluded; a program with its "
        'start. It is a median, with the spread beside it; "by ours" is the median over the rounds '
        "of the CPU by that of gdsckpt in the same round. Clients and servers share the cores, so "
        "rates are no rates of a network. Private memory is anonymous and shared memory without a "
        "file, the largest seen in any round; growth is without what was there when the transfer "
        "began (interpreter and imports).\n"
    )


def _targets(held: Sequence[Target]) -> str:
    rows = [
        (
            target.what,
            f"{target.measured:.2f} {target.unit}".rstrip(),
            ("at least " if target.is_minimum else "at most ")
            + f"{target.bound:g} {target.unit}".rstrip(),
            "yes" if target.is_met else "**no**",
        )
        for target in held
    ]
    return "## Targets\n\n" + table(("what", "measured", "target", "met"), rows)


def _table(name: str, rows: Sequence[Mapping[str, Any]]) -> str:
    what, _, server = name.partition("_")
    header = (
        "client",
        "CPU s/GB",
        "min to max",
        "by ours",
        "GB/s",
        "private MB",
        "growth MB",
        "settings",
    )
    body = [
        (
            row["method"],
            f"{row['cpu_s_per_gb']:.2f}",
            f"{row['min_cpu_s_per_gb']:.2f} to {row['max_cpu_s_per_gb']:.2f}",
            "" if row["cpu_by_ours"] is None else f"{row['cpu_by_ours']:.2f}",
            f"{row['gb_per_s']:.2f}",
            f"{row['private_mb']:.0f}",
            f"{row['private_growth_mb']:.0f}",
            row["settings"],
        )
        for row in rows
    ]
    return f"## {_WHATS[what]}: {_SERVERS[server]}\n\n" + table(header, body)


def _missing(report: Mapping[str, Any]) -> str:
    lines = [
        f"* {name.replace('_', ', ')}: {method}: {reason}"
        for name, found in report["missing"].items()
        for method, reason in found.items()
    ]
    return "## Left out\n\n" + "\n".join(lines) + "\n" if lines else ""
