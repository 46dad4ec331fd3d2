"""Uploads, fetches and loads on a real S3 server, and through a proxy that does harm."""

import os
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor

import fault_proxy as harm
import pytest
import torch
from fault_proxy import FOREVER, FaultProxy
from remote_cases import SMALL_CHUNKS, MiB, flipped, large_state, save_large
from seaweed import BUCKET, point_boto3_at
from states import assert_same

import gdsckpt
from gdsckpt.demo.seaweed import Seaweed
from gdsckpt.errors import (
    AccessDeniedError,
    CheckpointNotFoundError,
    ChecksumError,
    ConfigError,
    FormatError,
    ObjectNotFoundError,
    StorageError,
    StoreError,
)

pytestmark = pytest.mark.s3

SETTINGS = {
    "upload_part_bytes": "5MiB",
    "upload_concurrency": 4,
    "store_timeout_s": 1,
    "store_attempts_max": 4,
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A file of three parts."""
    return save_large(tmp_path_factory.mktemp("saved") / "a.pt")


@pytest.fixture(scope="module")
def module_proxy(seaweed):
    with FaultProxy(seaweed.port) as proxy:
        yield proxy


@pytest.fixture
def proxy(module_proxy, s3_environment):
    module_proxy.heal()
    module_proxy.seen.clear()
    yield module_proxy
    module_proxy.heal()


@pytest.fixture(scope="module")
def stored(seaweed, saved, tmp_path_factory):
    """URL of an object that is only read."""
    with pytest.MonkeyPatch.context() as patch:
        point_boto3_at(seaweed, patch, tmp_path_factory.mktemp("aws"))
        gdsckpt.upload(saved, f"s3://{BUCKET}/stored/a.pt", config=SETTINGS)
    return f"s3://{BUCKET}/stored/a.pt"


@pytest.fixture
def harmed(proxy):
    """Settings of calls that go through the proxy."""
    return {**SETTINGS, "endpoint_url": proxy.endpoint}


@pytest.fixture
def url(request):
    return f"s3://{BUCKET}/{zlib.crc32(request.node.name.encode()):08x}/a.pt"


def fetched(url, tmp_path, config=SETTINGS):
    """Give the bytes of an object, fetched without harm."""
    gdsckpt.fetch(url, tmp_path / "fetched", config=config)
    return (tmp_path / "fetched").read_bytes()


def pending_uploads(seaweed):
    """List the uploads that are neither completed nor aborted."""
    import boto3

    client = boto3.client("s3", endpoint_url=seaweed.endpoint)
    return client.list_multipart_uploads(Bucket=BUCKET).get("Uploads", [])


def is_absent(url):
    with pytest.raises(CheckpointNotFoundError):
        gdsckpt.verify(url, config=SETTINGS)
    return True


def test_upload_and_fetch_give_the_same_bytes(s3_environment, saved, url, tmp_path):
    report = gdsckpt.upload(saved, url, config=SETTINGS)
    assert report.num_parts == 3
    assert fetched(url, tmp_path) == saved.read_bytes()
    assert gdsckpt.verify(url).ok
    assert_same(large_state(), gdsckpt.load(url))


def test_upload_again_sends_nothing(proxy, harmed, saved, url):
    gdsckpt.upload(saved, url, config=harmed)
    proxy.seen.clear()
    assert gdsckpt.upload(saved, url, config=harmed).sent_bytes == 0
    # In parts of another size too.
    assert gdsckpt.upload(saved, url, config={**harmed, "upload_part_bytes": "6MiB"}).num_parts == 0
    assert {each.op for each in proxy.ops()} == {"HeadObject"}


def test_save_and_load_of_a_checkpoint(s3_environment, url):
    gdsckpt.save_checkpoint({"w": torch.zeros(3)}, url, step=1)
    gdsckpt.save_checkpoint(large_state(), url, step=2, config=SETTINGS)
    assert_same(large_state(), gdsckpt.load(url))
    assert gdsckpt.verify(url).ok
    into = large_state()
    into["model"]["weight"].zero_()
    gdsckpt.load(url, into=into)
    assert_same(large_state(), into)


@pytest.mark.parametrize(
    "key",
    ["a b.pt", "a%20b?x=1&y#z.pt", "ümläut/Größe 模型.pt", "a+b=c:d@e,f;g!h'(i)*.pt", "~/a$b.pt"],
)
def test_odd_characters_in_keys(s3_environment, tmp_path, key):
    path = tmp_path / "a.pt"
    gdsckpt.save({"w": torch.arange(3.0)}, path)
    url = f"s3://{BUCKET}/odd/{key}"
    assert gdsckpt.upload(path, url).url == url
    assert fetched(url, tmp_path) == path.read_bytes()
    gdsckpt.fetch(url, tmp_path)
    assert (tmp_path / key.rpartition("/")[2]).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("key", ["../evil.pt", "a/../../evil.pt", "/etc/passwd", "a/./b", "a\0b"])
def test_keys_that_would_lead_elsewhere_are_refused(s3_environment, tmp_path, key):
    with pytest.raises(ConfigError):
        gdsckpt.fetch(f"s3://{BUCKET}/{key}", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_no_such_bucket_says_so(s3_environment, saved, tmp_path):
    for call in (
        lambda url: gdsckpt.upload(saved, url),
        lambda url: gdsckpt.fetch(url, tmp_path / "b"),
        gdsckpt.load,
        lambda url: gdsckpt.save({}, url),
    ):
        with pytest.raises(ObjectNotFoundError, match="NoSuchBucket") as caught:
            call("s3://no-such-bucket/a.pt")
        assert caught.value.code == "NoSuchBucket"


def test_no_such_key_says_so(s3_environment, tmp_path, url):
    for call in (lambda url: gdsckpt.fetch(url, tmp_path / "b"), gdsckpt.load, gdsckpt.verify):
        with pytest.raises(CheckpointNotFoundError) as caught:
            call(url)
        assert caught.value.path == url
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("which", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"])
def test_wrong_credentials_are_refused(s3_environment, saved, url, tmp_path, monkeypatch, which):
    monkeypatch.setenv(which, "wrong")
    for call in (
        lambda: gdsckpt.upload(saved, url, config=SETTINGS),
        lambda: gdsckpt.fetch(url, tmp_path / "b", config=SETTINGS),
        lambda: gdsckpt.load(url, config=SETTINGS),
    ):
        with pytest.raises(AccessDeniedError) as caught:
            call()
        assert isinstance(caught.value, PermissionError)
    assert list(tmp_path.iterdir()) == []


def be(seaweed, name, monkeypatch):
    """Take the keys of one of the server's identities."""
    (identity,) = (each for each in seaweed.identities if each.name == name)
    for variable, value in seaweed.environment_of(identity).items():
        monkeypatch.setenv(variable, value)


def test_who_may_only_read_cannot_upload(seaweed, s3_environment, saved, url, monkeypatch):
    be(seaweed, "reader", monkeypatch)
    with pytest.raises(AccessDeniedError):
        gdsckpt.upload(saved, url, config=SETTINGS)
    be(seaweed, "owner", monkeypatch)
    assert is_absent(url)


def test_who_may_only_write_cannot_fetch(
    seaweed, s3_environment, saved, url, tmp_path, monkeypatch
):
    gdsckpt.upload(saved, url, config=SETTINGS)
    be(seaweed, "writer", monkeypatch)
    with pytest.raises(AccessDeniedError):
        gdsckpt.fetch(url, tmp_path / "b", config=SETTINGS)
    with pytest.raises(AccessDeniedError):
        gdsckpt.load(url, config=SETTINGS)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "op",
    [
        "PutObject",
        "CreateMultipartUpload",
        "UploadPart",
        "CompleteMultipartUpload",
        "AbortMultipartUpload",
        "HeadObject",
    ],
)
def test_each_permission_that_an_upload_lacks_is_an_error(
    proxy, harmed, saved, url, tmp_path, op, seaweed
):
    proxy.harm(op, harm.answers(403, "AccessDenied"), times=FOREVER)
    if op == "HeadObject":
        proxy.harm("GetObject", harm.answers(403, "AccessDenied"), times=FOREVER)
    if op == "AbortMultipartUpload":
        proxy.harm("UploadPart", harm.answers(403, "AccessDenied"), skip=1)
    path = saved
    if op == "PutObject":
        path = tmp_path / "small.pt"
        gdsckpt.save({"w": torch.ones(2)}, path)
    with pytest.raises(AccessDeniedError) as caught:
        gdsckpt.upload(path, url, config=harmed)
    notes = " ".join(getattr(caught.value, "__notes__", ()))
    assert ("Abort the upload" in notes) == (op == "AbortMultipartUpload")
    proxy.heal()
    if op == "HeadObject":
        assert "was sent" in notes
        assert fetched(url, tmp_path) == path.read_bytes()
    else:
        assert is_absent(url)


