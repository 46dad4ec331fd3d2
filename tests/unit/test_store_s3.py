import os
import subprocess
import sys
import zlib

import fault_proxy as harm
import pytest
from fault_proxy import FOREVER, FaultProxy
from seaweed import BUCKET, point_boto3_at

from gdsckpt.config import Config
from gdsckpt.errors import ConfigError, StoreError
from gdsckpt.store import open_store
from gdsckpt.store.s3_answers import crc32_of

BODY = b"hello"
CRC32 = 0x3610A686


@pytest.fixture
def proxy(seaweed):
    with FaultProxy(seaweed.port) as proxy:
        yield proxy


@pytest.fixture
def store(seaweed, proxy, monkeypatch, tmp_path):
    point_boto3_at(seaweed, monkeypatch, tmp_path, endpoint=proxy.endpoint)
    store, _ = open_store(f"s3://{BUCKET}/", Config(store_attempts_max=1))
    yield store
    store.close()


def refuses(header, status, code):
    """The server does not know a header, or one value of it: ``name`` or ``name: value``."""

    def fault(exchange):
        if any(line.lower().startswith(header) for line in exchange.lines):
            harm.answers(status, code)(exchange)
        else:
            exchange.forward()

    return fault


def upload(store, key):
    upload = store.create_upload(key)
    part = store.put_part(upload, 1, memoryview(BODY), crc32=CRC32)
    store.complete_upload(upload, [part], nbytes=len(BODY), crc32=CRC32)
    return upload


@pytest.mark.s3
def test_upload_asks_for_the_checksum_of_the_whole_object(store):
    assert upload(store, "s3/full").checksum_type == "FULL_OBJECT"
    assert store.head("s3/full").crc32 == CRC32


@pytest.mark.s3
@pytest.mark.parametrize(("status", "code"), [(501, "NotImplemented"), (400, "InvalidArgument")])
def test_upload_to_a_store_without_full_object_has_checksums_of_parts(store, proxy, status, code):
    fault = refuses("x-amz-checksum-type: full_object", status, code)
    proxy.harm("CreateMultipartUpload", fault, times=FOREVER)
    assert upload(store, "s3/parts").checksum_type == "COMPOSITE"
    info = store.head("s3/parts")
    expected = (zlib.crc32(CRC32.to_bytes(4, "big")), 1)
    assert (info.crc32, info.composite_crc32) == (None, expected)


@pytest.mark.s3
def test_upload_to_a_store_without_checksums_has_none(store, proxy):
    fault = refuses("x-amz-checksum-algorithm", 501, "NotImplemented")
    proxy.harm("CreateMultipartUpload", fault, times=FOREVER)
    assert upload(store, "s3/none").checksum_type == ""
    assert store.head("s3/none").nbytes == len(BODY)


@pytest.mark.s3
def test_what_a_store_takes_is_found_out_once(store, proxy):
    fault = refuses("x-amz-checksum-type: full_object", 501, "NotImplemented")
    proxy.harm("CreateMultipartUpload", fault, times=FOREVER)
    for _ in range(3):
        upload(store, "s3/once")
    assert len(proxy.ops("CreateMultipartUpload")) == 4


@pytest.mark.s3
def test_put_to_a_store_without_checksums_is_done_without(store, proxy):
    proxy.harm("PutObject", refuses("x-amz-checksum-crc32", 501, "NotImplemented"), times=FOREVER)
    for _ in range(2):
        store.put("s3/put", memoryview(BODY), crc32=CRC32)
    assert store.head("s3/put").nbytes == len(BODY)
    assert len(proxy.ops("PutObject")) == 3


@pytest.mark.s3
def test_put_that_is_refused_for_another_reason_says_that(store, proxy):
    proxy.harm("PutObject", harm.answers(400, "InvalidRequest", message="no"), times=FOREVER)
    with pytest.raises(StoreError) as caught:
        store.put("s3/put", memoryview(BODY), crc32=CRC32)
    assert (caught.value.status, caught.value.code) == (400, "InvalidRequest")


@pytest.mark.s3
def test_no_checksum_goes_into_the_body(store, proxy):
    """boto3's default is a trailer in aws-chunked encoding, which many servers cannot read."""
    heads = []

    def look(exchange):
        heads.append([line.lower() for line in exchange.lines])
        exchange.forward()

    proxy.harm("*", look, times=FOREVER)
    upload(store, "s3/plain")
    store.put("s3/plain", memoryview(BODY), crc32=CRC32)
    assert len(heads) == 4
    for head in heads:
        assert not any("aws-chunked" in line or line.startswith("x-amz-trailer") for line in head)
        assert not any(line.startswith(("expect", "transfer-encoding")) for line in head)
    for head in (heads[1], heads[3]):
        assert "x-amz-content-sha256: unsigned-payload" in head
        assert f"content-length: {len(BODY)}" in head
        assert any(line.startswith("x-amz-checksum-crc32:") for line in head)


