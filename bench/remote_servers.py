"""The servers that the clients talk to: a null server of our own, and SeaweedFS."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.remote_clients.base import REGION

REPOSITORY = Path(__file__).resolve().parents[1]
SOURCES = REPOSITORY / "bench" / "null_server"
BUCKET = "bench"
SOURCE_KEY = "source.pt"


@dataclass(frozen=True, slots=True)
class Server:
    """A server that runs.

    Attributes:
        name: ``plain``, ``tls`` or ``seaweedfs``.
        endpoint: Its URL.
        ca_file: Certificate to trust; empty for plain HTTP.
        keeps_bytes: It is a real one, which checks signatures and keeps what it gets.
    """

    name: str
    endpoint: str
    ca_file: str = ""
    keeps_bytes: bool = False


class CannotServe(RuntimeError):
    """Something that a server needs is missing; says what, and how to get it."""


def build_null_server(directory: Path, *, with_tls: bool, optimize: bool = True) -> Path:
    """Compile the null server; gives the program.

    Raises:
        CannotServe: There is no compiler, or OpenSSL's headers are missing.
    """
    program = directory / ("null_server" if with_tls else "null_server_plain")
    level = "-O2" if optimize else "-O0"
    command = ["g++", "-std=c++17", level, *map(str, sorted(SOURCES.glob("*.cpp")))]
    command += ["-lssl", "-lcrypto"] if with_tls else ["-DNULL_SERVER_NO_TLS"]
    try:
        done = subprocess.run(
            [*command, "-pthread", "-o", str(program)], capture_output=True, text=True, check=False
        )
    except FileNotFoundError as error:
        raise CannotServe("g++ is missing: apt-get install g++.") from error
    if done.returncode:
        hint = "With TLS it needs OpenSSL's headers: apt-get install libssl-dev. "
        raise CannotServe((hint if with_tls else "") + done.stderr.strip()[-400:])
    return program


@dataclass(frozen=True, slots=True)
class Certificates:
    """Made for one run.

    Attributes:
        ca_file: What clients trust.
        certificate: What the server shows: for 127.0.0.1 and localhost.
        key: Its private key.
    """

    ca_file: Path
    certificate: Path
    key: Path


def make_certificates(directory: Path) -> Certificates:
    """Make an authority and a certificate that it signed: clients in Rust want them apart.

    Raises:
        CannotServe: The program ``openssl`` is missing or failed.
    """
    ca, ca_key = directory / "ca.pem", directory / "ca.key"
    leaf, leaf_key = directory / "server.pem", directory / "server.key"
    common = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    common += ["-nodes", "-days", "2"]
    _openssl([*common, "-keyout", ca_key, "-out", ca, "-subj", "/CN=bench authority"])
    names = "subjectAltName=IP:127.0.0.1,DNS:localhost"
    extensions = ["-addext", names, "-addext", "basicConstraints=critical,CA:FALSE"]
    signed = ["-CA", ca, "-CAkey", ca_key, "-subj", "/CN=localhost"]
    _openssl([*common, "-keyout", leaf_key, "-out", leaf, *signed, *extensions])
    return Certificates(ca, leaf, leaf_key)


def _openssl(command: list[str | Path]) -> None:
    words = [str(word) for word in command]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise CannotServe("the program openssl is missing: apt-get install openssl.") from error
    if done.returncode:
        raise CannotServe(f"openssl req failed: {done.stderr.strip()[-400:]}")


@contextmanager
def null_server(program: Path, source: Path, certificates: Certificates | None) -> Iterator[Server]:
    """Run the null server until the end of the block.

    Args:
        program: From :func:`build_null_server`.
        source: The file whose bytes the object ``SOURCE_KEY`` has.
        certificates: For TLS; None for plain HTTP.
    """
    command = [str(program), str(source), f"{BUCKET}/{SOURCE_KEY}"]
    if certificates:
        command += [str(certificates.certificate), str(certificates.key)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        port = process.stdout.readline().strip() if process.stdout else ""
        if not port:
            raise CannotServe(f"the null server ended with status {process.wait()}")
        name = "tls" if certificates else "plain"
        scheme = "https" if certificates else "http"
        ca_file = str(certificates.ca_file) if certificates else ""
        yield Server(name, f"{scheme}://127.0.0.1:{port}", ca_file)
    finally:
        process.terminate()
        process.communicate()


@contextmanager
def seaweedfs(directory: Path, source: Path, keys: Mapping[str, str]) -> Iterator[Server]:
    """Run SeaweedFS with a bucket and the object ``SOURCE_KEY`` until the end of the block.

    Args:
        directory: For its files.
        source: The file whose bytes the object has.
        keys: Environment with the credentials that it shall accept.

    Raises:
        CannotServe: It is not installed, or did not start.
    """
    try:
        from gdsckpt.demo.seaweed import Identity, Seaweed, ServerError

        owner = Identity("bench", keys["AWS_ACCESS_KEY_ID"], keys["AWS_SECRET_ACCESS_KEY"])
        server = Seaweed(directory / "seaweedfs", [BUCKET], identities=[owner])
        server.start()
    except (ImportError, ServerError) as error:
        raise CannotServe(str(error)) from error
    try:
        client = boto_client(server.endpoint, keys)
        client.upload_file(str(source), BUCKET, SOURCE_KEY)
        yield Server("seaweedfs", server.endpoint, keeps_bytes=True)
    finally:
        server.stop()


def boto_client(endpoint: str, keys: Mapping[str, str]) -> Any:
    """Give a plain client for what the benchmark itself does on a real server."""
    import boto3
    from botocore.config import Config

    config = Config(
        s3={"addressing_style": "path", "payload_signing_enabled": False},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        proxies={},
    )
    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name=REGION,
        aws_access_key_id=keys["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=keys["AWS_SECRET_ACCESS_KEY"],
        config=config,
    )
