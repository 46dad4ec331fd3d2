"""See that a transfer moved the right bytes; none of it is measured."""

from __future__ import annotations

import filecmp
import http.client
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from bench.remote_clients.base import Job
from bench.remote_measure import RunFailed
from bench.remote_servers import Server, boto_client


def check_download(job: Job, source: Path, *, in_full: bool) -> None:
    """Compare the file that came with the one that the server has.

    Args:
        job: What was done.
        source: The file that the server has.
        in_full: Compare the bytes, not only the size.

    Raises:
        RunFailed: They differ.
    """
    fetched = Path(job.path)
    nbytes = fetched.stat().st_size
    if nbytes != job.nbytes:
        raise RunFailed(f"the file has {nbytes} bytes and not {job.nbytes}")
    if in_full and not filecmp.cmp(fetched, source, shallow=False):
        raise RunFailed("the file has other bytes than the object")


def check_upload(job: Job, server: Server, keys: Mapping[str, str], *, in_full: bool) -> None:
    """Ask the server what it got; a real one also for the bytes. Removes the object there.

    Raises:
        RunFailed: It is not what was sent.
    """
    if server.keeps_bytes:
        client = boto_client(server.endpoint, keys)
        nbytes = client.head_object(Bucket=job.bucket, Key=job.key)["ContentLength"]
        is_equal = not in_full or _has_bytes(client, job)
        client.delete_object(Bucket=job.bucket, Key=job.key)
        if not is_equal:
            raise RunFailed("the object has other bytes than the file")
    else:
        nbytes = _announced_bytes(job)
    if nbytes != job.nbytes:
        raise RunFailed(f"the object has {nbytes} bytes and not {job.nbytes}")


def _has_bytes(client: Any, job: Job) -> bool:
    body = client.get_object(Bucket=job.bucket, Key=job.key)["Body"]
    with Path(job.path).open("rb") as file:
        while expected := file.read(1 << 20):
            if body.read(len(expected)) != expected:
                return False
    return not body.read(1)


def _announced_bytes(job: Job) -> int:
    """Give the size of an object of the null server, which asks for no signature; -1 for none."""
    connection = http.client.HTTPConnection("127.0.0.1", job.port)
    if job.is_tls:
        trust = ssl.create_default_context(cafile=job.ca_file)
        connection = http.client.HTTPSConnection("127.0.0.1", job.port, context=trust)
    try:
        connection.request("HEAD", f"/{job.bucket}/{quote(job.key)}")
        response = connection.getresponse()
        return int(response.headers["Content-Length"]) if response.status == 200 else -1
    finally:
        connection.close()