def test_a_bucket_in_another_region_says_which(proxy, harmed, saved, url):
    region = ("x-amz-bucket-region: eu-central-1",)
    proxy.harm("*", harm.answers(301, "PermanentRedirect", headers=region), times=FOREVER)
    with pytest.raises(StoreError, match="eu-central-1"):
        gdsckpt.upload(saved, url, config=harmed)
    with pytest.raises(StoreError, match="eu-central-1"):
        gdsckpt.load(url, config=harmed)


# What an upload survives: the object is right, and the caller hears nothing of it.
SURVIVED = {
    "503 for some parts": lambda proxy: proxy.harm(
        "UploadPart", harm.answers(503, "SlowDown"), times=3
    ),
    "503 at the beginning": lambda proxy: proxy.harm(
        "CreateMultipartUpload", harm.answers(503, "SlowDown"), times=2
    ),
    "connection reset in mid-part": lambda proxy: proxy.harm(
        "UploadPart", harm.resets(after=MiB), times=2
    ),
    "part cut on its way": lambda proxy: proxy.harm("UploadPart", harm.cuts_upload(MiB)),
    "part accepted, answer lost": lambda proxy: proxy.harm("UploadPart", harm.drops_answer()),
    "part accepted, no answer": lambda proxy: proxy.harm("UploadPart", harm.hangs()),
    "server takes no more of a part": lambda proxy: proxy.harm(
        "UploadPart", harm.takes_no_more(MiB)
    ),
    "part without ETag": lambda proxy: proxy.harm("UploadPart", harm.replaces_header("etag")),
    "clock skew": lambda proxy: proxy.harm("UploadPart", harm.answers(403, "RequestTimeTooSkewed")),
    "incomplete body": lambda proxy: proxy.harm("UploadPart", harm.answers(400, "IncompleteBody")),
    "500": lambda proxy: proxy.harm("UploadPart", harm.answers(500, "InternalError")),
    "error in the answer to Complete": lambda proxy: proxy.harm(
        "CompleteMultipartUpload", harm.says_ok_with_error("InternalError")
    ),
    "answer to Complete lost": lambda proxy: proxy.harm(
        "CompleteMultipartUpload", harm.drops_answer()
    ),
    "answer to Complete lost for ever": lambda proxy: proxy.harm(
        "CompleteMultipartUpload", harm.drops_answer(), times=FOREVER
    ),
    "Complete done, 500": lambda proxy: proxy.harm(
        "CompleteMultipartUpload", harm.does_and_says_ok_with_nothing()
    ),
    "503 for the last look": lambda proxy: proxy.harm(
        "HeadObject", harm.answers(503, "SlowDown"), skip=1
    ),
    "upload vanished": lambda proxy: proxy.harm("UploadPart", harm.answers(404, "NoSuchUpload")),
}


