"""gdsckpt: from Python, and as the command that users type."""

from __future__ import annotations

import sys
from typing import Any

from bench.remote_clients.base import Command, Job, Transfer, touched_memory

_MAIN = "import sys; from gdsckpt.cli.main import main; sys.exit(main())"
"""What the program gdsckpt does; this one is not installed by whoever runs from the sources."""


def _settings(job: Job) -> dict[str, Any]:
    return {
        "endpoint_url": job.endpoint,
        "addressing_style": "path",
        "upload_part_bytes": job.part_bytes,
        "upload_concurrency": job.streams,
    }


def _import_all(job: Job) -> None:
    """Import what the calls import when they need it, as the other clients' modules are."""
    from gdsckpt.config import Config
    from gdsckpt.store import open_store

    store, _ = open_store(job.url, Config.resolve(_settings(job), {}))
    store.close()


def upload(job: Job) -> Transfer:
    """``gdsckpt.upload`` of a file."""
    from gdsckpt.remote.uploader import upload

    _import_all(job)
    return Transfer(lambda: upload(job.path, job.url, config=_settings(job)))


def download(job: Job) -> Transfer:
    """``gdsckpt.fetch`` into a file."""
    from gdsckpt.remote.downloader import fetch

    _import_all(job)
    return Transfer(lambda: fetch(job.url, job.path, config=_settings(job)))


def memory(job: Job) -> Transfer:
    """``gdsckpt.load`` into tensors that are there."""
    import torch

    from gdsckpt.loading import load

    _import_all(job)
    expected = torch.load(job.path, mmap=True, weights_only=True)
    into = {
        name: torch.frombuffer(touched_memory(tensor.nbytes), dtype=tensor.dtype).view(tensor.shape)
        for name, tensor in expected.items()
    }

    def check() -> None:
        for name, tensor in expected.items():
            if not torch.equal(tensor.view(torch.int32), into[name].view(torch.int32)):
                raise RuntimeError(f"{name} has other values than what was saved")

    return Transfer(
        lambda: load(job.url, into=into, config=_settings(job)),
        sum(tensor.nbytes for tensor in into.values()),
        check,
    )


def upload_command(job: Job) -> Command:
    """``gdsckpt upload`` of a file."""
    return _command(job, "upload", job.path, job.url)


def download_command(job: Job) -> Command:
    """``gdsckpt fetch`` of an object."""
    return _command(job, "fetch", job.url, job.path)


def _command(job: Job, *arguments: str) -> Command:
    settings = {f"GDSCKPT_{name.upper()}": str(value) for name, value in _settings(job).items()}
    return Command((sys.executable, "-c", _MAIN, *arguments), settings)
