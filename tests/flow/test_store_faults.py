"""The s3 store on the real server, through a proxy that does harm."""

import threading
import zlib
from concurrent.futures import ThreadPoolExecutor

import fault_proxy as harm
import pytest
from fault_proxy import FOREVER, FaultProxy
from seaweed import BUCKET, point_boto3_at

from gdsckpt.config import Config
from gdsckpt.demo.seaweed import Seaweed
from gdsckpt.errors import AccessDeniedError, ObjectNotFoundError, StoreError
from gdsckpt.store import open_store
from gdsckpt.store.base import IF_ABSENT, PART_MIN_BYTES

pytestmark = pytest.mark.s3

ATTEMPTS = 4
BODY = bytes(range(256)) * 40
PART = bytes(range(255)) * 20_561 + b"x" * (PART_MIN_BYTES - 255 * 20_561)


@pytest.fixture(scope="module")
def module_proxy(seaweed):
    with FaultProxy(seaweed.port) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def module_store(seaweed, module_proxy, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        directory = tmp_path_factory.mktemp("aws")
        point_boto3_at(seaweed, patch, directory, endpoint=module_proxy.endpoint)
        config = Config(store_attempts_max=ATTEMPTS, store_timeout_s=1, upload_concurrency=4)
        store, _ = open_store(f"s3://{BUCKET}/", config)
        yield store
        store.close()


@pytest.fixture
def proxy(module_proxy):
    module_proxy.heal()
    module_proxy.seen.clear()
    yield module_proxy
    module_proxy.heal()


@pytest.fixture
def store(module_store, proxy):
    return module_store


@pytest.fixture
def key(request):
    return f"faults/{zlib.crc32(request.node.name.encode()):08x}"


def put(store, key, raw=BODY, **options):
    return store.put(key, memoryview(raw), crc32=zlib.crc32(raw), **options)


def read(store, key):
    memory = bytearray(len(BODY))
    store.get_range(key, 0, memoryview(memory))
    return bytes(memory)


def put_part(store, upload, number, raw=PART):
    return store.put_part(upload, number, memoryview(raw), crc32=zlib.crc32(raw))


def complete(store, upload, parts, raw):
    store.complete_upload(upload, parts, nbytes=len(raw), crc32=zlib.crc32(raw))


def upload_two_parts(store, key):
    """Upload an object of two parts, and check that it is the right one."""
    upload = store.create_upload(key)
    parts = [put_part(store, upload, 1), put_part(store, upload, 2, b"end")]
    complete(store, upload, parts, PART + b"end")
    info = store.head(key)
    assert (info.nbytes, info.crc32) == (len(PART) + 3, zlib.crc32(PART + b"end"))


def error_of(call, kind=StoreError):
    with pytest.raises(StoreError) as caught:
        call()
    assert type(caught.value) is kind
    return caught.value


PASSING = {
    "503": harm.answers(503, "SlowDown"),
    "503 before the body": harm.answers(503, "SlowDown", drain=False),
    "500": harm.answers(500, "InternalError"),
    "502 of a proxy": harm.answers(502, "Bad Gateway"),
    "429": harm.answers(429, "TooManyRequests"),
    "RequestTimeout": harm.answers(400, "RequestTimeout"),
    "skewed": harm.answers(403, "RequestTimeTooSkewed"),
    "IncompleteBody": harm.answers(400, "IncompleteBody"),
    "reset before": harm.resets(),
    "answer lost, reset": harm.drops_answer(),
    "answer lost, closed": harm.drops_answer(reset=False),
    "answer never comes": harm.hangs(),
    "expired": harm.answers(400, "ExpiredToken"),
}


@pytest.mark.parametrize("name", PASSING)
@pytest.mark.parametrize(
    "op",
    ["CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload", "HeadObject"],
)
def test_upload_fault_that_passes_gives_the_right_object(store, proxy, key, op, name):
    proxy.harm(op, PASSING[name])
    upload_two_parts(store, key)
    assert [seen.op for seen in proxy.seen if seen.fault] == [op]


@pytest.mark.parametrize("name", PASSING)
def test_get_range_fault_that_passes_gives_the_right_bytes(store, proxy, key, name):
    put(store, key)
    proxy.harm("GetObject", PASSING[name])
    assert read(store, key) == BODY
    assert len(proxy.ops("GetObject")) == 2


@pytest.mark.parametrize("op", ["PutObject", "DeleteObject", "ListObjectsV2", "ListParts"])
@pytest.mark.parametrize("name", ["503", "reset before", "answer lost, reset"])
def test_small_request_fault_that_passes_is_tried_again(store, proxy, key, op, name):
    upload = store.create_upload(key)
    proxy.harm(op, PASSING[name])
    put(store, key)
    assert [info.key for info in store.list_page(key).objects] == [key]
    assert store.list_parts(upload) == ()
    store.delete(key)
    store.abort_upload(upload)
    assert len(proxy.ops(op)) == 2


@pytest.mark.parametrize("op", ["AbortMultipartUpload", "DeleteObject"])
def test_removal_whose_answer_is_lost_is_no_error(store, proxy, key, op):
    proxy.harm(op, harm.drops_answer())
    put(store, key)
    store.delete(key)
    store.abort_upload(store.create_upload(key))
    with pytest.raises(ObjectNotFoundError):
        store.head(key)


UPLOAD_CUT = {
    "reset after one byte": harm.resets(after=1),
    "reset in the middle": harm.resets(after=PART_MIN_BYTES // 2),
    "cut before the server": harm.cuts_upload(PART_MIN_BYTES // 2),
    "taken no more": harm.takes_no_more(PART_MIN_BYTES // 2),
    "flipped": harm.flips_request(PART_MIN_BYTES // 2),
    "no ETag": harm.replaces_header("ETag"),
    "200 and an error": harm.says_ok_with_error("InternalError"),
    "200 and nothing": harm.does_and_says_ok_with_nothing(),
}


@pytest.mark.parametrize("name", UPLOAD_CUT)
def test_put_part_harmed_once_is_sent_again(store, proxy, key, name):
    proxy.harm("UploadPart", UPLOAD_CUT[name])
    upload_two_parts(store, key)
    assert len(proxy.ops("UploadPart")) == 3


GET_CUT = {
    "ends early": harm.truncates_answer(100),
    "ends before the body": harm.truncates_answer(0),
    "reset in the body": harm.truncates_answer(100, reset=True),
    "stalls in the body": harm.stalls_answer(100),
    "is shorter than asked": harm.shortens_answer(100),
    "ignores the range": harm.ignores_range(BODY + b"more"),
    "another range": harm.replaces_header("Content-Range", f"bytes 1-{len(BODY)}/99999"),
}


@pytest.mark.parametrize("name", GET_CUT)
def test_get_range_harmed_once_is_asked_for_again(store, proxy, key, name):
    put(store, key)
    proxy.harm("GetObject", GET_CUT[name])
    assert read(store, key) == BODY
    assert len(proxy.ops("GetObject")) == 2


@pytest.mark.parametrize("name", GET_CUT)
def test_get_range_harmed_for_ever_is_an_error(store, proxy, key, name):
    put(store, key)
    proxy.harm("GetObject", GET_CUT[name], times=FOREVER)
    error = error_of(lambda: read(store, key))
    assert (error.op, error.key, error.attempts, error.retryable) == (
        "get_range",
        key,
        ATTEMPTS,
        True,
    )
    assert error.code in ("IncompleteRead", "Timeout", "ConnectionFailed")


@pytest.mark.parametrize(
    ("name", "status", "code"),
    [
        ("503", 503, "SlowDown"),
        ("500", 500, "InternalError"),
        ("skewed", 403, "RequestTimeTooSkewed"),
        ("reset before", None, "ConnectionFailed"),
        ("answer never comes", None, "Timeout"),
    ],
)
def test_fault_that_never_passes_is_an_error_after_all_attempts(
    store, proxy, key, name, status, code
):
    upload = store.create_upload(key)
    proxy.harm("UploadPart", PASSING[name], times=FOREVER)
    error = error_of(lambda: put_part(store, upload, 1))
    assert (error.op, error.status, error.code) == ("put_part", status, code)
    assert (error.attempts, error.retryable) == (ATTEMPTS, True)
    assert len(proxy.ops("UploadPart")) == ATTEMPTS
    assert any(f"tried {ATTEMPTS} times" in note for note in error.__notes__)
    store.abort_upload(upload)


def test_put_part_never_with_an_etag_is_an_error(store, proxy, key):
    upload = store.create_upload(key)
    proxy.harm("UploadPart", harm.replaces_header("ETag"), times=FOREVER)
    error = error_of(lambda: put_part(store, upload, 1, b"x"))
    assert (error.status, error.code, error.attempts) == (None, "MissingETag", ATTEMPTS)


def test_complete_that_always_says_ok_with_an_error_is_an_error(store, proxy, key):
    upload = store.create_upload(key)
    part = put_part(store, upload, 1, b"x")
    proxy.harm("CompleteMultipartUpload", harm.says_ok_with_error("InternalError"), times=FOREVER)
    error = error_of(lambda: complete(store, upload, [part], b"x"))
    assert (error.code, error.attempts) == ("InternalError", ATTEMPTS)
    with pytest.raises(ObjectNotFoundError):
        store.head(key)


def test_complete_in_conflict_is_not_tried_again(store, proxy, key):
    upload = store.create_upload(key)
    part = put_part(store, upload, 1, b"x")
    proxy.harm("CompleteMultipartUpload", harm.answers(409, "ConditionalRequestConflict"))
    error = error_of(lambda: complete(store, upload, [part], b"x"))
    assert (error.status, error.attempts, error.retryable) == (409, 1, False)


def test_put_in_conflict_is_tried_again(store, proxy, key):
    proxy.harm("PutObject", harm.answers(409, "ConditionalRequestConflict"))
    put(store, key, condition=IF_ABSENT)
    assert read(store, key) == BODY


@pytest.mark.parametrize("name", ["answer lost, reset", "answer lost, closed"])
def test_put_if_absent_whose_answer_is_lost_has_succeeded(store, proxy, key, name):
    proxy.harm("PutObject", PASSING[name])
    info = put(store, key, condition=IF_ABSENT)
    assert info.etag == store.head(key).etag
    assert len(proxy.ops("PutObject")) == 2


def test_put_if_absent_that_lost_a_race_in_a_retry_is_refused(store, proxy, key, s3_environment):
    direct, _ = open_store(f"s3://{BUCKET}/", Config())
    proxy.harm("PutObject", PASSING["503"])
    proxy.harm("PutObject", harm.calls(lambda: put(direct, key, BODY[::-1])))
    error = error_of(lambda: put(store, key, condition=IF_ABSENT))
    assert (error.status, error.code, error.attempts) == (412, "PreconditionFailed", 2)
    assert read(store, key) == BODY[::-1]


def test_bytes_that_were_wrong_before_they_were_sent_are_not_sent_again(store, proxy, key):
    upload = store.create_upload(key)
    error = error_of(lambda: store.put_part(upload, 1, memoryview(PART), crc32=1))
    assert (error.status, error.code, error.retryable) == (400, "BadDigest", False)
    assert len(proxy.ops("UploadPart")) == 1
    assert "verify the source" in str(error)


def test_no_such_bucket_is_not_found(seaweed, s3_environment, key):
    store, _ = open_store("s3://no-such-bucket/", Config())
    for call in (
        lambda: store.head(key),
        lambda: read(store, key),
        lambda: put(store, key),
        lambda: store.create_upload(key),
        lambda: store.list_page(),
        lambda: store.delete(key),
    ):
        error = error_of(call, ObjectNotFoundError)
        assert (error.code, error.attempts, error.retryable) == ("NoSuchBucket", 1, False)
        assert "no-such-bucket" in str(error)


@pytest.mark.parametrize(
    ("status", "headers", "code", "more"),
    [
        (301, ["x-amz-bucket-region: eu-north-1"], "PermanentRedirect", ""),
        (400, [], "AuthorizationHeaderMalformed", "<Region>eu-north-1</Region>"),
    ],
)
@pytest.mark.parametrize("op", ["head", "get_range", "put", "create_upload", "put_part"])
def test_bucket_in_another_region_is_named(store, proxy, key, op, status, headers, code, more):
    upload = store.create_upload(key)
    proxy.harm("*", harm.answers(status, code, headers=headers, more=more), times=FOREVER)
    calls = {
        "head": lambda: store.head(key),
        "get_range": lambda: read(store, key),
        "put": lambda: put(store, key),
        "create_upload": lambda: store.create_upload(key),
        "put_part": lambda: put_part(store, upload, 1),
    }
    error = error_of(calls[op])
    assert (error.op, error.status, error.code, error.retryable) == (op, status, code, False)
    assert "set AWS_DEFAULT_REGION=eu-north-1" in str(error)


@pytest.mark.parametrize("op", ["CreateMultipartUpload", "UploadPart", "HeadObject", "GetObject"])
def test_bucket_in_another_region_is_followed_where_that_helps(store, proxy, key, op):
    fault = harm.answers(301, "PermanentRedirect", headers=["x-amz-bucket-region: eu-north-1"])
    proxy.harm(op, fault)
    upload_two_parts(store, key)
    store.get_range(key, 0, memoryview(bytearray(1)))
    assert any(seen.fault for seen in proxy.ops(op))


def test_clock_that_is_wrong_is_named_with_the_servers_time(store, proxy, key):
    date = "Mon, 30 Nov 2026 12:00:00 GMT"
    fault = harm.answers(403, "RequestTimeTooSkewed", headers=[f"Date: {date}"])
    proxy.harm("*", fault, times=FOREVER)
    error = error_of(lambda: put(store, key))
    assert (error.code, error.attempts) == ("RequestTimeTooSkewed", ATTEMPTS)
    assert date in str(error)
    assert "clock of this machine" in str(error)


def test_interrupt_breaks_off_calls_that_wait_for_the_server(store, proxy, key):
    put(store, key)
    upload = store.create_upload(key)
    proxy.harm("GetObject", harm.hangs(), times=FOREVER)
    proxy.harm("UploadPart", harm.takes_no_more(1000), times=FOREVER)
    calls = [lambda: read(store, key), lambda: put_part(store, upload, 1)]
    errors = []
    came = threading.Semaphore(0)

    def run(call):
        errors.append(error_of(call))
        came.release()

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    # Interrupted until each call was in one of its waits, for the server or for another attempt.
    while not came.acquire(timeout=0.05) or not came.acquire(timeout=0.05):
        store.interrupt()
        if len(errors) == 2:
            break
    for thread in threads:
        thread.join()
    assert [(error.code, error.retryable) for error in errors] == [("Interrupted", False)] * 2
    proxy.heal()
    assert read(store, key) == BODY
    store.abort_upload(upload)


def test_slow_down_lowers_the_number_of_requests_in_flight(store, proxy, key):
    limit = store._inner._limit
    assert limit.num_allowed == 4
    proxy.harm("PutObject", PASSING["503"], times=FOREVER)
    error_of(lambda: put(store, key))
    assert limit.num_allowed == 1
    proxy.heal()
    for _ in range(20):
        put(store, key)
    assert limit.num_allowed == 4


def test_server_that_dies_in_mid_upload_and_comes_back_gets_the_object(tmp_path, monkeypatch, key):
    with Seaweed(tmp_path / "server", [BUCKET]) as server, FaultProxy(server.port) as proxy:
        point_boto3_at(server, monkeypatch, tmp_path, endpoint=proxy.endpoint)
        store, _ = open_store(f"s3://{BUCKET}/", Config())
        upload = store.create_upload(key)
        first = put_part(store, upload, 1)
        is_dead = threading.Event()

        def die():
            server.stop()
            is_dead.set()

        proxy.harm("UploadPart", harm.calls(die))
        with ThreadPoolExecutor(1) as pool:
            sending = pool.submit(put_part, store, upload, 2, b"end")
            is_dead.wait()
            server.start()
            second = sending.result()
        assert [part.number for part in store.list_parts(upload)] == [1, 2]
        complete(store, upload, [first, second], PART + b"end")
        assert store.head(key).crc32 == zlib.crc32(PART + b"end")


def test_server_that_is_not_there_is_an_error_that_names_it(monkeypatch, tmp_path, seaweed, key):
    with FaultProxy(1) as gone:
        endpoint = gone.endpoint
    point_boto3_at(seaweed, monkeypatch, tmp_path, endpoint=endpoint)
    store, _ = open_store(f"s3://{BUCKET}/", Config(store_attempts_max=2))
    error = error_of(lambda: store.head(key))
    assert (error.code, error.attempts, error.retryable) == ("ConnectionFailed", 2, True)
    assert endpoint.removeprefix("http://") in str(error)
    assert "Connection refused" in str(error)


def test_host_that_has_no_address_is_an_error_at_once(monkeypatch, tmp_path, seaweed, key):
    point_boto3_at(seaweed, monkeypatch, tmp_path, endpoint="https://no-such-host.invalid")
    store, _ = open_store(f"s3://{BUCKET}/", Config())
    error = error_of(lambda: store.head(key))
    assert (error.code, error.attempts) == ("ConnectionFailed", 1)
    assert "no-such-host.invalid" in str(error)


def test_access_denied_is_not_tried_again(store, proxy, key):
    proxy.harm("PutObject", harm.answers(403, "AccessDenied"))
    error = error_of(lambda: put(store, key), AccessDeniedError)
    assert (error.status, error.attempts, error.retryable) == (403, 1, False)
