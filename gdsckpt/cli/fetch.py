"""Get a file or checkpoint from an object store: every byte checked, durable at the end.

DEST is the old file or the whole new one at any instant; a checkpoint becomes a directory whose
manifest is written last. An object goes into a directory that exists, under the last part of its
key.
"""

from __future__ import annotations

import argparse

from gdsckpt.cli import output, urls
from gdsckpt.cli.exits import Exit
from gdsckpt.remote.downloader import fetch


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("url", metavar="URL", help="s3://BUCKET/KEY or file:///PATH")
    parser.add_argument("dest", metavar="DEST", help="file or directory to write")
    urls.add_endpoint(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """Fetch and print the report."""
    with output.progress_bar(f"fetch {arguments.url}") as progress:
        report = fetch(arguments.url, arguments.dest, config=arguments.config, progress=progress)
    if arguments.json:
        output.json_document(report.as_dict())
    else:
        output.line(str(report))
    return Exit.OK
