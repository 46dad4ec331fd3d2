"""A bucket of Amazon S3, or of a server that speaks its protocol."""

from __future__ import annotations

import base64
import functools
import re
import struct
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from gdsckpt import native
from gdsckpt.errors import ConfigError, StoreError
from gdsckpt.store.answers import Answer, Call, error_for
from gdsckpt.store.base import (
    ALWAYS,
    Condition,
    ListPage,
    ObjectInfo,
    Upload,
    UploadedPart,
)
from gdsckpt.store.checks import check_metadata
from gdsckpt.store.listing import check_delimiter
from gdsckpt.store.s3_answers import decoded_crc32, info_of_head, page_of, parts_of
from gdsckpt.store.url import check_key

if TYPE_CHECKING:
    from gdsckpt.config import Config
    from gdsckpt.store.s3_client import S3Client

T = TypeVar("T")

# From the strongest: what the first answer of a bucket accepted is asked for ever after.
_CHECKSUM_TYPES = ("FULL_OBJECT", "COMPOSITE", "")
# How servers say that they do not know a parameter. Source: Amazon S3 API Reference, "Error
# responses"; Ceph answers 400 to CreateMultipartUpload (get-convex/convex-backend#238).
_UNKNOWN_PARAMETER_STATUSES = (400, 501)
_UNKNOWN_PARAMETER_CODES = frozenset(
    {"400", "501", "InvalidArgument", "InvalidRequest", "NotImplemented", "XNotImplemented"}
)

_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,19})-([0-9]{1,19})/([0-9]{1,19})", re.ASCII)

_checksum_types: dict[tuple[str, str], str] = {}
_checksum_types_lock = threading.Lock()


def open_s3(bucket: str, config: Config) -> S3Store:
    """Open a bucket; nothing is asked of the server yet.

    Raises:
        ConfigError: boto3 is missing, or cannot be configured.
    """
    try:
        from gdsckpt.store.s3_client import S3Client
    except ImportError as error:
        if (error.name or "").split(".")[0] not in ("boto3", "botocore"):
            raise
        raise ConfigError(
            f"s3://{bucket} needs boto3, which is not installed: pip install 'gdsckpt[s3]'.",
            field="url",
        ) from error
    return S3Store(S3Client(bucket, config))


