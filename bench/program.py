"""What the benchmarks have in common as programs: arguments, facts, and where results go."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import environment
from bench.results import Target
from gdsckpt.errors import ConfigError

Report = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Benchmark:
    """What one of them does by itself.

    Attributes:
        script: Its file, as it is named on a command line.
        schema: Version of what it writes as JSON.
        parse: Checks the arguments, with a parser of :func:`new_parser`; may raise ConfigError.
        measure: Given the options and an empty directory, makes ``plan``, ``results`` and what
            else its report has, and what had to be reached.
        page: Writes a report and its targets as Markdown.
        draw: Draws a report to a file; None where it has no plot.
    """

    script: str
    schema: int
    parse: Callable[[list[str]], argparse.Namespace]
    measure: Callable[[argparse.Namespace, Path], tuple[Report, list[Target]]]
    page: Callable[[Mapping[str, Any], Sequence[Target]], str]
    draw: Callable[[Report, Path], None] | None = None


def new_parser(description: str | None) -> argparse.ArgumentParser:
    """Make a parser that knows the arguments that all benchmarks have."""
    parser = argparse.ArgumentParser(prog="bench", description=description)
    add = parser.add_argument
    add("--dir", default=".", help="directory on the drive to use (default: this one)")
    add("--json", help="write the results there")
    add("--markdown", help="write the page there that is also printed")
    add("--quick", action="store_true", help="small and short, to see that it works")
    return parser


def run(benchmark: Benchmark, argv: Sequence[str] | None) -> int:
    """Run a benchmark, print its page, and write what was asked for.

    Args:
        benchmark: Which one.
        argv: Arguments; None takes those of the process.

    Returns:
        Exit status: 0 when it ran, whatever it measured; 2 for wrong arguments.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        options = benchmark.parse(words)
    except ConfigError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    report, held = _report(benchmark, options, words)
    text = benchmark.page(report, held)
    print(text)
    if options.json:
        Path(options.json).write_text(json.dumps(report, indent=1) + "\n")
    if options.markdown:
        Path(options.markdown).write_text(text)
    if benchmark.draw is not None and options.plot:
        benchmark.draw(report, Path(options.plot))
    return 0


def _report(
    benchmark: Benchmark, options: argparse.Namespace, words: list[str]
) -> tuple[Report, list[Target]]:
    Path(options.dir).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="gdsckpt-bench-", dir=options.dir) as made:
        directory = Path(made)
        facts = {
            "schema": benchmark.schema,
            "command": environment.command_line(words, benchmark.script),
            "machine": environment.machine(directory),
            "versions": environment.versions(),
            "settings": environment.settings(),
        }
        measured, held = benchmark.measure(options, directory)
    return {**facts, **measured, "targets": [target.as_dict() for target in held]}, held
