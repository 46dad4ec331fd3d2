"""Uploads, fetches and loads on a real S3 server, through a proxy that does harm."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import fault_proxy as harm
import pytest
import torch
from fault_proxy import FOREVER, FaultProxy
from remote_cases import (
    S3_SETTINGS,
    SMALL_CHUNKS,
    MiB,
    fetched,
    flipped,
    is_absent,
    large_state,
    pending_uploads,
    save_large,
)
from seaweed import BUCKET
from states import assert_same

import gdsckpt
from gdsckpt.demo.seaweed import Seaweed
from gdsckpt.errors import ChecksumError, StorageError, StoreError

pytestmark = pytest.mark.s3


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
    gdsckpt.upload(saved, url, config=S3_SETTINGS)
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


@pytest.fixture
def patient(harmed):
    """Settings for requests that wait for a whole save, on a machine that may be busy."""
    return {**harmed, "store_timeout_s": 60}


def test_object_replaced_in_mid_download_fails(proxy, patient, saved, url, tmp_path):
    gdsckpt.upload(saved, url, config=S3_SETTINGS)

    def replace(exchange):
        other = {**large_state(), "step": 8}
        gdsckpt.save(other, url, config={**S3_SETTINGS, **SMALL_CHUNKS, "store_timeout_s": 60})
        exchange.forward()

    proxy.harm("GetObject", replace, skip=2)
    with pytest.raises(StoreError, match="was replaced while it was read"):
        gdsckpt.fetch(url, tmp_path / "b.pt", config=patient)
    assert list(tmp_path.iterdir()) == []
    gdsckpt.fetch(url, tmp_path / "b.pt", config=patient)
    assert gdsckpt.load(tmp_path / "b.pt")["step"] == 8


@pytest.mark.parametrize("how", ["load", "fetch", "verify"])
def test_checkpoint_replaced_in_mid_download_is_read_anew(proxy, patient, url, tmp_path, how):
    gdsckpt.save_checkpoint({"w": torch.zeros(3_000_000)}, url, step=1)
    new = {"w": torch.ones(3_000_000)}

    def replace(exchange):
        gdsckpt.save_checkpoint(new, url, step=2)
        exchange.forward()

    # The manifest, two ends of the shard, and then its bytes.
    proxy.harm("GetObject", replace, skip=3)
    if how == "load":
        assert_same(new, gdsckpt.load(url, config=patient))
    elif how == "verify":
        assert gdsckpt.verify(url, config=patient).ok
    else:
        gdsckpt.fetch(url, tmp_path / "step", config=patient)
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
        config = {**S3_SETTINGS, "endpoint_url": proxy.endpoint, "store_attempts_max": 20}
        with ThreadPoolExecutor(1) as threads:
            uploading = threads.submit(gdsckpt.upload, path, f"s3://{BUCKET}/a.pt", config=config)
            assert died.wait(60)
            server.start()
            assert uploading.result().num_parts == 3
        assert fetched(f"s3://{BUCKET}/a.pt", tmp_path) == path.read_bytes()
