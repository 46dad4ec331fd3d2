"""Measure save and load on this machine: ``python bench/run.py --help``."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # as a script, only its own folder is on the path
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import environment, fio, markdown, methods, plot, results, scenarios
from bench.fio import FioOptions
from bench.scenarios import Plan
from gdsckpt.errors import ConfigError
from gdsckpt.units import parse_bytes

SCENARIOS = ("save", "load", "small", "memory", "file_size")
SCHEMA = 1
GiB = 1 << 30


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark.

    Args:
        argv: Arguments; None takes those of the process.

    Returns:
        Exit status: 0 when it ran, whatever it measured; 2 for wrong arguments.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        options = _parse(words)
    except ConfigError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    Path(options.dir).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="gdsckpt-bench-", dir=options.dir) as directory:
        plan = _plan(options, Path(directory))
        report = {
            "schema": SCHEMA,
            "command": environment.command_line(words),
            "machine": environment.machine(plan.directory),
            "versions": environment.versions(),
            "settings": environment.settings(),
            "plan": _shown(plan),
            "results": _measure(plan, options.only),
        }
    held = results.targets(report["results"])
    report["targets"] = [target.as_dict() for target in held]
    text = markdown.page(report, held)
    print(text)
    _write(options, report, text)
    return 0


def _parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    add = parser.add_argument
    add("--size", default=None, help="size of the state (default 4GiB)")
    add("--tensor", default=None, help="size of each tensor (default 64MiB)")
    add("--rounds", type=int, default=None, help="how often each method runs (default 5)")
    add("--dir", default=".", help="directory on the drive to measure (default: this one)")
    add("--only", default=",".join(SCENARIOS), help="some of " + ",".join(SCENARIOS))
    add("--json", help="write the results there")
    add("--plot", help="write a PNG there; needs matplotlib")
    add("--markdown", help="write the page there that is also printed")
    add("--quick", action="store_true", help="small and short, to see that it works")
    add("--fio-engine", default="libaio", help="fio's ioengine (default libaio)")
    add("--fio-depth", type=int, default=4, help="fio's iodepth (default 4)")
    options = parser.parse_args(words)
    options.size = parse_bytes(options.size or ("256MiB" if options.quick else "4GiB"))
    options.tensor = parse_bytes(options.tensor or ("16MiB" if options.quick else "64MiB"))
    options.rounds = options.rounds or (2 if options.quick else 5)
    options.only = tuple(options.only.split(","))
    unknown = [name for name in options.only if name not in SCENARIOS]
    if unknown or options.tensor % 8 or not 0 < options.tensor <= options.size:
        raise ConfigError(
            f"--only is {','.join(options.only)}, --tensor {options.tensor}, --size "
            f"{options.size}. Name some of {','.join(SCENARIOS)}; a tensor has a multiple of 8 "
            "bytes and fits into the state.",
            field="only" if unknown else "tensor",
        )
    return options


def _plan(options: argparse.Namespace, directory: Path) -> Plan:
    num_tensors = options.size // options.tensor
    return Plan(
        directory=directory,
        total_bytes=num_tensors * options.tensor,
        tensor_bytes=options.tensor,
        rounds=options.rounds,
        num_small=10_000 if options.quick else 100_000,
        memory_bytes=(options.size,) if options.quick else (GiB, 4 * GiB),
        fio=FioOptions(options.fio_engine, options.fio_depth),
    )


def _shown(plan: Plan) -> dict[str, Any]:
    shown = dataclasses.asdict(plan)
    del shown["directory"]
    return shown


def _measure(plan: Plan, only: tuple[str, ...]) -> dict[str, Any]:
    measured: dict[str, Any] = {}
    if fio.version() is None:
        print("fio is not installed: a naive loop of direct I/O stands for the drive's limit")
    methods.warm_up(plan.directory)
    if "save" in only:
        print("save")
        measured["save"] = results.summarize(scenarios.measure_save(plan))
    if "load" in only:
        print("load")
        for name, samples in scenarios.measure_load(plan).items():
            measured[name] = results.summarize(samples)
    if "small" in only:
        print(f"small: {plan.num_small} tensors of {scenarios.SMALL_TENSOR_BYTES} bytes")
        for name, samples in scenarios.measure_small(plan).items():
            measured[name] = results.summarize(samples)
    if "memory" in only:
        measured["memory"] = scenarios.measure_memory(plan)
    if "file_size" in only:
        measured["file_size"] = scenarios.measure_file_size(plan)
    return measured


def _write(options: argparse.Namespace, report: dict[str, Any], text: str) -> None:
    if options.json:
        Path(options.json).write_text(json.dumps(report, indent=1) + "\n")
    if options.markdown:
        Path(options.markdown).write_text(text)
    if options.plot:
        plot.draw(report, Path(options.plot))


if __name__ == "__main__":
    sys.exit(main())
