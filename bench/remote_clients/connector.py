"""s3torchconnector: Amazon's reader and writer of checkpoints for PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.remote_clients.base import REGION, Job, Transfer, into_memory, touched_memory

_COPY_BYTES = 1 << 20


def _client(job: Job) -> Any:
    from s3torchconnector import S3ClientConfig
    from s3torchconnector._s3client import S3Client

    config = S3ClientConfig(part_size=job.part_bytes, force_path_style=True)
    return S3Client(REGION, endpoint=job.endpoint, s3client_config=config)


def upload(job: Job) -> Transfer:
    """Write the file to an S3Writer, as ``torch.save`` would."""
    client = _client(job)

    def run() -> None:
        with Path(job.path).open("rb") as source, client.put_object(job.bucket, job.key) as writer:
            while block := source.read(_COPY_BYTES):
                writer.write(block)

    return Transfer(run)


def download(job: Job) -> Transfer:
    """Write what the S3Reader gives to a file."""
    client = _client(job)

    def run() -> None:
        with Path(job.path).open("xb") as into:
            for block in client._get_object_stream(job.bucket, job.key):
                into.write(block)

    return Transfer(run)


def memory(job: Job) -> Transfer:
    """``S3Reader.readinto`` of the whole object."""
    from s3torchconnector import S3ReaderConstructor

    client = _client(job)
    destination = touched_memory(job.nbytes)

    def run() -> None:
        constructor = S3ReaderConstructor.range_based()
        reader = client.get_object(job.bucket, job.key, reader_constructor=constructor)
        left = destination
        while left:
            done = reader.readinto(left)
            if not done:
                raise RuntimeError("the object ended early")
            left = left[done:]

    return into_memory(job, destination, run)
