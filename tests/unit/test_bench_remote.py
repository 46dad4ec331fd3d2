import http.client
import json
import sys

import pytest
import torch

import gdsckpt
from bench import remote, remote_page, remote_results, remote_rounds, remote_servers
from bench.remote_clients.base import Job, Method
from bench.remote_clients.registry import METHODS, OURS
from bench.remote_measure import RemoteSample, RunFailed, measure
from bench.remote_servers import Server

GB = 1_000_000_000
peer = "awscrt"


def samples(*cpu_seconds, seconds=1.0, private_mb=50):
    private = private_mb * 1_000_000
    return [RemoteSample(seconds, 0.0, cpu, 0.0, private, 0, private) for cpu in cpu_seconds]


def job(what="upload", target="commands:none", endpoint="http://127.0.0.1:9"):
    return Job(target, what, endpoint, "bucket", "key.pt", "file", 10, 4, 2)


def test_job_survives_json_and_is_cut_into_ranges():
    assert Job.from_json(job().to_json()) == job()
    assert job().ranges() == [(0, 4), (4, 8), (8, 10)]


def test_every_method_names_a_function_and_no_two_rows_are_alike():
    assert len({(method.what, method.name) for method in METHODS}) == len(METHODS)
    assert {method.what for method in METHODS if method.name == OURS} == set(remote.WHATS)


def test_rows_compare_runs_of_one_round():
    rows = remote_results.rows("upload", {OURS: samples(1, 4), peer: samples(2, 8)}, 2 * GB)
    assert [row["method"] for row in rows] == [OURS, peer]
    assert rows[1]["cpu_by_ours"] == 2.0
    assert (rows[1]["cpu_s_per_gb"], rows[1]["max_cpu_s_per_gb"]) == (2.5, 4.0)


def test_rows_without_ours_have_no_ratio():
    rows = remote_results.rows("upload", {peer: samples(2)}, GB)
    assert rows[0]["cpu_by_ours"] is None


def test_targets_hold_ours_against_bounds_and_the_fastest_peer():
    tables = {
        "upload_plain": {OURS: samples(0.4, private_mb=120)},
        "download_plain": {
            OURS: samples(1.0, seconds=2.0),
            peer: samples(1.0, seconds=4.0),
            "s5cmd": samples(1.0, seconds=1.0),
        },
    }
    held = {target.what: target.is_met for target in remote_results.targets(tables, GB)}
    assert held == {
        "upload, plain": True,
        "private memory, upload, plain": False,
        "verified download to the drive, plain": True,
        "verified download to the drive, plain: rate by that of the fastest other client": False,
    }


def test_floors_are_left_out_where_signatures_are_asked_for():
    def names(server, what="upload"):
        return {method.name for method in remote_rounds.methods_for(what, server, ())}

    plain, tls = Server("plain", "http://x:1"), Server("tls", "https://x:1", ca_file="ca")
    real = Server("seaweedfs", "http://x:1", keeps_bytes=True)
    floors = {method.name for method in METHODS if method.is_floor and method.what == "upload"}
    assert names(plain) & floors == floors
    assert len(names(tls) & floors) == len(floors) - 1
    assert not names(real) & floors


def test_measure_of_a_program_that_fails_says_why(tmp_path, monkeypatch):
    from bench.remote_clients import commands
    from bench.remote_clients.base import Command

    script = "import sys; sys.exit('no such bucket')"
    command = Command((sys.executable, "-c", script))
    monkeypatch.setattr(commands, "none", lambda job: command, raising=False)
    method = Method("x", "commands:none", "", "upload", "", is_command=True)
    with pytest.raises(RunFailed, match="no such bucket"):
        measure(method, job(), {}, is_shmem_private=True)


def test_page_names_what_was_left_out():
    report = {
        "command": "python bench/remote.py",
        "machine": {
            "cpu": "c",
            "cores": 2,
            "memory_bytes": 1 << 30,
            "kernel": "6",
            "file_system": "ext4",
            "mount_options": "rw",
            "load_average_before": 0.0,
        },
        "versions": {"python": "3.11", "awscrt": None},
        "plan": {
            "state_bytes": 1 << 20,
            "seaweedfs_state_bytes": 1 << 20,
            "part_bytes": 1 << 20,
            "streams": 8,
            "rounds": 1,
        },
        "results": {"upload_tls": remote_results.rows("upload", {OURS: samples(1)}, GB)},
        "missing": {"upload_tls": {peer: "the package awscrt is not installed"}},
    }
    text = remote_page.page(report, [])
    assert "## Upload: null server, TLS 1.3" in text
    assert "* upload, tls: awscrt: the package awscrt is not installed" in text


def test_remote_refuses_unknown_servers(capsys):
    assert remote.main(["--servers", "minio"]) == 2
    assert "minio" in capsys.readouterr().err


@pytest.fixture(scope="module")
def null_program(tmp_path_factory):
    directory = tmp_path_factory.mktemp("null_server")
    return remote_servers.build_null_server(directory, with_tls=False, optimize=False)


