"""Uploads, fetches and loads on a real S3 server: keys, permissions, objects of others."""

import fault_proxy as harm
import pytest
import torch
from fault_proxy import FOREVER
from remote_cases import S3_SETTINGS, MiB, fetched, is_absent, large_state
from seaweed import BUCKET
from states import assert_same

import gdsckpt
from gdsckpt.errors import (
    AccessDeniedError,
    CheckpointNotFoundError,
    ConfigError,
    FormatError,
    ObjectNotFoundError,
    StoreError,
)

pytestmark = pytest.mark.s3


def test_upload_and_fetch_give_the_same_bytes(s3_environment, saved, url, tmp_path):
    report = gdsckpt.upload(saved, url, config=S3_SETTINGS)
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
    gdsckpt.save_checkpoint(large_state(), url, step=2, config=S3_SETTINGS)
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
        lambda: gdsckpt.upload(saved, url, config=S3_SETTINGS),
        lambda: gdsckpt.fetch(url, tmp_path / "b", config=S3_SETTINGS),
        lambda: gdsckpt.load(url, config=S3_SETTINGS),
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
        gdsckpt.upload(saved, url, config=S3_SETTINGS)
    be(seaweed, "owner", monkeypatch)
    assert is_absent(url)


def test_who_may_only_write_cannot_fetch(
    seaweed, s3_environment, saved, url, tmp_path, monkeypatch
):
    gdsckpt.upload(saved, url, config=S3_SETTINGS)
    be(seaweed, "writer", monkeypatch)
    with pytest.raises(AccessDeniedError):
        gdsckpt.fetch(url, tmp_path / "b", config=S3_SETTINGS)
    with pytest.raises(AccessDeniedError):
        gdsckpt.load(url, config=S3_SETTINGS)
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
