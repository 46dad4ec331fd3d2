"""Measure save and load on this machine, beside torch.save and the drive's own rate.

All other arguments are those of bench/run.py: 'gdsckpt bench -- --help' lists them.
"""

from __future__ import annotations

import argparse
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import gdsckpt
from gdsckpt.cli import output
from gdsckpt.cli.exits import Exit
from gdsckpt.config import ENVIRONMENT_PREFIX


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.set_defaults(takes_rest=True)
    parser.usage = "gdsckpt bench [-h] [--set NAME=VALUE] [--debug] [--] [ARGUMENT ...]"


def run(arguments: argparse.Namespace) -> int:
    """Call the benchmark's own entry point."""
    program = _program()
    if program is None:
        output.error(
            "the benchmark is not installed: its code is in the folder bench/ of the repository, "
            "not in the package. Clone the repository and run 'make bench' there, or "
            "'pip install -e .[bench]' and this command again."
        )
        return Exit.FAILED
    for name, value in vars(arguments.config).items():  # the benchmark takes them from there
        os.environ[f"{ENVIRONMENT_PREFIX}{name.upper()}"] = str(value)
    passed = [text for text in arguments.rest if text != "--"]
    code: int | None = program.main(passed)
    return code or Exit.OK


def _program() -> Any:
    """Import ``bench.run`` of the repository that this package lies in, or give None."""
    root = Path(gdsckpt.__file__).resolve().parents[1]
    if not (root / "bench" / "run.py").is_file():
        return None
    if str(root) not in sys.path:
        sys.path.append(str(root))
    return import_module("bench.run")