@pytest.fixture(scope="module")
def null_server(null_program):
    source = null_program.with_name("source")
    source.write_bytes(bytes(range(256)) * 4096)
    with remote_servers.null_server(null_program, source, None) as server:
        yield server


def ask(server, method, path, body=None, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", int(server.endpoint.rpartition(":")[2]))
    try:
        connection.request(method, path, body=body, headers=headers)
        response = connection.getresponse()
        return response.status, dict(response.headers), response.read()
    finally:
        connection.close()


def test_null_server_sends_ranges_of_the_file(null_server):
    status, headers, body = ask(null_server, "GET", "/bench/source.pt", Range="bytes=254-257")
    assert (status, body) == (206, b"\xfe\xff\x00\x01")
    assert headers["Content-Range"] == "bytes 254-257/1048576"
    assert ask(null_server, "GET", "/bench/source.pt", Range="bytes=1048576-")[0] == 416
    assert ask(null_server, "GET", "/bench/other.pt")[0] == 404


def test_null_server_checks_if_match(null_server):
    etag = ask(null_server, "HEAD", "/bench/source.pt")[1]["ETag"]
    for value, expected in ((etag, 206), ('"other"', 412)):
        headers = {"Range": "bytes=0-0", "If-Match": value}
        assert ask(null_server, "GET", "/bench/source.pt", **headers)[0] == expected


def test_null_server_adds_up_the_parts_of_an_upload(null_server):
    _, _, text = ask(null_server, "POST", "/bench/new.pt?uploads", **{"x-amz-meta-step": "7"})
    upload = text.decode().partition("<UploadId>")[2].partition("<")[0]
    for number, nbytes in ((1, 100_000), (2, 5)):
        path = f"/bench/new.pt?partNumber={number}&uploadId={upload}"
        checksum = {"x-amz-checksum-crc32": "AAAAAA=="}
        status, headers, _ = ask(null_server, "PUT", path, b"x" * nbytes, **checksum)
        assert (status, headers["x-amz-checksum-crc32"]) == (200, "AAAAAA==")
    listed = ask(null_server, "GET", f"/bench/new.pt?uploadId={upload}")[2]
    assert listed.count(b"<Part>") == 2
    parts = b"<Part><PartNumber>1</PartNumber></Part><Part><PartNumber>2</PartNumber></Part>"
    assert ask(null_server, "POST", f"/bench/new.pt?uploadId={upload}", parts)[0] == 200
    _, headers, _ = ask(null_server, "HEAD", "/bench/new.pt")
    assert (headers["Content-Length"], headers["x-amz-meta-step"]) == ("100005", "7")
    assert headers["ETag"].endswith('-2"')
    assert ask(null_server, "POST", f"/bench/new.pt?uploadId={upload}", parts)[0] == 404


def test_null_server_takes_chunked_bodies_with_trailers(null_server):
    connection = http.client.HTTPConnection(
        "127.0.0.1", int(null_server.endpoint.rpartition(":")[2])
    )
    connection.putrequest("PUT", "/bench/chunked.pt")
    connection.putheader("Transfer-Encoding", "chunked")
    connection.putheader("x-amz-decoded-content-length", "5")
    connection.endheaders()
    connection.send(b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nx-amz-checksum-crc32: AAAAAA==\r\n\r\n")
    response = connection.getresponse()
    assert response.status == 200
    assert response.headers["x-amz-checksum-crc32"] == "AAAAAA=="
    response.read()
    connection.close()
    assert ask(null_server, "GET", "/bench/chunked.pt")[2] == b"abcde"


def test_null_server_keeps_small_objects(null_server):
    assert ask(null_server, "PUT", "/bench/manifest.json", b'{"step": 1}')[0] == 200
    assert json.loads(ask(null_server, "GET", "/bench/manifest.json")[2]) == {"step": 1}
    assert b"manifest.json" in ask(null_server, "GET", "/bench?list-type=2&prefix=mani")[2]
    assert ask(null_server, "DELETE", "/bench/manifest.json")[0] == 204
    assert ask(null_server, "HEAD", "/bench/manifest.json")[0] == 404


@pytest.mark.parametrize("what", remote.WHATS)
def test_run_table_measures_ours_and_the_floor(what, null_program, tmp_path):
    source = tmp_path / "source.pt"
    gdsckpt.save({"weight": torch.arange(3 << 20)}, source)
    plan = remote_rounds.Plan(
        directory=tmp_path,
        file_system="ext4",
        source=source,
        nbytes=source.stat().st_size,
        rounds=1,
        part_bytes=16 << 20,
        streams=2,
        clients=(OURS, "floor: http.client, readinto"),
        keys={"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"},
    )
    with remote_servers.null_server(null_program, source, None) as server:
        outcome = remote_rounds.run_table(what, server, plan)
    assert outcome.missing == {}
    assert outcome.samples
    for runs in outcome.samples.values():
        assert runs[0].cpu_s > 0
        assert runs[0].private_bytes > 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source.pt"]