@pytest.mark.parametrize("name", SURVIVED)
def test_upload_survives(proxy, harmed, saved, url, tmp_path, name):
    SURVIVED[name](proxy)
    report = gdsckpt.upload(saved, url, config=harmed)
    assert report.sent_bytes == saved.stat().st_size
    proxy.heal()
    assert fetched(url, tmp_path) == saved.read_bytes()


# What ends an upload: an error, and neither an object nor parts of one stay behind.
ENDED = {
    "503 for ever": lambda proxy: proxy.harm(
        "UploadPart", harm.answers(503, "SlowDown"), times=FOREVER
    ),
    "expired credentials": lambda proxy: proxy.harm(
        "UploadPart", harm.answers(400, "ExpiredToken"), skip=1, times=FOREVER
    ),
    "error in each answer to Complete": lambda proxy: proxy.harm(
        "CompleteMultipartUpload", harm.says_ok_with_error("InternalError"), times=FOREVER
    ),
    "no part has an ETag": lambda proxy: proxy.harm(
        "UploadPart", harm.answers(200, ""), times=FOREVER
    ),
    "no answer for ever": lambda proxy: proxy.harm("UploadPart", harm.hangs(), times=FOREVER),
    "each part is lost": lambda proxy: proxy.harm(
        "UploadPart", harm.answers(404, "NoSuchUpload"), times=FOREVER
    ),
}


@pytest.mark.parametrize("name", ENDED)
def test_upload_fails_cleanly(proxy, harmed, saved, url, seaweed, name):
    before = pending_uploads(seaweed)
    ENDED[name](proxy)
    with pytest.raises(StoreError):
        gdsckpt.upload(saved, url, config={**harmed, "store_attempts_max": 2})
    proxy.heal()
    assert is_absent(url)
    assert pending_uploads(seaweed) == before


