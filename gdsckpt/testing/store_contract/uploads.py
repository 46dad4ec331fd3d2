"""What every store does with objects of many parts."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest

from gdsckpt.errors import ObjectNotFoundError
from gdsckpt.store.base import (
    PART_MIN_BYTES,
    Store,
    Upload,
    UploadedPart,
    composite_crc32,
)
from gdsckpt.testing.store_contract.base import (
    Contract,
    body,
    crc32,
    in_threads,
    put,
    read,
    refusal,
)


@functools.cache
def three_bodies() -> tuple[bytes, ...]:
    """Give the bytes of three parts, the last one short."""
    sizes = (PART_MIN_BYTES, PART_MIN_BYTES + 1, 1000)
    return tuple(body(nbytes, seed) for seed, nbytes in enumerate(sizes))


class UploadContract(Contract):
    """Objects of many parts."""

    def _send(self, store: Store, upload: Upload, sent: tuple[bytes, ...]) -> list[UploadedPart]:
        return [
            store.put_part(upload, number, memoryview(raw), crc32=crc32(raw))
            for number, raw in enumerate(sent, start=1)
        ]

    def _complete(
        self, store: Store, upload: Upload, parts: list[UploadedPart], raw: bytes
    ) -> None:
        store.complete_upload(upload, parts, nbytes=len(raw), crc32=crc32(raw))

    def test_upload_completed_is_the_object(self, store: Store, prefix: str) -> None:
        bodies = three_bodies()
        upload = store.create_upload(f"{prefix}a", metadata={"note": "x"})
        parts = self._send(store, upload, bodies)
        whole = b"".join(bodies)
        self._complete(store, upload, parts, whole)
        info = store.head(f"{prefix}a")
        assert info.nbytes == len(whole)
        assert dict(info.metadata) == {"note": "x"}
        assert info.crc32 in (None, crc32(whole))
        assert info.composite_crc32 in (None, composite_crc32(parts))
        if upload.checksum_type == "FULL_OBJECT":
            assert info.crc32 is not None
        assert read(store, f"{prefix}a") == whole

    def test_upload_is_invisible_until_completed(self, store: Store, prefix: str) -> None:
        upload = store.create_upload(f"{prefix}a")
        self._send(store, upload, (b"x",))
        with pytest.raises(ObjectNotFoundError):
            store.head(f"{prefix}a")
        store.abort_upload(upload)

    def test_upload_leaves_the_old_object_until_completed(self, store: Store, prefix: str) -> None:
        put(store, f"{prefix}a", b"old")
        upload = store.create_upload(f"{prefix}a")
        parts = self._send(store, upload, (b"new",))
        assert read(store, f"{prefix}a") == b"old"
        self._complete(store, upload, parts, b"new")
        assert read(store, f"{prefix}a") == b"new"

    def test_upload_parts_in_any_order_and_at_the_same_time(
        self, store: Store, prefix: str
    ) -> None:
        bodies = three_bodies()
        upload = store.create_upload(f"{prefix}a")

        def send(number: int) -> Callable[[], UploadedPart]:
            raw = bodies[number - 1]
            return lambda: store.put_part(upload, number, memoryview(raw), crc32=crc32(raw))

        parts = in_threads([send(3), send(1), send(2)])
        ordered = sorted(parts, key=lambda part: part.number)
        self._complete(store, upload, ordered, b"".join(bodies))
        assert read(store, f"{prefix}a") == b"".join(bodies)

    def test_put_part_again_replaces_it(self, store: Store, prefix: str) -> None:
        bodies = three_bodies()
        upload = store.create_upload(f"{prefix}a")
        self._send(store, upload, (bodies[1], b"first"))
        parts = self._send(store, upload, (bodies[0], b"second"))
        self._complete(store, upload, parts, bodies[0] + b"second")
        assert read(store, f"{prefix}a") == bodies[0] + b"second"

    def test_put_part_of_part_of_a_buffer_sends_only_that(self, store: Store, prefix: str) -> None:
        upload = store.create_upload(f"{prefix}a")
        view = memoryview(b"--hello--")[2:7]
        part = store.put_part(upload, 1, view, crc32=0x3610A686)
        self._complete(store, upload, [part], b"hello")
        assert read(store, f"{prefix}a") == b"hello"

    def test_upload_of_nothing_is_an_empty_object(self, store: Store, prefix: str) -> None:
        upload = store.create_upload(f"{prefix}a")
        parts = self._send(store, upload, (b"",))
        self._complete(store, upload, parts, b"")
        assert store.head(f"{prefix}a").nbytes == 0

    def test_put_part_wrong_crc32_is_refused(self, store: Store, prefix: str) -> None:
        upload = store.create_upload(f"{prefix}a")
        if not upload.checksum_type:
            pytest.skip("this store compares no checksums of parts")
        error = refusal(lambda: store.put_part(upload, 1, memoryview(b"hello"), crc32=1))
        assert (error.status, error.code, error.retryable) == (400, "BadDigest", False)
        store.abort_upload(upload)

    def test_list_parts_gives_what_was_sent(self, store: Store, prefix: str) -> None:
        bodies = three_bodies()
        upload = store.create_upload(f"{prefix}a")
        assert store.list_parts(upload) == ()
        parts = self._send(store, upload, bodies)
        self._send(store, upload, bodies[:1])
        listed = store.list_parts(upload)
        assert [part.number for part in listed] == [1, 2, 3]
        for part, found in zip(parts, listed, strict=True):
            assert found.nbytes == part.nbytes
            assert found.crc32 in (None, part.crc32)
        store.abort_upload(upload)

    def test_complete_upload_without_a_part_is_refused(self, store: Store, prefix: str) -> None:
        bodies = three_bodies()
        upload = store.create_upload(f"{prefix}a")
        parts = self._send(store, upload, bodies[:2])
        missing = UploadedPart(3, parts[0].etag, parts[0].nbytes, parts[0].crc32)
        whole = b"".join([*bodies[:2], bodies[0]])
        error = refusal(lambda: self._complete(store, upload, [*parts, missing], whole))
        assert error.status == 400
        assert not error.retryable
        with pytest.raises(ObjectNotFoundError):
            store.head(f"{prefix}a")
        store.abort_upload(upload)

    def test_complete_upload_with_a_small_part_before_the_last_is_refused(
        self, store: Store, prefix: str
    ) -> None:
        upload = store.create_upload(f"{prefix}a")
        parts = self._send(store, upload, (b"small", b"last"))
        error = refusal(lambda: self._complete(store, upload, parts, b"smalllast"))
        assert (error.status, error.code) == (400, "EntityTooSmall")
        store.abort_upload(upload)

    def test_complete_upload_with_the_wrong_crc32_is_refused(
        self, store: Store, prefix: str
    ) -> None:
        upload = store.create_upload(f"{prefix}a")
        if upload.checksum_type != "FULL_OBJECT":
            pytest.skip("this store compares no checksum of the whole object")
        parts = self._send(store, upload, (b"hello",))
        error = refusal(lambda: store.complete_upload(upload, parts, nbytes=5, crc32=1))
        assert error.status == 400
        with pytest.raises(ObjectNotFoundError):
            store.head(f"{prefix}a")
        store.abort_upload(upload)

    def test_abort_upload_ends_it(self, store: Store, prefix: str) -> None:
        upload = store.create_upload(f"{prefix}a")
        parts = self._send(store, upload, (b"x",))
        store.abort_upload(upload)
        for call in (
            lambda: self._send(store, upload, (b"x",)),
            lambda: store.list_parts(upload),
            lambda: self._complete(store, upload, parts, b"x"),
        ):
            error = refusal(call)
            assert (error.status, error.code, error.retryable) == (404, "NoSuchUpload", False)
        with pytest.raises(ObjectNotFoundError):
            store.head(f"{prefix}a")

    def test_abort_upload_twice_is_no_error(self, store: Store, prefix: str) -> None:
        upload = store.create_upload(f"{prefix}a")
        store.abort_upload(upload)
        store.abort_upload(upload)

    def test_abort_upload_leaves_the_old_object(self, store: Store, prefix: str) -> None:
        put(store, f"{prefix}a", b"old")
        store.abort_upload(store.create_upload(f"{prefix}a"))
        assert read(store, f"{prefix}a") == b"old"

    def test_uploads_of_one_key_do_not_meet(self, store: Store, prefix: str) -> None:
        first, second = (store.create_upload(f"{prefix}a") for _ in range(2))
        assert first.upload_id != second.upload_id
        parts = [self._send(store, each, (raw,)) for each, raw in ((first, b"1"), (second, b"2"))]
        self._complete(store, second, parts[1], b"2")
        assert read(store, f"{prefix}a") == b"2"
        self._complete(store, first, parts[0], b"1")
        assert read(store, f"{prefix}a") == b"1"
