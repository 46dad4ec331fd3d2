from pathlib import Path

import pytest

from gdsckpt.errors import ConfigError
from gdsckpt.store.base import StoreUrl
from gdsckpt.store.url import check_key, is_url, parse_url, redact


@pytest.mark.parametrize(
    ("text", "scheme", "bucket", "key"),
    [
        ("s3://bucket/a/b.pt", "s3", "bucket", "a/b.pt"),
        ("S3://bucket/a", "s3", "bucket", "a"),
        ("s3://bucket", "s3", "bucket", ""),
        ("s3://bucket/", "s3", "bucket", ""),
        ("s3://bucket/run/", "s3", "bucket", "run/"),
        ("s3://bucket/a?b#c%20d", "s3", "bucket", "a?b#c%20d"),
        ("s3://bucket/a b+c&d=e", "s3", "bucket", "a b+c&d=e"),
        ("s3://bucket/a//b", "s3", "bucket", "a//b"),
        ("memory://name/a", "memory", "name", "a"),
        ("file:///tmp/a", "file", "", "tmp/a"),
        ("file://localhost/tmp/a", "file", "", "tmp/a"),
        ("file:///tmp/a%20b%25", "file", "", "tmp/a b%"),
        ("file:///", "file", "", ""),
        ("file:///tmp/run/", "file", "", "tmp/run/"),
    ],
)
def test_parse_url_gives_scheme_bucket_and_key(text, scheme, bucket, key):
    assert parse_url(text) == StoreUrl(scheme, bucket, key)


def test_parse_url_of_a_path_as_uri_is_the_path():
    path = Path("/tmp/a b/\u96ea#1?%41.pt")
    assert f"/{parse_url(path.as_uri()).key}" == str(path)


@pytest.mark.parametrize(
    "text",
    [
        "/tmp/a",
        "a",
        "",
        "s3:/bucket/a",
        "s3://",
        "s3:///a",
        "gs://bucket/a",
        "http://host/a",
        "file://host/a",
        "s3://key:swordfish@bucket/a",
        "s3://bucket:9000/a",
        "https://user:swordfish@host/a?X-Amz-Signature=swordfish",
    ],
)
def test_parse_url_that_is_none_is_refused_without_its_secrets(text):
    with pytest.raises(ConfigError) as caught:
        parse_url(text)
    assert caught.value.field == "url"
    assert "swordfish" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["s3://bucket/../a", "file:///a/./b", "memory://n/a/..", "s3://b//a"]
)
def test_parse_url_of_a_key_that_is_none_is_refused(text):
    with pytest.raises(ConfigError) as caught:
        parse_url(text)
    assert caught.value.field == "key"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("s3://b/k", True),
        ("file:///a", True),
        ("gs://b/k", True),
        ("/a/b", False),
        ("a:b", False),
        ("C:\\a", False),
        ("s3:/b", False),
        ("", False),
        (Path("s3://b/k"), False),
        (b"s3://b/k", False),
        (None, False),
    ],
)
def test_is_url_tells_urls_from_paths(text, expected):
    assert is_url(text) is expected


def test_check_key_of_1024_bytes_is_accepted():
    assert check_key("\u00e9" * 512)
    with pytest.raises(ConfigError) as caught:
        check_key("\u00e9" * 513)
    assert "1026 bytes" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://name:pass@host/a", "https://***@host/a"),
        ("at http://name@host: down", "at http://***@host: down"),
        ("https://host/a@b", "https://host/a@b"),
        ("?X-Amz-Signature=ab&x=1", "?X-Amz-Signature=***&x=1"),
        ("x-amz-security-token=ab/c+d== e", "x-amz-security-token=*** e"),
        (
            "AWSAccessKeyId=AK&Signature=x%3D&Expires=1",
            "AWSAccessKeyId=***&Signature=***&Expires=1",
        ),
        ("password=hunter2", "password=***"),
        ("no secret here", "no secret here"),
    ],
)
def test_redact_takes_secrets_out(text, expected):
    assert redact(text) == expected
