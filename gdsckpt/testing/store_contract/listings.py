"""What every store does with listings."""

from __future__ import annotations

import pytest

from gdsckpt.errors import ConfigError
from gdsckpt.store.base import ObjectInfo, Store, list_all
from gdsckpt.testing.store_contract.base import Contract, crc32, put


class ListingContract(Contract):
    """Listings by prefix."""

    KEYS = ("a", "b/1", "b/2", "b/c/3", "ba", "step-1/x", "step-10/x")

    @pytest.fixture
    def filled(self, store: Store, prefix: str) -> Store:
        """Give the store with the objects of ``KEYS``."""
        for key in self.KEYS:
            put(store, f"{prefix}{key}", key.encode())
        return store

    def _names(self, found: list[ObjectInfo | str], prefix: str) -> list[str]:
        names = [each if isinstance(each, str) else each.key for each in found]
        return sorted(name.removeprefix(prefix) for name in names)

    def test_list_all_gives_keys_sizes_and_etags(self, filled: Store, prefix: str) -> None:
        found = list(list_all(filled, prefix))
        assert self._names(found, prefix) == sorted(self.KEYS)
        for info in found:
            assert isinstance(info, ObjectInfo)
            head = filled.head(info.key)
            assert (info.nbytes, info.etag) == (head.nbytes, head.etag)
            assert info.crc32 is None

    @pytest.mark.parametrize(
        ("beginning", "names"),
        [
            ("b", ["b/1", "b/2", "b/c/3", "ba"]),
            ("b/", ["b/1", "b/2", "b/c/3"]),
            ("b/c", ["b/c/3"]),
            ("step-1", ["step-1/x", "step-10/x"]),
            ("none", []),
            ("none/", []),
        ],
    )
    def test_list_prefix_is_a_beginning_of_keys(
        self, filled: Store, prefix: str, beginning: str, names: list[str]
    ) -> None:
        assert self._names(list(list_all(filled, f"{prefix}{beginning}")), prefix) == names

    @pytest.mark.parametrize(
        ("beginning", "names"),
        [
            ("", ["a", "b/", "ba", "step-1/", "step-10/"]),
            ("b", ["b/", "ba"]),
            ("b/", ["b/1", "b/2", "b/c/"]),
            ("step-1", ["step-1/", "step-10/"]),
        ],
    )
    def test_list_delimiter_gives_what_is_below_as_prefix(
        self, filled: Store, prefix: str, beginning: str, names: list[str]
    ) -> None:
        found = list(list_all(filled, f"{prefix}{beginning}", delimiter="/"))
        assert self._names(found, prefix) == names
        for each in found:
            assert isinstance(each, str) == self._names([each], "")[0].endswith("/")

    def test_list_delimiter_other_than_slash_is_refused(self, store: Store) -> None:
        with pytest.raises(ConfigError) as caught:
            store.list_page("", delimiter="-")
        assert caught.value.field == "delimiter"

    def test_list_what_was_removed_is_not_listed(self, filled: Store, prefix: str) -> None:
        for name in ("b/c/3", "step-1/x"):
            filled.delete(f"{prefix}{name}")
        left = ["a", "b/1", "b/2", "ba", "step-10/x"]
        assert self._names(list(list_all(filled, prefix)), prefix) == left
        # Not so for prefixes: servers over file systems keep directories for a while.
        shown = self._names(list(list_all(filled, f"{prefix}step-1", delimiter="/")), prefix)
        assert "step-10/" in shown

    def test_list_what_is_being_uploaded_is_not_listed(self, store: Store, prefix: str) -> None:
        upload = store.create_upload(f"{prefix}a")
        store.put_part(upload, 1, memoryview(b"x"), crc32=crc32(b"x"))
        assert list(list_all(store, prefix)) == []
        store.abort_upload(upload)
