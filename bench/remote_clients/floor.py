"""No client: HTTP by the standard library, unsigned, unchecked. What is left is the kernel's."""

from __future__ import annotations

import http.client
import mmap
import re
import ssl
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import quote

from bench.remote_clients.base import Job, Range, Transfer, in_threads, into_memory, touched_memory

_SEND_BYTES = 1 << 20


class _Connections:
    """One connection per thread, kept alive."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._local = threading.local()
        self._tls = ssl.create_default_context(cafile=job.ca_file) if job.is_tls else None

    def get(self) -> http.client.HTTPConnection:
        if not hasattr(self._local, "connection"):
            host, port = "127.0.0.1", self._job.port
            self._local.connection = (
                http.client.HTTPSConnection(host, port, context=self._tls)
                if self._tls
                else http.client.HTTPConnection(host, port)
            )
        connection: http.client.HTTPConnection = self._local.connection
        if connection.sock is None:
            connection.connect()
        return connection

    def call(self, method: str, target: str, body: bytes = b"") -> tuple[str, Mapping[str, str]]:
        connection = self.get()
        connection.request(method, target, body=body or None)
        return _finished(connection)


def _finished(connection: http.client.HTTPConnection) -> tuple[str, Mapping[str, str]]:
    response = connection.getresponse()
    text = response.read().decode()
    if response.status != 200:
        raise RuntimeError(f"the server answered {response.status}: {text}")
    return text, {name.lower(): value for name, value in response.headers.items()}


def upload_mapped(job: Job) -> Transfer:
    """Send slices of the mapped file."""
    with Path(job.path).open("rb") as file:
        mapped = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))

    def send(connection: http.client.HTTPConnection, part: Range) -> None:
        for begin in range(part[0], part[1], _SEND_BYTES):
            connection.sock.sendall(mapped[begin : min(begin + _SEND_BYTES, part[1])])

    return _upload(job, send)


def upload_sendfile(job: Job) -> Transfer:
    """Have the kernel send the file: over plain HTTP only."""

    def send(connection: http.client.HTTPConnection, part: Range) -> None:
        # A file object of its own: socket.sendfile moves its position.
        with Path(job.path).open("rb", buffering=0) as own:
            connection.sock.sendfile(own, part[0], part[1] - part[0])

    return _upload(job, send)


def _upload(job: Job, send: Callable[[http.client.HTTPConnection, Range], None]) -> Transfer:
    connections = _Connections(job)
    target = f"/{job.bucket}/{quote(job.key)}"

    def run() -> None:
        text, _ = connections.call("POST", f"{target}?uploads")
        upload_id = re.findall("<UploadId>(.*?)</UploadId>", text)[0]

        def move(part: Range) -> None:
            connection = connections.get()
            number = part[0] // job.part_bytes + 1
            connection.putrequest("PUT", f"{target}?partNumber={number}&uploadId={upload_id}")
            connection.putheader("Content-Length", str(part[1] - part[0]))
            connection.endheaders()
            send(connection, part)
            _finished(connection)

        in_threads(job, move)
        parts = "".join(
            f"<Part><PartNumber>{number}</PartNumber></Part>"
            for number in range(1, len(job.ranges()) + 1)
        )
        xml = f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>"
        connections.call("POST", f"{target}?uploadId={upload_id}", xml.encode())

    return Transfer(run)


def memory(job: Job) -> Transfer:
    """Receive ranges straight into memory, and check nothing."""
    connections = _Connections(job)
    destination = touched_memory(job.nbytes)

    def move(part: Range) -> None:
        connection = connections.get()
        headers = {"Range": f"bytes={part[0]}-{part[1] - 1}"}
        connection.request("GET", f"/{job.bucket}/{quote(job.key)}", headers=headers)
        response = connection.getresponse()
        left = destination[part[0] : part[1]]
        while left:
            done = response.readinto(left)
            if not done:
                raise RuntimeError("the body ended early")
            left = left[done:]
        response.read()

    return into_memory(job, destination, lambda: in_threads(job, move))
