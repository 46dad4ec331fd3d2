"""Measure what saves behind a training cost it: ``python bench/checkpointer.py --help``."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # as a script, only its own folder is on the path
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import behind_page, behind_results, behind_rounds, fio, program
from bench.behind_rounds import Plan
from bench.fio import FioOptions
from bench.results import Target
from bench.training import BYTES_PER_PARAMETER, TENSORS_PER_PARAMETER, Training
from gdsckpt.errors import ConfigError
from gdsckpt.units import parse_bytes

SCENARIOS = ("stall", "beside", "small")
SMALLEST_STATE_BYTES = 1 << 20


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; arguments and exit status are those of :func:`bench.program.run`."""
    benchmark = program.Benchmark(
        script="bench/checkpointer.py",
        schema=1,
        parse=_parse,
        measure=_measure,
        page=behind_page.page,
    )
    return program.run(benchmark, argv)


def _parse(words: list[str]) -> argparse.Namespace:
    parser = program.new_parser(__doc__)
    add = parser.add_argument
    add("--size", default=None, help="size of weights and moments, about (default 1GiB)")
    add("--tokens", type=int, default=None, help="tokens of a training step (default 16)")
    add("--rounds", type=int, default=None, help="how often each way is measured (default 5)")
    add("--saves", type=int, default=None, help="saves of a round, for the steps (default 6)")
    add("--small", type=int, default=None, help="number of small tensors (default 100000)")
    add("--only", default=",".join(SCENARIOS), help="some of " + ",".join(SCENARIOS))
    options = parser.parse_args(words)
    options.size = parse_bytes(options.size or ("64MiB" if options.quick else "1GiB"))
    for field, quick, usual in (
        ("tokens", 8, 16),
        ("rounds", 2, 5),
        ("saves", 2, 6),
        ("small", 4_000, 100_000),
    ):
        if getattr(options, field) is None:
            setattr(options, field, quick if options.quick else usual)
    options.only = tuple(options.only.split(","))
    smallest = (SMALLEST_STATE_BYTES, 1, 1, 1, 4 * TENSORS_PER_PARAMETER)
    given = (options.size, options.tokens, options.rounds, options.saves, options.small)
    is_enough = all(a >= b for a, b in zip(given, smallest, strict=True))
    if not is_enough or not set(options.only) <= set(SCENARIOS):
        raise ConfigError(
            f"--only is {','.join(options.only)}; size, tokens, rounds, saves and small are "
            f"{given}. Name some of {','.join(SCENARIOS)}; the least are {smallest}.",
            field="only",
        )
    return options


def _measure(options: argparse.Namespace, directory: Path) -> tuple[program.Report, list[Target]]:
    plan = Plan(
        directory=directory,
        state_bytes=options.size,
        num_tokens=options.tokens,
        rounds=options.rounds,
        num_saves=options.saves,
        num_small=options.small,
        fio=FioOptions(),
    )
    training = Training(plan.state_bytes, plan.num_tokens)
    tensors = training.tensors()
    shown = dataclasses.asdict(plan)
    del shown["directory"]
    payload_bytes = sum(tensor.nbytes for tensor in tensors)
    shown |= {
        "payload_bytes": payload_bytes,
        "num_tensors": len(tensors),
        "num_parameters": payload_bytes // BYTES_PER_PARAMETER,
    }
    results = _run(training, plan, options.only)
    report = {"plan": shown, "results": results, "missing": _missing(options.only)}
    return report, behind_results.targets(results, payload_bytes)


def _run(training: Training, plan: Plan, only: tuple[str, ...]) -> dict[str, Any]:
    measured: dict[str, Any] = {}
    if "stall" in only:
        print("stall", flush=True)
        measured["stall"] = behind_results.stall_rows(behind_rounds.measure_stall(training, plan))
    if "beside" in only:
        print("beside", flush=True)
        beside = behind_rounds.measure_beside(training, plan)
        measured["beside"] = behind_results.beside_rows(beside)
    if "small" in only:
        print(f"small: {plan.num_small} tensors", flush=True)
        measured["small"] = behind_results.small_rows(behind_rounds.measure_small(plan))
    return measured


def _missing(only: tuple[str, ...]) -> dict[str, str]:
    """Say what was left out, and why."""
    if "beside" in only and fio.version() is None:
        return {behind_rounds.FIO: "fio is not installed, so steps have nothing to be held against"}
    return {}


if __name__ == "__main__":
    sys.exit(main())
