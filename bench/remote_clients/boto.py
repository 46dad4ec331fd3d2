"""boto3: its transfer manager as it comes and as it can be tuned, and its client by hand."""

from __future__ import annotations

from typing import Any

from bench.remote_clients.base import (
    REGION,
    Job,
    Range,
    Transfer,
    in_threads,
    into_memory,
    touched_memory,
)


def _client(job: Job, **settings: Any) -> Any:
    import boto3
    from botocore.config import Config

    config = Config(s3={"addressing_style": "path"}, max_pool_connections=job.streams + 2)
    if settings:
        config = config.merge(Config(**settings))
    return boto3.client(
        "s3",
        endpoint_url=job.endpoint,
        region_name=REGION,
        config=config,
        verify=job.ca_file or None,
    )


def _tuned_client(job: Job) -> Any:
    return _client(
        job,
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3={"addressing_style": "path", "payload_signing_enabled": False},
    )


def _tuned_transfer(job: Job) -> Any:
    from boto3.s3.transfer import TransferConfig

    return TransferConfig(
        multipart_threshold=job.part_bytes,
        multipart_chunksize=job.part_bytes,
        max_concurrency=job.streams,
        preferred_transfer_client="classic",
    )


def upload_default(job: Job) -> Transfer:
    """``upload_file`` as it comes."""
    client = _client(job)
    return Transfer(lambda: client.upload_file(job.path, job.bucket, job.key))


def upload_tuned(job: Job) -> Transfer:
    """``upload_file`` with large parts, without checksums and signed payloads."""
    client, config = _tuned_client(job), _tuned_transfer(job)
    return Transfer(lambda: client.upload_file(job.path, job.bucket, job.key, Config=config))


def download_default(job: Job) -> Transfer:
    """``download_file`` as it comes."""
    client = _client(job)
    return Transfer(lambda: client.download_file(job.bucket, job.key, job.path))


def download_tuned(job: Job) -> Transfer:
    """``download_file`` with large parts, large reads and without checksums."""
    client, config = _tuned_client(job), _tuned_transfer(job)
    config.io_chunksize = 1 << 20
    return Transfer(lambda: client.download_file(job.bucket, job.key, job.path, Config=config))


def memory(job: Job) -> Transfer:
    """``get_object`` of ranges in threads, read straight into memory."""
    client = _tuned_client(job)
    destination = touched_memory(job.nbytes)

    def move(part: Range) -> None:
        asked = f"bytes={part[0]}-{part[1] - 1}"
        body = client.get_object(Bucket=job.bucket, Key=job.key, Range=asked)["Body"]
        left = destination[part[0] : part[1]]
        while left:
            done = body.readinto(left)
            if not done:
                raise RuntimeError("the body ended early")
            left = left[done:]
        body.close()

    return into_memory(job, destination, lambda: in_threads(job, move))
