"""gdsckpt: from Python, and as the command that users type."""

from __future__ import annotations

import sys

from bench.remote_clients.base import Command, Job

_MAIN = "import sys; from gdsckpt.cli.main import main; sys.exit(main())"
"""What the program gdsckpt does; this one is not installed by whoever runs from the sources."""


def upload_command(job: Job) -> Command:
    """``gdsckpt upload`` of a file."""
    return _command(job, "upload", job.path, job.url)


def download_command(job: Job) -> Command:
    """``gdsckpt fetch`` of an object."""
    return _command(job, "fetch", job.url, job.path)


def _command(job: Job, *arguments: str) -> Command:
    return Command((sys.executable, "-c", _MAIN, *arguments, "--endpoint-url", job.endpoint))
