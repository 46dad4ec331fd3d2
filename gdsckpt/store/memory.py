"""Objects in the memory of this process: for tests, and to try things out."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gdsckpt import native
from gdsckpt.errors import StoreError
from gdsckpt.store.answers import Answer, Call, error_for
from gdsckpt.store.base import (
    ALWAYS,
    Condition,
    ListPage,
    ObjectInfo,
    Upload,
    UploadedPart,
)
from gdsckpt.store.checks import check_assembly, check_condition, check_digest, check_metadata
from gdsckpt.store.listing import page_of
from gdsckpt.store.url import check_key


@dataclass(frozen=True, slots=True)
class _Object:
    info: ObjectInfo
    data: bytes


@dataclass(slots=True)
class _PendingUpload:
    key: str
    metadata: Mapping[str, str]
    parts: dict[int, tuple[UploadedPart, bytes]] = field(default_factory=dict)


class MemoryStore:
    """A store in memory.

    Args:
        name: Name of the bucket, for messages.
    """

    def __init__(self, name: str) -> None:
        self._url = f"memory://{name}"
        self._lock = threading.Lock()
        self._objects: dict[str, _Object] = {}
        self._uploads: dict[str, _PendingUpload] = {}
        self._num_written = 0

    def __repr__(self) -> str:
        return f"MemoryStore({self._url})"

    @property
    def url(self) -> str:
        """As ``Store``."""
        return self._url

    def head(self, key: str) -> ObjectInfo:
        """As ``Store``."""
        return self._object("head", key).info

    def list_page(self, prefix: str = "", *, delimiter: str = "", token: str = "") -> ListPage:
        """As ``Store``."""
        with self._lock:
            found = [each.info for key, each in self._objects.items() if key.startswith(prefix)]
        bare = {
            info.key: ObjectInfo(info.key, info.nbytes, info.etag, modified_s=info.modified_s)
            for info in found
        }
        return page_of(bare, prefix, delimiter=delimiter, token=token)

    def get_range(self, key: str, begin: int, into: memoryview, *, if_match: str = "") -> None:
        """As ``Store``."""
        call = Call("get_range", check_key(key), into.nbytes)
        if not into.nbytes:
            return
        found = self._object("get_range", key)
        if if_match and if_match != found.info.etag:
            raise self._refused(call, 412, "PreconditionFailed")
        if begin + into.nbytes > len(found.data):
            raise self._refused(call, 416, "InvalidRange")
        into.cast("B")[:] = memoryview(found.data)[begin : begin + into.nbytes]

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
        check_digest(self._url, call, actual=native.crc32(body), expected=crc32)
        return self._write(call, body.tobytes(), (crc32, check_metadata(metadata)), condition)

    def create_upload(self, key: str, *, metadata: Mapping[str, str] | None = None) -> Upload:
        """As ``Store``."""
        upload = Upload(check_key(key), secrets.token_hex(16), "FULL_OBJECT")
        with self._lock:
            self._uploads[upload.upload_id] = _PendingUpload(key, check_metadata(metadata))
        return upload

    def put_part(
        self, upload: Upload, number: int, body: memoryview, *, crc32: int
    ) -> UploadedPart:
        """As ``Store``."""
        call = Call("put_part", upload.key, body.nbytes)
        check_digest(self._url, call, actual=native.crc32(body), expected=crc32)
        part = UploadedPart(number, f'"{crc32:08x}-{secrets.token_hex(4)}"', body.nbytes, crc32)
        data = body.tobytes()
        with self._lock:
            self._pending(call, upload).parts[number] = (part, data)
        return part

    def list_parts(self, upload: Upload) -> tuple[UploadedPart, ...]:
        """As ``Store``."""
        with self._lock:
            parts = self._pending(Call("list_parts", upload.key), upload).parts
            return tuple(parts[number][0] for number in sorted(parts))

    def complete_upload(
        self, upload: Upload, parts: Iterable[UploadedPart], *, nbytes: int, crc32: int
    ) -> None:
        """As ``Store``."""
        call = Call("complete_upload", upload.key)
        with self._lock:
            pending = self._pending(call, upload)
            there = {number: part for number, (part, _) in pending.parts.items()}
            wanted = tuple(parts)
            check_assembly(self._url, call, wanted, there, (nbytes, crc32))
            data = b"".join(pending.parts[part.number][1] for part in wanted)
            del self._uploads[upload.upload_id]
        self._write(call, data, (crc32, pending.metadata), ALWAYS)

    def abort_upload(self, upload: Upload) -> None:
        """As ``Store``."""
        with self._lock:
            self._uploads.pop(upload.upload_id, None)

    def delete(self, key: str) -> None:
        """As ``Store``."""
        check_key(key)
        with self._lock:
            self._objects.pop(key, None)

    def interrupt(self) -> None:
        """As ``Store``: no call waits for anything."""

    def close(self) -> None:
        """As ``Store``: the objects stay."""

    def _object(self, op: str, key: str) -> _Object:
        check_key(key)
        with self._lock:
            found = self._objects.get(key)
        if found is None:
            raise self._refused(Call(op, key), 404, "NoSuchKey")
        return found

    def _pending(self, call: Call, upload: Upload) -> _PendingUpload:
        pending = self._uploads.get(upload.upload_id)
        if pending is None or pending.key != upload.key:
            raise self._refused(call, 404, "NoSuchUpload")
        return pending

    def _write(
        self,
        call: Call,
        data: bytes,
        facts: tuple[int, Mapping[str, str]],
        condition: Condition,
    ) -> ObjectInfo:
        crc32, metadata = facts
        with self._lock:
            there = self._objects.get(call.key)
            check_condition(self._url, call, there.info.etag if there else None, condition)
            self._num_written += 1
            info = ObjectInfo(
                call.key,
                len(data),
                f'"{self._num_written}-{crc32:08x}"',
                crc32=crc32,
                metadata=dict(metadata),
                modified_s=time.time(),
            )
            self._objects[call.key] = _Object(info, data)
        return info

    def _refused(self, call: Call, status: int, code: str) -> StoreError:
        return error_for(self._url, call, Answer(status, code))


_named: dict[str, MemoryStore] = {}
_named_lock = threading.Lock()


def named(name: str) -> MemoryStore:
    """Give the store of that name: the same one for as long as the process lives."""
    with _named_lock:
        return _named.setdefault(name, MemoryStore(name))