class S3Store:
    """A bucket.

    Args:
        client: Asks for operations on it.
    """

    def __init__(self, client: S3Client) -> None:
        self._client = client
        self._bucket = (client.endpoint, client.bucket)

    def __repr__(self) -> str:
        return f"S3Store({self.url} at {self._client.endpoint})"

    @property
    def url(self) -> str:
        """As ``Store``."""
        return self._client.url

    def head(self, key: str) -> ObjectInfo:
        """As ``Store``."""
        call = Call("head", check_key(key))
        parameters = {"Key": key, "ChecksumMode": "ENABLED"}
        try:
            found, _ = self._client.call(call, "head_object", parameters)
        except StoreError as error:
            raise self._explained(call, error) from None
        return self._read(call, functools.partial(info_of_head, key, found))

    def _explained(self, call: Call, error: StoreError) -> StoreError:
        """Ask why a HEAD was refused: its answer has no body, and so no reason."""
        if error.status not in (301, 400, 403, 404):
            return error
        try:
            one_byte = memoryview(bytearray(1))
            parameters = {"Key": call.key, "Range": "bytes=0-0"}
            self._client.call(call, "get_object", parameters, into=one_byte)
        except StoreError as reason:
            if reason.status == error.status or reason.code == "NoSuchBucket":
                return reason
            return error
        # Both need the same permission, so what was wrong has passed: the next attempt tells.
        error.retryable = True
        return error

    def list_page(self, prefix: str = "", *, delimiter: str = "", token: str = "") -> ListPage:
        """As ``Store``."""
        check_delimiter(delimiter)
        parameters = {"Prefix": prefix, "Delimiter": delimiter, "ContinuationToken": token}
        given = {name: value for name, value in parameters.items() if value}
        call = Call("list_page", prefix)
        page, _ = self._client.call(call, "list_objects_v2", given)
        return self._read(call, functools.partial(page_of, page, token))

    def get_range(self, key: str, begin: int, into: memoryview, *, if_match: str = "") -> None:
        """As ``Store``."""
        call = Call("get_range", check_key(key), into.nbytes)
        if not into.nbytes:
            return
        byte_range = f"bytes={begin}-{begin + into.nbytes - 1}"
        parameters = {"Key": key, "Range": byte_range}
        if if_match:
            parameters["IfMatch"] = if_match
        _, response = self._client.call(call, "get_object", parameters, into=into)
        etag = response.headers.get("etag", if_match)
        if if_match and _bare(etag) != _bare(if_match):
            text = "this is another version, which the store gave in spite of If-Match"
            raise self._refused(call, Answer(412, "PreconditionFailed", text))
        content_range = response.headers.get("content-range", "")
        wanted = byte_range.replace("=", " ")
        is_wanted = content_range.startswith(f"{wanted}/") or (
            response.status == 200 and begin == 0
        )
        if response.is_received and is_wanted:
            return
        if _ends_the_object(content_range, begin, into.nbytes):
            text = f"the object ends before: {content_range}"
            raise self._refused(call, Answer(416, "InvalidRange", text))
        length = response.headers.get("content-length")
        text = f"{response.status}, {length} bytes, {content_range or 'no Content-Range'}"
        raise self._refused(call, Answer(None, "IncompleteRead", f"asked for {wanted}, got {text}"))

    def put(
        self,
        key: str,
        body: memoryview,
        *,
        crc32: int,
        metadata: Mapping[str, str] | None = None,
        condition: Condition = ALWAYS,
    ) -> ObjectInfo:
        """As ``Store``."""
        call = Call("put", check_key(key), body.nbytes)
        parameters: dict[str, Any] = {"Key": key, "Metadata": check_metadata(metadata)}
        if self._checksum_type():
            parameters["ChecksumCRC32"] = _encoded(crc32)
        if condition.if_match:
            parameters["IfMatch"] = condition.if_match
        if condition.if_none_match:
            parameters["IfNoneMatch"] = "*"
        try:
            written, _ = self._sent(call, "put_object", parameters, body, crc32)
        except StoreError as error:
            if not (parameters.pop("ChecksumCRC32", None) and _is_unknown_parameter(error)):
                raise
            written, _ = self._sent(call, "put_object", parameters, body, crc32)
            self._remember("")
        return ObjectInfo(
            key,
            body.nbytes,
            self._etag(call, written),
            crc32=decoded_crc32(written.get("ChecksumCRC32")),
            metadata=dict(metadata or {}),
        )

    def create_upload(self, key: str, *, metadata: Mapping[str, str] | None = None) -> Upload:
        """As ``Store``."""
        call = Call("create_upload", check_key(key))
        parameters: dict[str, Any] = {"Key": key, "Metadata": check_metadata(metadata)}
        known = _checksum_types.get(self._bucket)
        candidates = _CHECKSUM_TYPES if known is None else (known,)
        for candidate in candidates:
            asked = dict(parameters)
            if candidate:
                asked |= {"ChecksumAlgorithm": "CRC32", "ChecksumType": candidate}
            try:
                created, _ = self._client.call(call, "create_multipart_upload", asked)
            except StoreError as error:
                if candidate == candidates[-1] or not _is_unknown_parameter(error):
                    raise
                continue
            upload_id = self._read(call, functools.partial(created.__getitem__, "UploadId"))
            self._remember(candidate)
            return Upload(key, upload_id, candidate)
        raise AssertionError("the last candidate returns or raises")

    def put_part(
        self, upload: Upload, number: int, body: memoryview, *, crc32: int
    ) -> UploadedPart:
        """As ``Store``."""
        call = Call("put_part", check_key(upload.key), body.nbytes)
        parameters = {"Key": upload.key, "UploadId": upload.upload_id, "PartNumber": number}
        if upload.checksum_type:
            parameters["ChecksumCRC32"] = _encoded(crc32)
        written, _ = self._sent(call, "upload_part", parameters, body, crc32)
        return UploadedPart(number, self._etag(call, written), body.nbytes, crc32)

    def list_parts(self, upload: Upload) -> tuple[UploadedPart, ...]:
        """As ``Store``."""
        call = Call("list_parts", check_key(upload.key))
        found: dict[int, UploadedPart] = {}
        parameters = {"Key": upload.key, "UploadId": upload.upload_id}
        marker: int | None = 0
        while marker is not None:
            more = {"PartNumberMarker": marker} if marker else {}
            page, _ = self._client.call(call, "list_parts", parameters | more)
            # SeaweedFS lists a part that was sent again twice: the last one counts.
            found |= self._read(call, functools.partial(parts_of, page))
            next_marker = int(page.get("NextPartNumberMarker") or 0)
            is_last = not page.get("IsTruncated") or next_marker <= (marker or 0)
            marker = None if is_last else next_marker
        return tuple(found[number] for number in sorted(found))

    def complete_upload(
        self, upload: Upload, parts: Iterable[UploadedPart], *, nbytes: int, crc32: int
    ) -> None:
        """As ``Store``."""
        call = Call("complete_upload", check_key(upload.key))
        parameters: dict[str, Any] = {
            "Key": upload.key,
            "UploadId": upload.upload_id,
            "MultipartUpload": {"Parts": [_part_entry(part, upload) for part in parts]},
            "MpuObjectSize": nbytes,
        }
        if upload.checksum_type == "FULL_OBJECT":
            parameters |= {"ChecksumCRC32": _encoded(crc32), "ChecksumType": "FULL_OBJECT"}
        self._client.call(call, "complete_multipart_upload", parameters)

    def abort_upload(self, upload: Upload) -> None:
        """As ``Store``."""
        call = Call("abort_upload", check_key(upload.key))
        parameters = {"Key": upload.key, "UploadId": upload.upload_id}
        try:
            self._client.call(call, "abort_multipart_upload", parameters)
        except StoreError as error:
            if error.code != "NoSuchUpload":
                raise

    def delete(self, key: str) -> None:
        """As ``Store``."""
        call = Call("delete", check_key(key))
        try:
            self._client.call(call, "delete_object", {"Key": key})
        except StoreError as error:
            if error.code != "NoSuchKey":
                raise

    def interrupt(self) -> None:
        """As ``Store``."""
        self._client.interrupt()

    def close(self) -> None:
        """As ``Store``."""
        self._client.close()

    def _remember(self, checksum_type: str) -> None:
        with _checksum_types_lock:
            _checksum_types[self._bucket] = checksum_type

    def _checksum_type(self) -> str:
        return _checksum_types.get(self._bucket, _CHECKSUM_TYPES[0])

    def _sent(
        self, call: Call, operation: str, parameters: dict[str, Any], body: memoryview, crc32: int
    ) -> tuple[dict[str, Any], Any]:
        """Send bytes; those that came to harm on the way, rather than here, are sent again."""
        try:
            return self._client.call(call, operation, parameters, body=body)
        except StoreError as error:
            if error.code == "BadDigest" and native.crc32(body) == crc32:
                error.retryable = True
            raise

    def _read(self, call: Call, read: Callable[[], T]) -> T:
        """Take out of an answer what it has to have: what stands between here and there may lie.

        Raises:
            StoreError: It does not have it, which the next attempt may change.
        """
        try:
            return read()
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            text = f"it has no usable {error}, as an answer of S3 has"
            raise self._refused(call, Answer(None, "MalformedAnswer", text)) from None

    def _etag(self, call: Call, written: Mapping[str, Any]) -> str:
        etag = written.get("ETag")
        if not etag:
            text = "the answer has no ETag, so nothing says that the bytes are there"
            raise self._refused(call, Answer(None, "MissingETag", text))
        return str(etag)

    def _refused(self, call: Call, answer: Answer) -> StoreError:
        return error_for(self.url, call, answer)


def _bare(etag: str) -> str:
    """Give an ETag without what a proxy may add or drop."""
    return etag.removeprefix("W/").strip('"')


def _ends_the_object(content_range: str, begin: int, nbytes: int) -> bool:
    """Tell whether an answer has fewer bytes than asked for because the object has no more."""
    match = _CONTENT_RANGE.fullmatch(content_range)
    if match is None:
        return False
    first, last, total = (int(text) for text in match.groups())
    return first == begin and last + 1 == total < begin + nbytes


def _part_entry(part: UploadedPart, upload: Upload) -> dict[str, Any]:
    entry: dict[str, Any] = {"PartNumber": part.number, "ETag": part.etag}
    if upload.checksum_type and part.crc32 is not None:
        entry["ChecksumCRC32"] = _encoded(part.crc32)
    return entry


def _is_unknown_parameter(error: StoreError) -> bool:
    return (
        error.status in _UNKNOWN_PARAMETER_STATUSES
        and not error.retryable
        and (error.code or "") in _UNKNOWN_PARAMETER_CODES
    )


def _encoded(crc32: int) -> str:
    return base64.b64encode(struct.pack(">I", crc32)).decode()
