"""What all commands that take URLs have in common."""

from __future__ import annotations

import argparse


def add_endpoint(parser: argparse.ArgumentParser) -> None:
    """Declare ``--endpoint-url``, which is the setting of that name."""
    parser.add_argument(
        "--endpoint-url",
        metavar="URL",
        help="https://HOST:PORT of the object store; also AWS_ENDPOINT_URL, as for all of boto3",
    )
