"""Uploads and fetches by real processes that are killed or interrupted half-way."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import fault_proxy as harm
import pytest
import torch
from fault_proxy import FaultProxy
from remote_cases import SMALL_CHUNKS, many_ranks, save_large
from seaweed import BUCKET

import gdsckpt
from gdsckpt.errors import CheckpointNotFoundError, StorageError
from gdsckpt.store.base import list_all

pytestmark = pytest.mark.s3

ROOT = Path(__file__).parents[2]
SETTINGS = {"upload_part_bytes": "5MiB", "upload_concurrency": 2}
MAIN = "import sys; from gdsckpt.cli.main import main; sys.exit(main())"


class Command:
    """A command in a process of its own, through the proxy."""

    def __init__(self, endpoint, *arguments):
        settings = {f"GDSCKPT_{name.upper()}": str(value) for name, value in SETTINGS.items()}
        self.process = subprocess.Popen(
            [sys.executable, "-c", MAIN, *map(str, arguments), "--endpoint-url", endpoint],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **settings, "PYTHONPATH": str(ROOT)},
        )

    def ends(self, number=None):
        """Send a signal, if any, and give (exit code, stdout, stderr)."""
        if number is not None:
            self.process.send_signal(number)
        out, err = self.process.communicate(timeout=120)
        return self.process.returncode, out, err


def stalls(reached):
    """The request is held for ever; ``reached`` is set when it came."""

    def fault(exchange):
        reached.set()
        exchange.proxy.wait_closed()
        raise harm.Cut

    return fault


@pytest.fixture
def proxy(seaweed, s3_environment):
    with FaultProxy(seaweed.port) as proxy:
        yield proxy


@pytest.fixture
def stalled(proxy):
    """Run a command up to a request that is held; gives the command."""
    commands = []

    def run(op, skip, *arguments, key=""):
        reached = threading.Event()
        proxy.heal()
        proxy.harm(op, stalls(reached), times=harm.FOREVER, skip=skip, key=key)
        command = Command(proxy.endpoint, *arguments)
        commands.append(command.process)
        assert reached.wait(60), command.ends(signal.SIGKILL)
        return command

    yield run
    for process in commands:
        process.kill()
        process.wait()


@pytest.fixture
def url(tmp_path):
    return f"s3://{BUCKET}/{tmp_path.name}/a"


def run(proxy, *arguments):
    """Run a command without harm; gives its output."""
    proxy.heal()
    code, out, err = Command(proxy.endpoint, *arguments).ends()
    assert code == 0, err
    return out


def keys_below(url):
    from gdsckpt.config import Config
    from gdsckpt.store import open_store

    store, key = open_store(url, Config())
    return [info.key for info in list_all(store, key)]


def pending_uploads(seaweed, url):
    import boto3

    client = boto3.client("s3", endpoint_url=seaweed.endpoint)
    uploads = client.list_multipart_uploads(Bucket=BUCKET).get("Uploads", [])
    prefix = url.removeprefix(f"s3://{BUCKET}/")
    return [each for each in uploads if each["Key"].startswith(prefix)]


@pytest.mark.parametrize(
    ("op", "skip"),
    [("CreateMultipartUpload", 0), ("UploadPart", 1), ("CompleteMultipartUpload", 0)],
)
def test_upload_killed_leaves_no_object_and_can_be_repeated(
    proxy, stalled, tmp_path, url, op, skip
):
    path = save_large(tmp_path / "a.pt")
    command = stalled(op, skip, "upload", path, url)
    assert command.ends(signal.SIGKILL)[0] == -signal.SIGKILL
    assert keys_below(url) == []
    run(proxy, "upload", path, url)
    run(proxy, "fetch", url, tmp_path / "b.pt")
    assert (tmp_path / "b.pt").read_bytes() == path.read_bytes()


def test_upload_of_a_checkpoint_killed_before_its_manifest_is_none(proxy, stalled, tmp_path, url):
    gdsckpt.save_checkpoint({"w": torch.ones(5)}, tmp_path / "step", step=3)
    command = stalled("PutObject", 0, "upload", tmp_path / "step", url, key="manifest.json")
    command.ends(signal.SIGKILL)
    with pytest.raises(CheckpointNotFoundError):
        gdsckpt.load(url)
    assert "no manifest" in run(proxy, "ls", url)
    run(proxy, "upload", tmp_path / "step", url)
    assert torch.equal(gdsckpt.load(url)["w"], torch.ones(5))


def test_upload_of_a_checkpoint_killed_keeps_the_one_before(proxy, stalled, tmp_path, url):
    gdsckpt.save_checkpoint({"w": torch.zeros(5)}, url, step=2)
    gdsckpt.save_checkpoint({"w": torch.ones(5)}, tmp_path / "step", step=3)
    command = stalled("PutObject", 0, "upload", tmp_path / "step", url, key="manifest.json")
    command.ends(signal.SIGKILL)
    assert torch.equal(gdsckpt.load(url)["w"], torch.zeros(5))
    run(proxy, "upload", tmp_path / "step", url)
    assert torch.equal(gdsckpt.load(url)["w"], torch.ones(5))


@pytest.mark.parametrize("skip", [0, 2])
def test_fetch_killed_leaves_the_old_file_and_can_be_repeated(proxy, stalled, tmp_path, url, skip):
    path = save_large(tmp_path / "a.pt")
    gdsckpt.upload(path, url)
    target = tmp_path / "target"
    target.mkdir()
    (target / "b.pt").write_bytes(b"the old one")
    command = stalled("GetObject", skip, "fetch", url, target / "b.pt")
    command.ends(signal.SIGKILL)
    assert (target / "b.pt").read_bytes() == b"the old one"
    run(proxy, "fetch", url, target / "b.pt")
    assert (target / "b.pt").read_bytes() == path.read_bytes()
    assert [each.name for each in target.iterdir()] == ["b.pt"]


def test_fetch_of_a_checkpoint_killed_is_none_and_can_be_repeated(proxy, stalled, tmp_path, url):
    source = many_ranks(tmp_path / "source", sizes=[3_000_000, 3_000_000])
    gdsckpt.upload(source, url)
    target = tmp_path / "target"
    last = sorted(each.name for each in source.glob("rank-*"))[-1]
    # The first shard is there by then.
    command = stalled("GetObject", 2, "fetch", url, target, key=last)
    command.ends(signal.SIGKILL)
    assert not (target / "manifest.json").exists()
    for path in target.glob("rank-*"):
        assert path.read_bytes() == (source / path.name).read_bytes()
    with pytest.raises(CheckpointNotFoundError):
        gdsckpt.load(target)
    run(proxy, "fetch", url, target)
    assert gdsckpt.verify(target).ok
    assert sorted(each.name for each in target.iterdir()) == sorted(
        each.name for each in source.iterdir()
    )


@pytest.mark.parametrize(
    ("op", "skip"), [("UploadPart", 1), ("CompleteMultipartUpload", 0), ("HeadObject", 0)]
)
def test_upload_interrupted_aborts_and_says_so(proxy, stalled, seaweed, tmp_path, url, op, skip):
    path = save_large(tmp_path / "a.pt")
    command = stalled(op, skip, "upload", path, url)
    code, out, err = command.ends(signal.SIGINT)
    assert (code, out) == (130, "")
    assert err.splitlines()[-1] == "gdsckpt: interrupted"
    assert "Traceback" not in err
    assert keys_below(url) == []
    assert pending_uploads(seaweed, url) == []


def test_upload_interrupted_while_it_waits_to_try_again_ends_at_once(proxy, seaweed, tmp_path, url):
    path = save_large(tmp_path / "a.pt")
    many = threading.Semaphore(0)

    def busy(exchange):
        many.release()
        harm.answers(503, "SlowDown")(exchange)

    proxy.harm("UploadPart", busy, times=harm.FOREVER)
    command = Command(proxy.endpoint, "upload", path, url)
    for _ in range(6):
        assert many.acquire(timeout=60)
    code, _, err = command.ends(signal.SIGINT)
    assert (code, err.splitlines()[-1]) == (130, "gdsckpt: interrupted")
    assert pending_uploads(seaweed, url) == []


@pytest.mark.parametrize("skip", [0, 2])
def test_fetch_interrupted_leaves_nothing(proxy, stalled, tmp_path, url, skip):
    path = save_large(tmp_path / "a.pt")
    gdsckpt.upload(path, url)
    target = tmp_path / "target"
    target.mkdir()
    command = stalled("GetObject", skip, "fetch", url, target / "b.pt")
    code, _, err = command.ends(signal.SIGINT)
    assert (code, err.splitlines()[-1]) == (130, "gdsckpt: interrupted")
    assert list(target.iterdir()) == []


def test_load_interrupted_ends_at_once(proxy, s3_environment, tmp_path, url):
    path = save_large(tmp_path / "a.pt")
    gdsckpt.upload(path, url)
    reached = threading.Event()
    proxy.harm("GetObject", stalls(reached), times=harm.FOREVER, skip=2)
    code = (
        "import sys, gdsckpt\n"
        "try:\n    gdsckpt.load(sys.argv[1], config={'endpoint_url': sys.argv[2]})\n"
        "except KeyboardInterrupt:\n    sys.exit(7)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, url, proxy.endpoint],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        assert reached.wait(120)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 7
    finally:
        process.kill()


def test_save_to_an_url_killed_while_it_uploads_leaves_no_temporary_file(
    proxy, tmp_path, url, monkeypatch
):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    reached = threading.Event()
    proxy.harm("UploadPart", stalls(reached), times=harm.FOREVER)
    code = (
        "import sys, torch, gdsckpt\n"
        "gdsckpt.save({'w': torch.ones(4_000_000)}, sys.argv[1],\n"
        "    config={'endpoint_url': sys.argv[2], 'upload_part_bytes': '5MiB',\n"
        "            'chunk_bytes': '1MiB'})"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, url, proxy.endpoint],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)},
    )
    try:
        assert reached.wait(120)
    finally:
        process.kill()
        process.wait()
    assert list(temporary.iterdir()) == []
    assert keys_below(url) == []


@pytest.fixture
def small(tmp_path):
    """A file system of 4 MiB."""
    where = tmp_path / "small"
    where.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(where)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("file systems can be mounted by root only")
    yield where
    subprocess.run(["umount", str(where)], check=True)


def test_fetch_to_a_full_disk_fails_and_leaves_the_old_file(s3_environment, tmp_path, url, small):
    path = save_large(tmp_path / "a.pt")
    gdsckpt.upload(path, url)
    (small / "b.pt").write_bytes(b"the old one")
    with pytest.raises(StorageError, match="cannot fit") as caught:
        gdsckpt.fetch(url, small / "b.pt")
    assert caught.value.errno == 28
    assert (small / "b.pt").read_bytes() == b"the old one"
    assert [each.name for each in small.iterdir()] == ["b.pt"]


def test_full_temporary_directory_is_named(s3_environment, tmp_path, url, small, monkeypatch):
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", str(small))
    state = {"w": torch.ones(3_000_000)}
    with pytest.raises(StorageError, match=str(small)) as caught:
        gdsckpt.save(state, url)
    assert caught.value.errno == 28
    assert list(small.iterdir()) == []
    # A load needs little there.
    gdsckpt.save(state, tmp_path / "a.pt", config=SMALL_CHUNKS)
    gdsckpt.upload(tmp_path / "a.pt", url)
    assert torch.equal(gdsckpt.load(url)["w"], state["w"])
    torch.save(state, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    gdsckpt.upload(tmp_path / "old.pt", url)
    with (
        pytest.warns(gdsckpt.errors.UnverifiedWarning),
        pytest.raises(StorageError, match=str(small)) as caught,
    ):
        gdsckpt.load(url)
    assert "TMPDIR" in " ".join(caught.value.__notes__)
