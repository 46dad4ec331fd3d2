import pytest

from gdsckpt.errors import AccessDeniedError, ObjectNotFoundError, StoreError
from gdsckpt.store.answers import Answer, Call, error_for, is_slow_down

CALL = Call("put_part", "run/a.pt", 512)


def error(status, code, text="", call=CALL):
    return error_for("s3://bucket", call, Answer(status, code, text))


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (404, "NoSuchKey", ObjectNotFoundError),
        (404, "NoSuchBucket", ObjectNotFoundError),
        (404, "404", ObjectNotFoundError),
        (404, "NoSuchUpload", StoreError),
        (403, "AccessDenied", AccessDeniedError),
        (403, "SignatureDoesNotMatch", AccessDeniedError),
        (403, "InvalidAccessKeyId", AccessDeniedError),
        (400, "ExpiredToken", AccessDeniedError),
        (403, "403", AccessDeniedError),
        (401, "Unauthorized", AccessDeniedError),
        (None, "NoCredentials", AccessDeniedError),
        (403, "RequestTimeTooSkewed", StoreError),
        (412, "PreconditionFailed", StoreError),
        (503, "SlowDown", StoreError),
    ],
)
def test_error_for_has_the_class_of_its_meaning(status, code, kind):
    assert type(error(status, code)) is kind


@pytest.mark.parametrize(
    ("status", "code", "retryable"),
    [
        (503, "SlowDown", True),
        (503, "", True),
        (500, "InternalError", True),
        (502, "Bad Gateway", True),
        (504, "", True),
        (429, "", True),
        (400, "RequestTimeout", True),
        (400, "IncompleteBody", True),
        (403, "RequestTimeTooSkewed", True),
        (409, "ConditionalRequestConflict", True),
        (None, "ConnectionFailed", True),
        (None, "Timeout", True),
        (None, "IncompleteRead", True),
        (None, "MissingETag", True),
        (None, "Interrupted", False),
        (501, "NotImplemented", False),
        (400, "InvalidPart", False),
        (400, "BadDigest", False),
        (404, "NoSuchKey", False),
        (404, "NoSuchUpload", False),
        (403, "AccessDenied", False),
        (412, "PreconditionFailed", False),
        (416, "InvalidRange", False),
        (301, "PermanentRedirect", False),
    ],
)
def test_error_for_is_retryable_where_time_helps(status, code, retryable):
    assert error(status, code).retryable is retryable


def test_error_for_conflict_of_a_completion_is_not_retryable():
    call = Call("complete_upload", "a")
    assert not error(409, "ConditionalRequestConflict", call=call).retryable


def test_error_for_has_fields_and_says_what_why_and_what_to_do():
    exc = error(503, "SlowDown", "Please reduce your request rate.")
    assert exc.fields == {
        "op": "put_part",
        "key": "run/a.pt",
        "attempts": 1,
        "status": 503,
        "code": "SlowDown",
        "retryable": True,
    }
    assert str(exc) == (
        "put_part of 512 bytes of s3://bucket/run/a.pt failed: 503 SlowDown: Please reduce your "
        "request rate. The store is overloaded: try later, or lower upload_concurrency."
    )


def test_error_for_without_status_and_text_is_still_a_sentence():
    exc = error(None, "Interrupted", call=Call("head", "a"))
    assert str(exc) == "head of s3://bucket/a failed: Interrupted."


def test_error_for_text_with_a_signed_url_is_cleaned():
    assert "secret1" not in str(error(500, "X", "http://h/?X-Amz-Signature=secret1"))


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (503, "SlowDown", True),
        (503, "", True),
        (429, "", True),
        (400, "RequestTimeout", True),
        (500, "InternalError", False),
        (None, "Timeout", False),
        (404, "NoSuchKey", False),
    ],
)
def test_is_slow_down_tells_overload(status, code, expected):
    assert is_slow_down(error(status, code)) is expected
