"""Entry point: the command line, the settings, and what becomes of errors."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

from gdsckpt._version import __version__
from gdsckpt.cli import output
from gdsckpt.cli.exits import MEANINGS, Exit
from gdsckpt.config import Config
from gdsckpt.errors import ConfigError, GdsckptError

# Each is a module beside this one with add_arguments and run. It is imported only when it is named:
# `probe` has to work where the native extension is missing, which most of the others need.
COMMANDS = {
    "ls": "list checkpoints and the leftovers of killed saves",
    "inspect": "show format and tensors of a file or checkpoint directory",
    "verify": "check every byte against its checksum",
    "upload": "send a file or checkpoint directory to an object store",
    "fetch": "get a file or checkpoint from an object store, checked",
    "diff": "which tensors changed from one checkpoint to another, and by how much",
    "prune": "delete steps of a root that the rules given do not keep",
    "probe": "what this host and a directory's file system can do",
    "plan": "how big, how often, which storage, at what price, before and during a run",
    "demo": "train, save, resume in a new process, and compare to the last bit",
    "bench": "measure save and load on this machine (needs the repository)",
}


class _Parser(argparse.ArgumentParser):
    """Argument parser whose errors are one line, like all of ours."""

    def error(self, message: str) -> NoReturn:
        output.error(f"{message}. See '{self.prog} --help'.")
        sys.exit(Exit.USAGE)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: Arguments after the program's name; None takes those of the process.

    Returns:
        The exit code; see :class:`gdsckpt.cli.exits.Exit`.
    """
    output.prepare_stdout()
    words = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in words
    try:
        parser = _parser(words)
        arguments, rest = parser.parse_known_args(words)
        if rest and not arguments.takes_rest:
            parser.error(f"unrecognized arguments: {' '.join(rest)}")
        arguments.rest = rest
        with output.redirected_warnings(debug=debug):
            return _run(arguments)
    except KeyboardInterrupt as exc:
        output.note(" ".join((f"{output.PROGRAM}: interrupted", *getattr(exc, "__notes__", ()))))
        output.abandon_stdout()
        _end_by_exit_code()
        return Exit.INTERRUPTED
    except BrokenPipeError:
        output.abandon_stdout()
        return Exit.NO_READER
    except (GdsckptError, OSError, ImportError) as exc:
        return _failed(exc, debug=debug)


def _end_by_exit_code() -> None:
    """Let the process end with our exit code, wherever Ctrl-C met it.

    CPython notes an interrupt that ends an ``exec`` of text, such as those of imports, and at its
    end kills itself with SIGINT, though the exception was caught. The next ``exec`` clears that.
    """
    exec("")  # noqa: S102


def _run(arguments: argparse.Namespace) -> int:
    """Resolve the settings and run the command."""
    try:
        overrides = _overrides(arguments.early_settings + arguments.late_settings)
        if getattr(arguments, "endpoint_url", None):
            overrides["endpoint_url"] = arguments.endpoint_url
        arguments.config = Config.resolve(overrides, os.environ)
    except ConfigError as exc:
        output.error(output.error_text(exc))
        return Exit.USAGE
    code: int = arguments.run(arguments)
    output.flush_stdout()
    return code


def _failed(exc: Exception, *, debug: bool) -> int:
    if debug:
        output.traceback(exc)
    output.error(output.error_text(exc))
    output.abandon_stdout()
    return Exit.FAILED


def _overrides(assignments: list[str]) -> dict[str, str]:
    """Read ``NAME=VALUE`` assignments.

    Raises:
        ConfigError: One has no ``=``.
    """
    found = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals:
            raise ConfigError(
                f"--set {assignment}: the value is missing. Give NAME=VALUE, such as "
                "--set io_threads=8.",
                field=name,
            )
        found[name.strip()] = value.strip()
    return found


def _parser(words: Sequence[str]) -> argparse.ArgumentParser:
    """Make the parser; commands that are not among ``words`` get no arguments of their own."""
    exits = "\n".join(f"  {code:d}  {meaning}" for code, meaning in MEANINGS.items())
    parser = _Parser(
        prog=output.PROGRAM,
        description="Look at, check, compare and move checkpoints of PyTorch training.",
        epilog=f"exit codes:\n{exits}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"gdsckpt {__version__}")
    _add_common(parser, "early_settings", debug=False)
    parser.set_defaults(takes_rest=False)
    commands = parser.add_subparsers(
        metavar="COMMAND", required=True, dest="command", parser_class=_Parser
    )
    for name, summary in COMMANDS.items():
        module = import_module(f"gdsckpt.cli.{name}") if name in words else None
        command = commands.add_parser(
            name,
            help=summary,
            description=module.__doc__ if module else summary,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        _add_common(command, "late_settings", debug=argparse.SUPPRESS)
        if module is not None:
            module.add_arguments(command)
            command.set_defaults(run=module.run)
    return parser


def _add_common(parser: argparse.ArgumentParser, dest: str, *, debug: object) -> None:
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        dest=dest,
        metavar="NAME=VALUE",
        help="a setting for this run, such as io_threads=8 (docs/settings.md); may be repeated",
    )
    parser.add_argument(
        "--debug",
        action="store_true",
        default=debug,
        help="log what happens, and show the traceback of an error",
    )


if __name__ == "__main__":
    sys.exit(main())
