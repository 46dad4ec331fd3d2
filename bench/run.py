"""Measure save and load on this machine: ``python bench/run.py --help``."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # as a script, only its own folder is on the path
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import fio, markdown, methods, plot, program, results, scenarios
from bench.fio import FioOptions
from bench.results import Target
from bench.scenarios import Plan
from gdsckpt.errors import ConfigError
from gdsckpt.units import parse_bytes

SCENARIOS = ("save", "load", "small", "memory", "file_size")
GiB = 1 << 30


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; arguments and exit status are those of :func:`bench.program.run`."""
    benchmark = program.Benchmark(
        script="bench/run.py",
        schema=1,
        parse=_parse,
        measure=_measure,
        page=markdown.page,
        draw=plot.draw,
    )
    return program.run(benchmark, argv)


def _parse(words: list[str]) -> argparse.Namespace:
    parser = program.new_parser(__doc__)
    add = parser.add_argument
    add("--size", default=None, help="size of the state (default 4GiB)")
    add("--tensor", default=None, help="size of each tensor (default 64MiB)")
    add("--rounds", type=int, default=None, help="how often each method runs (default 5)")
    add("--only", default=",".join(SCENARIOS), help="some of " + ",".join(SCENARIOS))
    add("--plot", help="write a PNG there; needs matplotlib")
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


def _measure(options: argparse.Namespace, directory: Path) -> tuple[program.Report, list[Target]]:
    plan = _plan(options, directory)
    measured = _run(plan, options.only)
    return {"plan": _shown(plan), "results": measured}, results.targets(measured)


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


def _run(plan: Plan, only: tuple[str, ...]) -> dict[str, Any]:
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


if __name__ == "__main__":
    sys.exit(main())