@pytest.mark.s3
def test_complete_names_size_and_checksum_of_the_object(store, proxy):
    heads = []

    def look(exchange):
        heads.append([line.lower() for line in exchange.lines])
        exchange.forward()

    proxy.harm("CompleteMultipartUpload", look)
    upload(store, "s3/complete")
    assert f"x-amz-mp-object-size: {len(BODY)}" in heads[0]
    assert "x-amz-checksum-type: full_object" in heads[0]


@pytest.mark.s3
def test_listing_of_more_than_a_page_is_given_page_by_page(store):
    for number in range(1001):
        store.put(f"s3/pages/{number:04}", memoryview(b""), crc32=0)
    page = store.list_page("s3/pages/")
    assert len(page.objects) == 1000
    assert page.next_token
    rest = store.list_page("s3/pages/", token=page.next_token)
    assert [info.key for info in rest.objects] == ["s3/pages/1000"]
    assert rest.next_token == ""


@pytest.mark.s3
def test_requests_that_botocore_makes_on_the_way_do_not_meet_the_callers_memory(store):
    """As it asks for a session of a directory bucket before it signs."""
    store.put("s3/nested", memoryview(BODY), crc32=CRC32)
    client = store._inner._inner._client._client
    listed = []

    def list_first(**_kwargs):
        listed.append(client.list_objects_v2(Bucket=BUCKET, Prefix="s3/nested")["KeyCount"])

    client.meta.events.register("before-sign.s3.GetObject", list_first)
    memory = bytearray(len(BODY))
    store.get_range("s3/nested", 0, memoryview(memory))
    assert (bytes(memory), listed) == (BODY, [1])


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ({}, (None, None)),
        ({"ChecksumCRC32": "NhCmhg=="}, (CRC32, None)),
        ({"ChecksumCRC32": "NhCmhg==", "ChecksumType": "FULL_OBJECT"}, (CRC32, None)),
        ({"ChecksumCRC32": "NhCmhg==-3", "ChecksumType": "COMPOSITE"}, (None, (CRC32, 3))),
        ({"ChecksumCRC32": "NhCmhg==-3"}, (None, (CRC32, 3))),
        ({"ChecksumCRC32": "NhCmhg==", "ChecksumType": "COMPOSITE"}, (None, None)),
        ({"ChecksumCRC32": "NhCmhg==-x"}, (None, None)),
        ({"ChecksumCRC32": "not base64"}, (None, None)),
        ({"ChecksumCRC32": "NhCm"}, (None, None)),
        ({"ChecksumCRC64NVME": "AAAAAAAAAAA="}, (None, None)),
    ],
)
def test_checksums_of_head_are_told_apart(found, expected):
    assert crc32_of(found) == expected


@pytest.mark.parametrize(
    ("bucket", "field"), [("Bad_Bucket!", None), ("b", None)], ids=["characters", "short"]
)
@pytest.mark.s3
def test_bucket_that_cannot_be_one_is_refused(seaweed, monkeypatch, tmp_path, bucket, field):
    point_boto3_at(seaweed, monkeypatch, tmp_path)
    store, _ = open_store(f"s3://{bucket}/key", Config(store_attempts_max=1))
    with pytest.raises((ConfigError, StoreError)) as caught:
        store.head("key")
    assert bucket in str(caught.value)


def test_profile_that_does_not_exist_is_a_configuration_error(monkeypatch, tmp_path):
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_PROFILE", "no-such-profile")
    with pytest.raises(ConfigError) as caught:
        open_store("s3://bucket/key", Config())
    assert "no-such-profile" in str(caught.value)


def test_boto3_missing_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "boto3", None)
    monkeypatch.delitem(sys.modules, "gdsckpt.store.s3_client", raising=False)
    with pytest.raises(ConfigError) as caught:
        open_store("s3://bucket/key", Config())
    assert "pip install 'gdsckpt[s3]'" in str(caught.value)


def test_boto3_and_torch_are_imported_for_no_other_store(tmp_path):
    code = (
        "import sys\n"
        "from gdsckpt.config import Config\n"
        "from gdsckpt.store import open_store\n"
        f"for url in ('memory://n/k', 'file://{tmp_path}/k'):\n"
        "    store, key = open_store(url, Config())\n"
        "    store.put(key, memoryview(b'x'), crc32=0x8cdc1683)\n"
        "print(*({'boto3', 'botocore', 'torch', 'ssl'} & set(sys.modules)))\n"
    )
    run = [sys.executable, "-c", code]
    done = subprocess.run(run, capture_output=True, text=True, check=True, env=dict(os.environ))
    assert done.stdout.strip() == ""
