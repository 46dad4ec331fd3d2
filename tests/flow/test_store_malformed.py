"""Answers of an S3 server, or of what stands before it, that lack something or make no sense."""

import itertools
import zlib

import pytest
from fault_proxy import FOREVER, Cut, replaces_header
from seaweed import BUCKET

from gdsckpt.config import Config
from gdsckpt.errors import StoreError
from gdsckpt.store import open_store
from gdsckpt.store.base import list_all

pytestmark = pytest.mark.s3

ATTEMPTS = 2
KEY = "malformed/a"
BODY = b"hello"
PAGE = "<html>Please log in.</html>"


@pytest.fixture
def store(proxy):
    config = Config(endpoint_url=proxy.endpoint, store_attempts_max=ATTEMPTS, store_timeout_s=5)
    store, _ = open_store(f"s3://{BUCKET}/", config)
    yield store
    store.close()


def says(*lines, body=""):
    """Answer 200 with just these headers and this body, and close."""

    def fault(exchange):
        exchange.drain()
        head = "\r\n".join(["HTTP/1.1 200 OK", *lines, "", ""])
        exchange.client.sendall((head + body).encode("latin-1"))
        raise Cut(reset=False)

    return fault


def says_page(text):
    return says(f"Content-Length: {len(text)}", body=text)


MALFORMED = {
    "head without a length": ("HeadObject", says('ETag: "a"')),
    "head with a length beyond all limits": ("HeadObject", says(f"Content-Length: {10**20}")),
    "head with a date that is none": (
        "HeadObject",
        says("Content-Length: 5", "Last-Modified: yesterday"),
    ),
    "upload without an id": ("CreateMultipartUpload", says_page("")),
    "upload of another server": ("CreateMultipartUpload", says_page(PAGE)),
    "list of nothing": ("ListObjectsV2", says_page("")),
    "list of another server": ("ListObjectsV2", says_page(PAGE)),
}
CALLS = {
    "HeadObject": lambda store: store.head(KEY),
    "CreateMultipartUpload": lambda store: store.create_upload(KEY),
    "ListObjectsV2": lambda store: store.list_page("malformed/"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_answer_is_asked_for_again(store, proxy, name):
    store.put(KEY, memoryview(BODY), crc32=zlib.crc32(BODY))
    op, fault = MALFORMED[name]
    proxy.harm(op, fault)
    assert CALLS[op](store)
    assert len(proxy.ops(op)) == 2


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_answer_each_time_is_an_error(store, proxy, name):
    op, fault = MALFORMED[name]
    proxy.harm(op, fault, times=FOREVER)
    with pytest.raises(StoreError) as caught:
        CALLS[op](store)
    assert (caught.value.code, caught.value.attempts) == ("MalformedAnswer", ATTEMPTS)


def page(keys, is_truncated, token=""):
    listed = "".join(f"<Contents><Key>{key}</Key><Size>1</Size></Contents>" for key in keys)
    more = f"<NextContinuationToken>{token}</NextContinuationToken>" if token else ""
    text = f"<IsTruncated>{is_truncated}</IsTruncated>{more}{listed}"
    return f"<ListBucketResult>{text}</ListBucketResult>"


def lists(*pages):
    """Answer with one page after the other; with the last one for ever."""
    rest = itertools.chain(pages, itertools.repeat(pages[-1]))
    return lambda exchange: says_page(next(rest))(exchange)


def keys_of(store):
    return [info.key for info in itertools.islice(list_all(store), 10)]


def test_list_in_any_order_is_given_as_it_comes(store, proxy):
    pages = lists(page("ca", "true", "1"), page("b", "false"))
    proxy.harm("ListObjectsV2", pages, times=FOREVER)
    assert keys_of(store) == ["c", "a", "b"]


def test_list_ends_where_the_server_says_so(store, proxy):
    proxy.harm("ListObjectsV2", lists(page("a", "false", "1"), page("b", "false")), times=FOREVER)
    assert keys_of(store) == ["a"]


@pytest.mark.parametrize("token", ["", "1"], ids=["no token", "the same token"])
def test_list_that_cannot_go_on_is_an_error_rather_than_short_or_endless(store, proxy, token):
    pages = lists(page("a", "true", "1"), page("b", "true", token))
    proxy.harm("ListObjectsV2", pages, times=FOREVER)
    with pytest.raises(StoreError) as caught:
        keys_of(store)
    assert caught.value.code == "MalformedAnswer"


# Some stores accept If-Match and pay no heed to it.
@pytest.mark.parametrize("etag", ['"other"', 'W/"other"'])
def test_get_range_of_another_version_is_refused_also_where_the_store_does_not(store, proxy, etag):
    info = store.put(KEY, memoryview(BODY), crc32=zlib.crc32(BODY))
    proxy.harm("GetObject", replaces_header("ETag", etag))
    with pytest.raises(StoreError) as caught:
        store.get_range(KEY, 0, memoryview(bytearray(len(BODY))), if_match=info.etag)
    assert (caught.value.status, caught.value.code) == (412, "PreconditionFailed")


@pytest.mark.parametrize("as_written", ["W/{}", "{}"])
def test_get_range_of_the_same_version_is_given_however_its_etag_is_written(
    store, proxy, as_written
):
    info = store.put(KEY, memoryview(BODY), crc32=zlib.crc32(BODY))
    proxy.harm("GetObject", replaces_header("ETag", as_written.format(info.etag)))
    memory = bytearray(len(BODY))
    store.get_range(KEY, 0, memoryview(memory), if_match=info.etag)
    assert memory == BODY
