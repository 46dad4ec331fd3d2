"""Plan checkpoints: how big, how often, what stall, which storage, at what price.

Inputs take units: 912GB (powers of 1000) or 850GiB (of 1024), 90s, 15min, 1h, 30d, 70GB/s or
400Gbit/s, $2.50, 10%. What is not known exactly is LOW..HIGH or LOW..MID..HIGH, such as 2h..6h.
Exit code 1: there are warnings.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gdsckpt.cli import output
from gdsckpt.cli.exits import Exit
from gdsckpt.errors import ConfigError
from gdsckpt.planning import building, measured, scenario, text, watch
from gdsckpt.planning.advice import WARNING, Advice
from gdsckpt.planning.band import Band
from gdsckpt.planning.inputs import Input, inputs_of
from gdsckpt.planning.plan import Plan, make_plan, references_document
from gdsckpt.planning.scenario import Scenario
from gdsckpt.planning.simulate import SimulationSettings
from gdsckpt.planning.sizing import CheckpointSize
from gdsckpt.units import parse_count, parse_duration

RUNS, RUNS_MAX, SEED_MAX = 1000, 1_000_000, 2**31 - 1
SUFFIXES = (".png", ".svg", ".html")

_Flags = dict[str, dict[str, Any]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments: those of this command, and one per input of a scenario."""
    parser.usage = "gdsckpt plan [--scenario NAME | --file FILE] [INPUT ...] [--plot OUT] [--json]"
    ready = ", ".join(scenario.READY_MADE)
    parser.add_argument("--scenario", metavar="NAME", help=f"a ready-made one: {ready}")
    parser.add_argument("--file", metavar="FILE", help="a scenario of yours, TOML or JSON")
    parser.add_argument(
        "--model", metavar="MODULE:FACTORY", help="a function that makes your model (needs torch)"
    )
    parser.add_argument("--model-config", metavar="FILE", help="config.json of a transformer")
    parser.add_argument(
        "--from-report", metavar="DIR", help="a root whose saves and uploads replace assumptions"
    )
    parser.add_argument(
        "--watch", metavar="ROOT", help="say of a run whether its cadence still fits"
    )
    parser.add_argument("--every", metavar="TIME", help="with --watch: look so often (1min)")
    parser.add_argument("--rounds", metavar="N", help="with --watch: look so many times")
    parser.add_argument(
        "--simulate", metavar="RUNS", help=f"simulate so many runs ({RUNS}; 0 for none)"
    )
    parser.add_argument("--seed", metavar="N", help="of the simulation (1)")
    parser.add_argument("--plot", metavar="OUT", help="write pictures: OUT.png, OUT.svg, OUT.html")
    parser.add_argument(
        "--references", action="store_true", help="published figures, and what they count"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    for section, cls in scenario.SECTIONS.items():
        group = parser.add_argument_group(section)
        for name, (attribute, declared) in inputs_of(cls).items():
            default = getattr(cls(), attribute)
            group.add_argument(
                scenario.flag_of(name),
                dest=f"{section}.{name}",
                metavar=_metavar(declared),
                help=_help(declared, default),
            )


def run(arguments: argparse.Namespace) -> int:
    """Plan, print, and draw."""
    try:
        _check(arguments)
        if arguments.references:
            if arguments.json:
                output.json_document(references_document())
            else:
                _print(text.references())
            return Exit.OK
        if arguments.watch is not None:
            return _watch(arguments)
        plan = _plan(arguments)
        if arguments.plot is not None:
            _draw(plan, Path(arguments.plot))
    except ConfigError as exc:
        output.error(output.error_text(exc))
        return Exit.USAGE
    if arguments.json:
        output.json_document(plan.as_dict())
    else:
        output.line(f"{plan.scenario.name}: {plan.scenario.about}".rstrip(": "))
        _print(text.sections_of(plan))
    return _code(plan.advice)


def _metavar(declared: Input) -> str:
    if not 0 < len(declared.choices) <= 4:
        return "NAME" if declared.choices else declared.kind.metavar
    return "|".join(declared.choices)


def _help(declared: Input, default: Any) -> str:
    shown = "" if default is None else f" ({declared.format(default)})"
    named = len(declared.choices) > 4
    allowed = f": {', '.join(declared.choices)}" if named else ""
    return f"{declared.meaning}{allowed}{shown}".replace("%", "%%")


def _code(said: Iterable[Advice]) -> Exit:
    return Exit.FINDING if any(each.level == WARNING for each in said) else Exit.OK


def _check(arguments: argparse.Namespace) -> None:
    """Refuse flags that contradict each other.

    Raises:
        ConfigError: They do.
    """
    if arguments.plot is not None and Path(arguments.plot).suffix not in SUFFIXES:
        raise ConfigError(
            f"--plot is {arguments.plot!r}: give a name that ends with one of "
            f"{', '.join(SUFFIXES)}.",
            field="--plot",
        )
    flags = _flags(arguments)
    size = {f"--{name}" for name in ("parameters", "checkpoint") if name in flags["model"]}
    size |= {
        flag
        for flag, value in (
            ("--model", arguments.model),
            ("--model-config", arguments.model_config),
        )
        if value is not None
    }
    _only_one("the size of a checkpoint is given twice", sorted(size))
    bases = {"--scenario": arguments.scenario, "--file": arguments.file}
    _only_one("a plan has one scenario", [name for name, each in bases.items() if each is not None])
    if arguments.watch is not None:
        others = {
            "--plot": arguments.plot,
            "--model": arguments.model,
            "--model-config": arguments.model_config,
            "--from-report": arguments.from_report,
            "--simulate": arguments.simulate,
        }
        for name, value in others.items():
            if value is not None:
                _only_one("a run that is watched is measured", ["--watch", name])
        if arguments.json and arguments.rounds not in (None, "1"):
            _only_one("--json prints one document", ["--json", "--rounds"])
    for name in ("every", "rounds"):
        if getattr(arguments, name) is not None and arguments.watch is None:
            raise ConfigError(
                f"--{name} belongs to --watch ROOT, which is not given.", field=f"--{name}"
            )


def _only_one(why: str, names: list[str]) -> None:
    if len(names) > 1:
        raise ConfigError(
            f"{' and '.join(names)} contradict each other: {why}. Give one of them.",
            field=names[-1],
        )


def _flags(arguments: argparse.Namespace) -> _Flags:
    found: _Flags = {section: {} for section in scenario.SECTIONS}
    for dest, value in vars(arguments).items():
        section, dot, name = dest.partition(".")
        if dot and value is not None:
            found[section][name] = value
    return found


def _base(arguments: argparse.Namespace) -> Scenario:
    if arguments.scenario is not None:
        return scenario.ready_made(arguments.scenario)
    return Scenario() if arguments.file is None else scenario.from_file(arguments.file)


def _plan(arguments: argparse.Namespace) -> Plan:
    found = None
    inputs = _base(arguments)
    simulation = _simulation(arguments)
    if arguments.from_report is not None:
        found = measured.read(arguments.from_report)
        inputs = building.adopt(inputs, found)
    inputs = inputs.with_values(_flags(arguments), is_flags=True)
    inputs, size = _sized(arguments, inputs)
    if simulation is not None:
        simulation = dataclasses.replace(simulation, run_s=inputs.cost.run_s)
    return make_plan(inputs, measured=found, size=size, simulation=simulation)


def _sized(
    arguments: argparse.Namespace, inputs: Scenario
) -> tuple[Scenario, CheckpointSize | None]:
    """Take the size, and the share of experts, from a model or its configuration."""
    recipe = building.recipe_of(inputs)
    if arguments.model is not None:
        from gdsckpt.planning import live_model

        model = live_model.measure(arguments.model)
        size, experts = model.size(recipe), model.expert_share
    elif arguments.model_config is not None:
        from gdsckpt.planning import shapes, sizing

        shape = shapes.read_config(Path(arguments.model_config))
        recipe = dataclasses.replace(recipe, dense_share=Band.exactly(shape.dense_share))
        size, experts = sizing.size(shape.num_parameters, recipe), shape.expert_share
    else:
        return inputs, None
    name = inputs.name if inputs != Scenario() else arguments.model or arguments.model_config
    taken = dataclasses.replace(inputs.model, experts_share=experts)
    return dataclasses.replace(inputs, name=name, model=taken), size


def _simulation(arguments: argparse.Namespace) -> SimulationSettings | None:
    runs = _count(arguments.simulate, "--simulate", RUNS)
    seed = _count(arguments.seed, "--seed", 1)
    for flag, value, most in (("--simulate", runs, RUNS_MAX), ("--seed", seed, SEED_MAX)):
        if value > most:
            raise ConfigError(f"{flag} is {value}: give 0 to {most}.", field=flag)
    return SimulationSettings(num_runs=runs, seed=seed) if runs else None


def _count(value: str | None, field: str, default: int) -> int:
    return default if value is None else parse_count(value, field=field)


def _draw(plan: Plan, path: Path) -> None:
    if path.suffix == ".html":
        from gdsckpt.planning import html

        raw = html.page(plan).encode("utf-8")
    else:
        from gdsckpt.planning import plots

        raw = plots.png(plan) if path.suffix == ".png" else plots.svg(plan)
    path.write_bytes(raw)
    output.note(f"wrote {path}")


def _print(sections: Iterable[text.Section]) -> None:
    for section in sections:
        output.line()
        output.line(section.title)
        if section.head:
            output.table(section.head, section.rows, right=section.right)
        for line in section.lines:
            output.line(f"- {line}")


def _watch(arguments: argparse.Namespace) -> int:
    """Look at a run again and again; the exit code is that of the last look."""
    base, flags = _base(arguments), _flags(arguments)
    every_s = parse_duration(arguments.every or "1min", field="--every")
    default = 1 if arguments.json else 0
    rounds = _count(arguments.rounds, "--rounds", default)
    done = 0
    while True:
        verdict = watch.look(arguments.watch, base, flags, now_s=time.time())
        done += 1
        if arguments.json:
            output.json_document(verdict.as_dict())
        else:
            _print_verdict(verdict)
        if done == rounds:
            return Exit.FINDING if verdict.fits is False else Exit.OK
        time.sleep(max(every_s, 0.1))


def _print_verdict(verdict: watch.Verdict) -> None:
    word = {True: "fits", False: "does not fit", None: "waiting"}[verdict.fits]
    output.live_line(f"{time.strftime('%H:%M:%S')} {word}: {verdict.summary}")
    for each in verdict.advice:
        output.live_line(f"  {each.level}: {each.text}")
