"""What every store does with objects, and with conditions."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gdsckpt.errors import ConfigError, ObjectNotFoundError, StoreError
from gdsckpt.store.base import IF_ABSENT, Condition, Store
from gdsckpt.testing.store_contract.base import (
    NO_KEYS,
    ODD_NAMES,
    Contract,
    body,
    in_threads,
    put,
    read,
    refusal,
)


class ObjectContract(Contract):
    """Objects: written, described, read in ranges, removed."""

    @pytest.mark.parametrize("nbytes", [0, 1, 4096, 1_000_003])
    def test_put_object_is_read_back(self, store: Store, prefix: str, nbytes: int) -> None:
        raw = body(nbytes, 1)
        put(store, f"{prefix}a", raw)
        assert read(store, f"{prefix}a") == raw

    def test_put_info_is_that_of_head(self, store: Store, prefix: str) -> None:
        written = put(store, f"{prefix}a", b"hello")
        info = store.head(f"{prefix}a")
        assert (written.key, written.nbytes, written.etag) == (info.key, info.nbytes, info.etag)
        assert (info.key, info.nbytes) == (f"{prefix}a", 5)
        assert info.etag

    def test_head_crc32_is_that_of_the_bytes_or_unknown(self, store: Store, prefix: str) -> None:
        put(store, f"{prefix}a", b"hello")
        assert store.head(f"{prefix}a").crc32 in (None, 0x3610A686)

    def test_put_metadata_is_given_back(self, store: Store, prefix: str) -> None:
        metadata = {"gdsckpt-crc32": "3610a686", "note": "of step 12; 50% done"}
        store.put(f"{prefix}a", memoryview(b"hello"), crc32=0x3610A686, metadata=metadata)
        assert dict(store.head(f"{prefix}a").metadata) == metadata

    @pytest.mark.parametrize(
        "metadata",
        [{"Name": "x"}, {"a_b": "x"}, {"a": ""}, {"a": " x"}, {"a": "\u00e9"}, {"a": "x\ny: z"}],
    )
    def test_put_metadata_that_does_not_travel_is_refused(
        self, store: Store, prefix: str, metadata: dict[str, str]
    ) -> None:
        with pytest.raises(ConfigError) as caught:
            store.put(f"{prefix}a", memoryview(b""), crc32=0, metadata=metadata)
        assert caught.value.field == "metadata"

    def test_put_wrong_crc32_is_refused_and_nothing_is_written(
        self, store: Store, prefix: str
    ) -> None:
        error = refusal(lambda: store.put(f"{prefix}a", memoryview(b"hello"), crc32=1))
        assert (error.status, error.code, error.retryable) == (400, "BadDigest", False)
        with pytest.raises(ObjectNotFoundError):
            store.head(f"{prefix}a")

    def test_put_again_replaces_object_and_etag(self, store: Store, prefix: str) -> None:
        first = put(store, f"{prefix}a", b"one")
        second = put(store, f"{prefix}a", b"three")
        assert first.etag != second.etag
        assert read(store, f"{prefix}a") == b"three"

    @pytest.mark.parametrize("name", ODD_NAMES)
    def test_put_odd_name_is_kept(self, store: Store, prefix: str, name: str) -> None:
        put(store, f"{prefix}{name}", name.encode())
        assert read(store, f"{prefix}{name}") == name.encode()
        assert [info.key for info in store.list_page(prefix).objects] == [f"{prefix}{name}"]
        store.delete(f"{prefix}{name}")
        assert store.list_page(prefix).objects == ()

    @pytest.mark.parametrize("key", NO_KEYS)
    def test_key_that_is_none_is_refused(self, store: Store, key: str) -> None:
        for call in (
            lambda: store.head(key),
            lambda: put(store, key, b"x"),
            lambda: store.get_range(key, 0, memoryview(bytearray(1))),
            lambda: store.create_upload(key),
            lambda: store.delete(key),
        ):
            with pytest.raises(ConfigError) as caught:
                call()
            assert caught.value.field == "key"

    def test_head_absent_object_is_not_found(self, store: Store, prefix: str) -> None:
        with pytest.raises(ObjectNotFoundError) as caught:
            store.head(f"{prefix}none")
        error = caught.value
        assert (error.op, error.key, error.status) == ("head", f"{prefix}none", 404)
        assert error.code == "NoSuchKey"
        assert not error.retryable
        assert f"{prefix}none" in str(error)

    def test_get_range_absent_object_is_not_found(self, store: Store, prefix: str) -> None:
        with pytest.raises(ObjectNotFoundError):
            store.get_range(f"{prefix}none", 0, memoryview(bytearray(1)))

    def test_prefix_of_objects_is_no_object(self, store: Store, prefix: str) -> None:
        put(store, f"{prefix}a/b", b"x")
        with pytest.raises(ObjectNotFoundError):
            store.head(f"{prefix}a")

    @pytest.mark.parametrize(
        ("begin", "end"), [(0, 1), (0, 100_000), (99_999, 100_000), (4095, 70_001)]
    )
    def test_get_range_fills_exactly_the_buffer(
        self, store: Store, prefix: str, begin: int, end: int
    ) -> None:
        raw = body(100_000, 2)
        put(store, f"{prefix}a", raw)
        memory = bytearray(b"\xee" * (end - begin + 20))
        store.get_range(f"{prefix}a", begin, memoryview(memory)[10:-10])
        assert memory == b"\xee" * 10 + raw[begin:end] + b"\xee" * 10

    def test_get_range_of_other_items_than_bytes_is_filled(self, store: Store, prefix: str) -> None:
        put(store, f"{prefix}a", bytes(range(16)))
        memory = memoryview(bytearray(8)).cast("I")
        store.get_range(f"{prefix}a", 4, memory)
        assert memory.tobytes() == bytes(range(4, 12))

    @pytest.mark.parametrize(("begin", "nbytes"), [(10, 1), (9, 2), (0, 11), (100, 5)])
    def test_get_range_beyond_the_end_is_refused(
        self, store: Store, prefix: str, begin: int, nbytes: int
    ) -> None:
        put(store, f"{prefix}a", bytes(10))
        error = refusal(lambda: store.get_range(f"{prefix}a", begin, memoryview(bytearray(nbytes))))
        assert (error.status, error.code, error.retryable) == (416, "InvalidRange", False)

    def test_get_range_of_nothing_asks_for_nothing(self, store: Store, prefix: str) -> None:
        store.get_range(f"{prefix}none", 0, memoryview(bytearray(0)))

    def test_get_range_if_match_of_the_object_is_read(self, store: Store, prefix: str) -> None:
        etag = put(store, f"{prefix}a", b"hello").etag
        assert read(store, f"{prefix}a", if_match=etag) == b"hello"

    def test_get_range_if_match_of_a_replaced_object_is_refused(
        self, store: Store, prefix: str
    ) -> None:
        etag = put(store, f"{prefix}a", b"one").etag
        put(store, f"{prefix}a", b"two")
        error = refusal(lambda: read(store, f"{prefix}a", if_match=etag))
        assert (error.status, error.code, error.retryable) == (412, "PreconditionFailed", False)

    def test_delete_object_is_gone(self, store: Store, prefix: str) -> None:
        put(store, f"{prefix}a", b"x")
        store.delete(f"{prefix}a")
        with pytest.raises(ObjectNotFoundError):
            store.head(f"{prefix}a")

    def test_delete_absent_object_is_no_error(self, store: Store, prefix: str) -> None:
        store.delete(f"{prefix}none")

    def test_calls_after_close_and_interrupt_work(self, store: Store, prefix: str) -> None:
        put(store, f"{prefix}a", b"x")
        store.interrupt()
        assert read(store, f"{prefix}a") == b"x"
        store.close()
        assert read(store, f"{prefix}a") == b"x"

    def test_readers_during_a_replacement_see_one_object_whole(
        self, store: Store, prefix: str
    ) -> None:
        bodies = [body(200_000, seed) for seed in range(4)]
        put(store, f"{prefix}a", bodies[0])

        def write(raw: bytes) -> Callable[[], bytes]:
            def run() -> bytes:
                put(store, f"{prefix}a", raw)
                return raw

            return run

        def look() -> bytes:
            return read(store, f"{prefix}a")

        found = in_threads([*(write(raw) for raw in bodies), *[look] * 4])[4:]
        assert all(raw in bodies for raw in found)


class ConditionContract(Contract):
    """Conditional puts: what manifests and pointers rest on."""

    def test_put_if_absent_writes_once(self, store: Store, prefix: str) -> None:
        put(store, f"{prefix}a", b"first", IF_ABSENT)
        error = refusal(lambda: put(store, f"{prefix}a", b"second", IF_ABSENT))
        assert (error.status, error.code, error.retryable) == (412, "PreconditionFailed", False)
        assert read(store, f"{prefix}a") == b"first"

    def test_put_if_match_replaces_that_object(self, store: Store, prefix: str) -> None:
        etag = put(store, f"{prefix}a", b"first").etag
        put(store, f"{prefix}a", b"second", Condition(if_match=etag))
        assert read(store, f"{prefix}a") == b"second"

    def test_put_if_match_of_another_object_is_refused(self, store: Store, prefix: str) -> None:
        etag = put(store, f"{prefix}a", b"first").etag
        put(store, f"{prefix}a", b"second")
        error = refusal(lambda: put(store, f"{prefix}a", b"third", Condition(if_match=etag)))
        assert (error.status, error.code) == (412, "PreconditionFailed")
        assert read(store, f"{prefix}a") == b"second"

    def test_put_if_match_without_object_is_refused(self, store: Store, prefix: str) -> None:
        condition = Condition(if_match='"0123456789abcdef0123456789abcdef"')
        error = refusal(lambda: put(store, f"{prefix}none", b"x", condition))
        assert error.status in (404, 412)
        with pytest.raises(ObjectNotFoundError):
            store.head(f"{prefix}none")

    def test_put_if_absent_raced_has_one_winner(self, store: Store, prefix: str) -> None:
        bodies = [body(1000, seed) for seed in range(8)]

        def attempt(raw: bytes) -> Callable[[], StoreError | None]:
            def run() -> StoreError | None:
                try:
                    put(store, f"{prefix}a", raw, IF_ABSENT)
                except StoreError as error:
                    return error
                return None

            return run

        errors = in_threads([attempt(raw) for raw in bodies])
        winners = [raw for raw, error in zip(bodies, errors, strict=True) if error is None]
        assert [read(store, f"{prefix}a")] == winners
        assert {error.status for error in errors if error is not None} <= {409, 412}
