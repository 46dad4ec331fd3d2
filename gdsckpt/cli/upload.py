"""Send a file or checkpoint directory to an object store, checksummed from end to end.

A file becomes the object at exactly that key; of a directory, the shards become objects below it,
and the manifest the last one. What is there already is not sent again.
"""

from __future__ import annotations

import argparse

from gdsckpt.cli import output, urls
from gdsckpt.cli.exits import Exit
from gdsckpt.remote.uploader import upload


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("source", metavar="SRC", help="file or checkpoint directory")
    parser.add_argument("url", metavar="URL", help="s3://BUCKET/KEY or file:///PATH")
    urls.add_endpoint(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """Upload and print the report."""
    with output.progress_bar(f"upload {arguments.source}") as progress:
        report = upload(arguments.source, arguments.url, config=arguments.config, progress=progress)
    if arguments.json:
        output.json_document(report.as_dict())
    else:
        output.line(str(report))
    return Exit.OK
