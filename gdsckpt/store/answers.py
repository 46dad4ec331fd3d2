"""What the answers of an object store mean: the one place that reads status and error code."""

from __future__ import annotations

from dataclasses import dataclass

from gdsckpt.errors import AccessDeniedError, ObjectNotFoundError, StoreError
from gdsckpt.store.url import redact


@dataclass(frozen=True, slots=True)
class Call:
    """What a store was asked for.

    Attributes:
        op: Method of ``Store``.
        key: Key of the object, or prefix of a listing.
        nbytes: Bytes of the object that go over the wire; 0 for what is about it only.
    """

    op: str
    key: str
    nbytes: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back instead of what was asked for.

    Attributes:
        status: HTTP status; None where there was no answer at all.
        code: Error code of S3, or one of ours where there is none: ``ConnectionFailed``,
            ``Timeout``, ``IncompleteRead``, ``MalformedAnswer``, ``Interrupted``,
            ``NoCredentials``.
        text: What the other side says of it; may be empty.
    """

    status: int | None
    code: str
    text: str = ""


# Source of the codes: Amazon S3 API Reference, "Error responses".
_NOT_FOUND_CODES = frozenset({"NoSuchKey", "NoSuchBucket", "NotFound", "404"})
_ACCESS_CODES = frozenset(
    {
        "AccessDenied",
        "AccountProblem",
        "AllAccessDisabled",
        "ExpiredToken",
        "ExpiredTokenException",
        "InvalidAccessKeyId",
        "InvalidToken",
        "NoCredentials",
        "SignatureDoesNotMatch",
        "TokenRefreshRequired",
    }
)
EXPIRED_CODES = frozenset(
    {"ExpiredToken", "ExpiredTokenException", "InvalidToken", "TokenRefreshRequired"}
)
"""The credentials were good once: fresh ones may do."""

SLOW_DOWN_CODES = frozenset(
    {
        "BandwidthLimitExceeded",
        "RequestLimitExceeded",
        "RequestTimeout",
        "ServiceUnavailable",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "TooManyRequests",
    }
)
"""The store has too much to do: fewer requests at a time help."""

_RETRYABLE_CODES = SLOW_DOWN_CODES | {
    "ConditionalRequestConflict",
    "ConnectionFailed",
    "IncompleteBody",
    "IncompleteRead",
    "InternalError",
    "MalformedAnswer",
    "MissingETag",
    "OperationAborted",
    # The request lay in a queue or a slow part lasted too long; it is signed anew each time.
    "RequestTimeTooSkewed",
    "Timeout",
}
_RETRYABLE_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504, 509})

_ADVICE = {
    "AccessDenied": "Allow these credentials that operation on this bucket.",
    "BadDigest": (
        "The bytes that were to be sent do not have the checksum that was stored when they were "
        "written: verify the source."
    ),
    "ConnectionFailed": "Check the endpoint and the network.",
    "EntityTooLarge": "Send it in parts.",
    "EntityTooSmall": "Use parts of at least 5 MiB.",
    "ExpiredToken": "Renew the credentials.",
    "IncompleteRead": "Check the network and what stands between here and the store.",
    "InvalidAccessKeyId": "Check the credentials: the store does not know this access key.",
    "InvalidRange": "The object is shorter than it was when it was looked at.",
    "InvalidToken": "Renew the credentials.",
    "MalformedAnswer": "Check that the endpoint is an S3 server, and what stands before it.",
    "NoCredentials": (
        "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give credentials in any other way "
        "that boto3 knows."
    ),
    "NoSuchBucket": "Check the name of the bucket, or make it.",
    "NoSuchKey": "Check the key.",
    "NoSuchUpload": "It was completed or aborted meanwhile.",
    "PermanentRedirect": "The bucket is in another region: set AWS_DEFAULT_REGION or endpoint_url.",
    "PreconditionFailed": "The object is not, or no longer, the one expected.",
    "RequestTimeTooSkewed": "Set the clock of this machine.",
    "SignatureDoesNotMatch": "Check the secret access key, and the region.",
    "SlowDown": "The store is overloaded: try later, or lower upload_concurrency.",
    "Timeout": "Try later, or raise store_timeout_s.",
}


def is_slow_down(error: StoreError) -> bool:
    """Tell whether fewer requests at a time would help."""
    return error.code in SLOW_DOWN_CODES or error.status in (429, 503, 509)


def error_for(url: str, call: Call, answer: Answer, *, advice: str = "") -> StoreError:
    """Give the error that an answer means, not raised.

    Args:
        url: The store's, for the text.
        call: What was asked for.
        answer: What came instead. Its text is cleaned of URLs' secrets; other secrets are for the
            caller to take out.
        advice: What to do, where more is known than the code tells.
    """
    kind: type[StoreError] = StoreError
    code, status = answer.code, answer.status
    if code in _NOT_FOUND_CODES:
        kind = ObjectNotFoundError
    elif code in _ACCESS_CODES or (status in (401, 403) and code not in _RETRYABLE_CODES):
        kind = AccessDeniedError
    retryable = kind is StoreError and (code in _RETRYABLE_CODES or status in _RETRYABLE_STATUSES)
    # A conflict ends the upload: all parts have to be sent again, which is for the caller to start.
    # Source: Amazon S3 API Reference, CompleteMultipartUpload, ConditionalRequestConflict.
    if call.op == "complete_upload" and status == 409:
        retryable = False
    message = _message(url, call, answer, advice or _ADVICE.get(code, ""))
    return kind(
        message, op=call.op, key=call.key, status=status, code=code or None, retryable=retryable
    )


def _message(url: str, call: Call, answer: Answer, advice: str) -> str:
    amount = f" of {call.nbytes} bytes" if call.nbytes else ""
    head = " ".join(str(each) for each in (answer.status, answer.code) if each)
    why = ": ".join(each for each in (head, redact(answer.text).strip().rstrip(".")) if each)
    return f"{call.op}{amount} of {url}/{call.key} failed: {why}. {advice}".rstrip()
