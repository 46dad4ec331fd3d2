"""awscrt's S3 client: Amazon's common runtime, called directly."""

from __future__ import annotations

import os
from typing import Any

from bench.remote_clients.base import REGION, Job, Transfer, into_memory, touched_memory


def _client(job: Job) -> Any:
    from awscrt.auth import AwsCredentialsProvider
    from awscrt.io import (
        ClientTlsContext,
        TlsConnectionOptions,
        TlsContextOptions,
    )
    from awscrt.s3 import S3Client, S3RequestTlsMode, create_default_s3_signing_config

    provider = AwsCredentialsProvider.new_static(
        os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"]
    )
    signing = create_default_s3_signing_config(region=REGION, credential_provider=provider)
    tls: TlsConnectionOptions | None = None
    if job.is_tls:
        options = TlsContextOptions()
        options.override_default_trust_store_from_path(None, job.ca_file)
        tls = ClientTlsContext(options).new_connection_options()
    return S3Client(
        region=REGION,
        tls_mode=S3RequestTlsMode.ENABLED if job.is_tls else S3RequestTlsMode.DISABLED,
        signing_config=signing,
        tls_connection_options=tls,
        part_size=job.part_bytes,
        max_active_connections_override=job.streams,
    )


def _request(job: Job, method: str) -> Any:
    from awscrt.http import HttpHeaders, HttpRequest

    headers = HttpHeaders([("host", job.host)])
    if method == "PUT":
        headers.add("content-length", str(job.nbytes))
    return HttpRequest(method, f"/{job.bucket}/{job.key}", headers)


def _transfer(job: Job, method: str, **arguments: Any) -> Transfer:
    from awscrt.s3 import S3RequestType

    client, request = _client(job), _request(job, method)
    kind = S3RequestType.PUT_OBJECT if method == "PUT" else S3RequestType.GET_OBJECT

    def run() -> None:
        client.make_request(type=kind, request=request, **arguments).finished_future.result()

    return Transfer(run)


def upload(job: Job) -> Transfer:
    """PutObject of a file, as it comes."""
    return _transfer(job, "PUT", send_filepath=job.path)


def upload_streaming(job: Job) -> Transfer:
    """The same with ``should_stream``, which is marked experimental."""
    from awscrt.s3 import S3FileIoOptions

    return _transfer(
        job, "PUT", send_filepath=job.path, fio_options=S3FileIoOptions(should_stream=True)
    )


def download(job: Job) -> Transfer:
    """GetObject into a file."""
    return _transfer(job, "GET", recv_filepath=job.path)


def memory(job: Job) -> Transfer:
    """GetObject, its chunks copied into memory."""
    destination = touched_memory(job.nbytes)

    def on_body(chunk: Any, offset: int, **_: Any) -> None:
        destination[offset : offset + len(chunk)] = chunk

    return into_memory(job, destination, _transfer(job, "GET", on_body=on_body).run)