def test_upload_of_a_checkpoint_that_fails_keeps_the_one_before(proxy, harmed, url, tmp_path):
    gdsckpt.save_checkpoint({"w": torch.zeros(3)}, url, step=1)
    config = {**harmed, **SMALL_CHUNKS}
    for op in ("PutObject", "UploadPart"):  # the manifest, and the shard
        proxy.harm(op, harm.answers(503, "SlowDown"), times=FOREVER)
        with pytest.raises(StoreError):
            gdsckpt.save_checkpoint(large_state(), url, step=2, config=config)
        proxy.heal()
        assert torch.equal(gdsckpt.load(url)["w"], torch.zeros(3))


def test_manifest_whose_answer_is_lost_is_committed(proxy, harmed, url):
    proxy.harm("PutObject", harm.drops_answer(), key="manifest.json")
    gdsckpt.save_checkpoint({"w": torch.ones(3)}, url, step=2, config=harmed)
    assert torch.equal(gdsckpt.load(url)["w"], torch.ones(3))


READ_FAULTS = {
    "503": harm.answers(503, "SlowDown"),
    "connection reset": harm.resets(),
    "answer stalls": harm.stalls_answer(1000),
    "no answer": harm.hangs(),
    "body cut short": harm.truncates_answer(1000),
    "body cut short by a reset": harm.truncates_answer(1000, reset=True),
    "body shorter than announced": harm.shortens_answer(1000),
    "a bit is flipped": harm.flips_answer(500),
}


@pytest.mark.parametrize(
    ("name", "skip"), [*((name, 2) for name in READ_FAULTS), ("503", 0), ("a bit is flipped", 0)]
)
def test_fetch_and_load_survive(proxy, harmed, saved, stored, tmp_path, name, skip):
    proxy.harm("GetObject", READ_FAULTS[name], skip=skip)
    gdsckpt.fetch(stored, tmp_path / "b.pt", config=harmed)
    assert (tmp_path / "b.pt").read_bytes() == saved.read_bytes()
    proxy.heal()
    proxy.harm("GetObject", READ_FAULTS[name], skip=skip)
    assert_same(large_state(), gdsckpt.load(stored, config=harmed))
    proxy.heal()
    proxy.harm("GetObject", READ_FAULTS[name], skip=skip)
    assert gdsckpt.verify(stored, config=harmed).ok


@pytest.mark.parametrize("name", [name for name in READ_FAULTS if name != "a bit is flipped"])
def test_fetch_fails_cleanly(proxy, harmed, stored, tmp_path, name):
    proxy.harm("GetObject", READ_FAULTS[name], skip=2, times=FOREVER)
    config = {**harmed, "store_attempts_max": 1}
    with pytest.raises(StoreError):
        gdsckpt.fetch(stored, tmp_path / "b.pt", config=config)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(StoreError):
        gdsckpt.load(stored, config=config)


def test_manifest_that_is_flipped_on_the_way_is_received_again(proxy, harmed, url):
    gdsckpt.save_checkpoint({"w": torch.ones(3)}, url, step=1)
    proxy.harm("GetObject", harm.flips_answer(50), key="manifest.json")
    assert torch.equal(gdsckpt.load(url, config=harmed)["w"], torch.ones(3))


def test_fetch_of_what_is_flipped_each_time_fails(proxy, harmed, saved, url, tmp_path):
    gdsckpt.upload(saved, url, config=SETTINGS)
    proxy.harm("GetObject", harm.flips_answer(500_000), skip=2, times=FOREVER)
    with pytest.raises(ChecksumError):
        gdsckpt.fetch(url, tmp_path / "b.pt", config=harmed)
    assert list(tmp_path.iterdir()) == []
    proxy.heal()
    proxy.harm("GetObject", harm.flips_answer(500_000), skip=2, times=FOREVER)
    with pytest.raises(ChecksumError):
        gdsckpt.load(url, config=harmed)


def test_fetch_of_a_damaged_object_names_the_place(s3_environment, saved, url, tmp_path):
    raw = flipped(saved.read_bytes(), 6 * MiB)
    (tmp_path / "damaged").write_bytes(raw)
    import boto3

    client = boto3.client("s3")
    client.put_object(Bucket=BUCKET, Key=url.removeprefix(f"s3://{BUCKET}/"), Body=raw)
    with pytest.raises(ChecksumError) as caught:
        gdsckpt.fetch(url, tmp_path / "b.pt")
    assert caught.value.offset == 6 * MiB
    assert not (tmp_path / "b.pt").exists()
    report = gdsckpt.verify(url)
    assert not report.ok
    assert report.damaged[0].tensors == ("model.weight",)


