"""Say what this host, its GPUs and the file system of a directory can do, and what to do about it.

A few files are made in the directory and removed, of 64 MiB at most. Exit code: 0 when saves and
loads work there, 1 when something that they need does not, such as an engine that was asked for.
"""

from __future__ import annotations

import argparse
import textwrap

from gdsckpt.cli import output
from gdsckpt.cli.exits import Exit
from gdsckpt.engine.probe import ProbeReport, probe


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "directory", nargs="?", default=".", metavar="DIR", help="where to save (default: .)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """Probe and print."""
    report = probe(arguments.directory, config=arguments.config)
    if arguments.json:
        output.json_document(report.as_dict())
    else:
        _print(report)
    return Exit.OK if report.ok else Exit.FINDING


def _print(report: ProbeReport) -> None:
    width = max(len(step.name) for step in report.steps)
    for step in report.steps:
        mark = "ok" if step.ok else "FAIL" if step.needed else "no"
        _print_hanging(f"{mark:<4}  {step.name:<{width}}  ", step.reason)
        if step.mend:
            _print_hanging(f"{'':<{width + 8}}-> ", step.mend)
    output.line()
    output.line(f"engine {report.engine or 'none'}:")
    for reason in report.engine_reasons:
        _print_hanging("  ", reason)


def _print_hanging(head: str, text: str) -> None:
    wrapped = textwrap.wrap(output.escape(text), 100 - len(head), break_long_words=False) or [""]
    output.line(head + wrapped[0])
    for rest in wrapped[1:]:
        output.line(" " * len(head) + rest)
