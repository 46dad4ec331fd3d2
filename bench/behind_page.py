"""Results of `bench/checkpointer.py` as a Markdown page. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench import markdown
from bench.results import Target

Rows = Sequence[Mapping[str, Any]]


def page(report: Mapping[str, Any], held: Sequence[Target]) -> str:
    """Write the whole page.

    Args:
        report: What goes into the JSON file.
        held: Its targets.
    """
    parts = [_head(report)]
    if held:
        parts.append(markdown.targets(held))
    for name, write in (("stall", _stall), ("beside", _beside), ("small", _small)):
        if name in report["results"]:
            parts.append(write(report["results"][name]))
    if report["missing"]:
        lines = [f"* {what}: {why}" for what, why in report["missing"].items()]
        parts.append("## Left out\n\n" + "\n".join(lines) + "\n")
    return "\n".join(parts)


def _head(report: Mapping[str, Any]) -> str:
    plan = report["plan"]
    return (
        f"# Saves behind a training\n\n{markdown.machine(report)}"
        f"A GPT of {plan['num_parameters'] / 1e6:.1f} million parameters with AdamW: "
        f"{plan['payload_bytes'] / 2**30:.3g} GiB in {plan['num_tensors']} tensors of host memory. "
        f"A step has {plan['num_tokens']} tokens. {plan['rounds']} rounds, in another order each. "
        "Times are medians; a ratio is the median over the rounds of the ratios in one round.\n"
    )


def _stall(rows: Rows) -> str:
    header = ("method", "call ms", "min to max ms", "next step waits, ms", "both, ms", "by copy")
    body = [
        (
            row["method"],
            _ms(row["call_s"]),
            f"{_ms(row['min_call_s'])} to {_ms(row['max_call_s'])}",
            _ms(row["wait_s"]),
            _ms(row["stall_s"]),
            _number(row["by_copy"]),
        )
        for row in rows
    ]
    return "## Stall of the training\n\n" + markdown.table(header, body)


def _beside(rows: Rows) -> str:
    header = (
        "beside the training",
        "steps",
        "step ms",
        "min to max ms",
        "by fio",
        "by nothing",
        "forward and backward ms",
        "by fio",
        "GB/s",
    )
    body = [
        (
            row["method"],
            str(row["num_steps"]),
            _ms(row["step_s"]),
            f"{_ms(row['min_step_s'])} to {_ms(row['max_step_s'])}" if row["num_steps"] else "",
            _number(row["step_by_fio"]),
            _number(row["step_by_nothing"]),
            _ms(row["forward_backward_s"]),
            _number(row["forward_backward_by_fio"]),
            _number(row["gb_per_s"]),
        )
        for row in rows
    ]
    return "## Steps while a save is written\n\n" + markdown.table(header, body)


def _small(rows: Rows) -> str:
    header = ("method", "call s", "until durable s", "few tensors s", "beyond s", "min to max s")
    body = [
        (
            row["method"],
            *(f"{row[name]:.2f}" for name in ("call_s", "many_s", "few_s", "beyond_s")),
            f"{row['min_beyond_s']:.2f} to {row['max_beyond_s']:.2f}",
        )
        for row in rows
    ]
    return "## Many small tensors\n\n" + markdown.table(header, body)


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1000:.1f}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
