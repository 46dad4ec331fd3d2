"""obstore: the Rust crate object_store from Python."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from bench.remote_clients.base import (
    REGION,
    Job,
    Range,
    Transfer,
    in_threads,
    into_memory,
    new_file,
    touched_memory,
)


def _store(job: Job) -> Any:
    from obstore.store import S3Store

    # It cannot be given a certificate to trust; what is left out is once per connection.
    trust = {"allow_http": True} if not job.is_tls else {"allow_invalid_certificates": True}
    return S3Store(
        job.bucket,
        endpoint=job.endpoint,
        region=REGION,
        access_key_id=os.environ["AWS_ACCESS_KEY_ID"],
        secret_access_key=os.environ["AWS_SECRET_ACCESS_KEY"],
        virtual_hosted_style_request=False,
        unsigned_payload=True,
        client_options={**trust, "timeout": "600s"},
    )


def upload(job: Job) -> Transfer:
    """``put`` of a path."""
    store = _store(job)

    def run() -> None:
        store.put(job.key, Path(job.path), chunk_size=job.part_bytes, max_concurrency=job.streams)

    return Transfer(run)


def download(job: Job) -> Transfer:
    """``get_range`` in threads, written to a file."""
    store = _store(job)

    def run() -> None:
        fd = new_file(job.path, job.nbytes)

        def move(part: Range) -> None:
            block = memoryview(store.get_range(job.key, start=part[0], end=part[1]))
            while block:
                block = block[os.pwrite(fd, block, part[1] - len(block)) :]

        try:
            in_threads(job, move)
        finally:
            os.close(fd)

    return Transfer(run)


def memory(job: Job) -> Transfer:
    """``get_range`` in threads, copied into memory."""
    store = _store(job)
    destination = touched_memory(job.nbytes)

    def move(part: Range) -> None:
        block = store.get_range(job.key, start=part[0], end=part[1])
        destination[part[0] : part[1]] = memoryview(block)

    return into_memory(job, destination, lambda: in_threads(job, move))