def test_object_replaced_in_mid_download_fails(proxy, harmed, saved, url, tmp_path):
    gdsckpt.upload(saved, url, config=SETTINGS)

    def replace(exchange):
        other = {**large_state(), "step": 8}
        gdsckpt.save(other, url, config={**SMALL_CHUNKS, **SETTINGS})
        exchange.forward()

    proxy.harm("GetObject", replace, skip=2)
    with pytest.raises(StoreError, match="was replaced while it was read"):
        gdsckpt.fetch(url, tmp_path / "b.pt", config=harmed)
    assert list(tmp_path.iterdir()) == []
    gdsckpt.fetch(url, tmp_path / "b.pt", config=harmed)
    assert gdsckpt.load(tmp_path / "b.pt")["step"] == 8


@pytest.mark.parametrize("how", ["load", "fetch", "verify"])
def test_checkpoint_replaced_in_mid_download_is_read_anew(proxy, harmed, url, tmp_path, how):
    gdsckpt.save_checkpoint({"w": torch.zeros(3_000_000)}, url, step=1)
    new = {"w": torch.ones(3_000_000)}

    def replace(exchange):
        gdsckpt.save_checkpoint(new, url, step=2)
        exchange.forward()

    # The manifest, two ends of the shard, and then its bytes.
    proxy.harm("GetObject", replace, skip=3)
    if how == "load":
        assert_same(new, gdsckpt.load(url, config=harmed))
    elif how == "verify":
        assert gdsckpt.verify(url, config=harmed).ok
    else:
        gdsckpt.fetch(url, tmp_path / "step", config=harmed)
        assert_same(new, gdsckpt.load(tmp_path / "step"))
        assert len(list((tmp_path / "step").iterdir())) == 2


def test_file_cut_short_while_a_part_is_sent_fails_cleanly(
    proxy, harmed, tmp_path, url, seaweed, monkeypatch
):
    path = tmp_path / "a.pt"
    gdsckpt.save({"w": torch.zeros(30_000_000)}, path, config={"fsync": False})
    before = pending_uploads(seaweed)

    def cut_short(exchange):
        received = 0
        for piece in exchange.body():
            received += len(piece)
            if received >= MiB and path.stat().st_size > 50 * MiB:
                os.truncate(path, MiB)

    proxy.harm("UploadPart", cut_short)
    config = {**harmed, "upload_part_bytes": "60MiB", "upload_concurrency": 1}
    with pytest.raises(StorageError, match="was changed while it was uploaded"):
        gdsckpt.upload(path, url, config=config)
    assert is_absent(url)
    assert pending_uploads(seaweed) == before


def test_a_server_that_dies_in_mid_upload_and_comes_back(tmp_path, s3_environment, monkeypatch):
    path = save_large(tmp_path / "a.pt")
    with Seaweed(tmp_path / "own", [BUCKET]) as server, FaultProxy(server.port) as proxy:
        for name, value in server.environment_of().items():
            monkeypatch.setenv(name, value)
        died = threading.Event()

        def die(_exchange):
            server.stop()
            died.set()
            raise harm.Cut

        proxy.harm("UploadPart", die, skip=1)
        config = {**SETTINGS, "endpoint_url": proxy.endpoint, "store_attempts_max": 20}
        with ThreadPoolExecutor(1) as threads:
            uploading = threads.submit(gdsckpt.upload, path, f"s3://{BUCKET}/a.pt", config=config)
            assert died.wait(60)
            server.start()
            assert uploading.result().num_parts == 3
        assert fetched(f"s3://{BUCKET}/a.pt", tmp_path) == path.read_bytes()


def test_foreign_object_is_fetched_and_loaded(s3_environment, url, tmp_path):
    import boto3

    torch.save(large_state(), tmp_path / "stock.pt")
    key = url.removeprefix(f"s3://{BUCKET}/")
    boto3.client("s3").upload_file(str(tmp_path / "stock.pt"), BUCKET, key)
    assert_same(large_state(), gdsckpt.load(url))
    with pytest.warns(gdsckpt.errors.UnverifiedWarning):
        gdsckpt.fetch(url, tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == (tmp_path / "stock.pt").read_bytes()


def test_half_an_object_is_refused(s3_environment, saved, url, tmp_path):
    import boto3

    half = saved.read_bytes()[: 4 * MiB]
    boto3.client("s3").put_object(Bucket=BUCKET, Key=url.removeprefix(f"s3://{BUCKET}/"), Body=half)
    for call in (lambda: gdsckpt.fetch(url, tmp_path / "b"), lambda: gdsckpt.load(url)):
        with pytest.raises(FormatError, match="cut short"):
            call()
    assert list(tmp_path.iterdir()) == []
