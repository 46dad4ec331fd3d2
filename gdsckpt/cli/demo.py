"""Show on a small language model that a resumed run equals one that was never interrupted.

Trains, saves, loads in a new process and trains on; kills a training in the middle of an
asynchronous save and goes on from its newest complete step; opens the file with stock torch; flips
a bit; uploads to a bucket, deletes the file, loads from the bucket in a new process and trains on;
flips a bit there; times it all. Exit code: 0 when every claim holds, 1 when one does not.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from gdsckpt.cli import output, urls
from gdsckpt.cli.exits import Exit
from gdsckpt.errors import ConfigError
from gdsckpt.units import parse_count


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "--params", type=_count, default="5M", help="parameters of the model (default: 5M)"
    )
    parser.add_argument(
        "--steps", type=_count, default=20, help="steps of the whole run (default: 20)"
    )
    parser.add_argument(
        "--dir",
        type=Path,
        metavar="DIR",
        help="where to make the demo's directory (default: $TMPDIR or the current directory)",
    )
    parser.add_argument(
        "--keep", action="store_true", help="leave the files, and what is in the bucket of --store"
    )
    store = parser.add_mutually_exclusive_group()
    store.add_argument(
        "--store",
        default="",
        metavar="URL",
        help="s3://BUCKET/PREFIX to go to and back, in place of a server that the demo starts; "
        "what was made there is removed again",
    )
    store.add_argument(
        "--no-store", action="store_true", help="leave the bucket out, and start no server"
    )
    urls.add_endpoint(parser)
    parser.add_argument(
        "--json", action="store_true", help="print one JSON document; the story goes to stderr"
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the demo."""
    from gdsckpt.demo.run import DemoOptions
    from gdsckpt.demo.run import run as run_demo

    if arguments.endpoint_url and not arguments.store:
        output.error("--endpoint-url is where --store is, and that is missing. Give both.")
        return Exit.USAGE
    options = DemoOptions(
        num_parameters=arguments.params,
        num_steps=arguments.steps,
        directory=arguments.dir,
        keep=arguments.keep,
        config=arguments.config,
        store=arguments.store,
        use_store=not arguments.no_store,
    )
    result = run_demo(options, output.note if arguments.json else output.live_line)
    if arguments.json:
        output.json_document(result.as_dict())
    return Exit.OK if result.ok else Exit.FINDING


def _count(text: str) -> int:
    try:
        return parse_count(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
