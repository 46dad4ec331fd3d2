"""A store around another one, which sees every call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from gdsckpt.store.answers import Call
from gdsckpt.store.base import (
    ALWAYS,
    Condition,
    ListPage,
    ObjectInfo,
    Store,
    Upload,
    UploadedPart,
)

T = TypeVar("T")


class WrappedStore:
    """Hands every call to another store through ``_run``, which a child overrides.

    Args:
        inner: The store that does it.
    """

    def __init__(self, inner: Store) -> None:
        self._inner = inner

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._inner!r})"

    def _run(self, call: Call, run: Callable[[], T]) -> T:
        """Do ``run``, which asks the inner store for ``call``."""
        return run()

    @property
    def url(self) -> str:
        """As ``Store``."""
        return self._inner.url

    def head(self, key: str) -> ObjectInfo:
        """As ``Store``."""
        return self._run(Call("head", key), lambda: self._inner.head(key))

    def list_page(self, prefix: str = "", *, delimiter: str = "", token: str = "") -> ListPage:
        """As ``Store``."""
        return self._run(
            Call("list_page", prefix),
            lambda: self._inner.list_page(prefix, delimiter=delimiter, token=token),
        )

    def get_range(self, key: str, begin: int, into: memoryview, *, if_match: str = "") -> None:
        """As ``Store``."""
        self._run(
            Call("get_range", key, into.nbytes),
            lambda: self._inner.get_range(key, begin, into, if_match=if_match),
        )

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
        return self._run(
            Call("put", key, body.nbytes),
            lambda: self._inner.put(key, body, crc32=crc32, metadata=metadata, condition=condition),
        )

    def create_upload(self, key: str, *, metadata: Mapping[str, str] | None = None) -> Upload:
        """As ``Store``."""
        return self._run(
            Call("create_upload", key), lambda: self._inner.create_upload(key, metadata=metadata)
        )

    def put_part(
        self, upload: Upload, number: int, body: memoryview, *, crc32: int
    ) -> UploadedPart:
        """As ``Store``."""
        return self._run(
            Call("put_part", upload.key, body.nbytes),
            lambda: self._inner.put_part(upload, number, body, crc32=crc32),
        )

    def list_parts(self, upload: Upload) -> tuple[UploadedPart, ...]:
        """As ``Store``."""
        return self._run(Call("list_parts", upload.key), lambda: self._inner.list_parts(upload))

    def complete_upload(
        self, upload: Upload, parts: Iterable[UploadedPart], *, nbytes: int, crc32: int
    ) -> None:
        """As ``Store``."""
        all_parts = tuple(parts)
        self._run(
            Call("complete_upload", upload.key),
            lambda: self._inner.complete_upload(upload, all_parts, nbytes=nbytes, crc32=crc32),
        )

    def abort_upload(self, upload: Upload) -> None:
        """As ``Store``."""
        self._run(Call("abort_upload", upload.key), lambda: self._inner.abort_upload(upload))

    def delete(self, key: str) -> None:
        """As ``Store``."""
        self._run(Call("delete", key), lambda: self._inner.delete(key))

    def interrupt(self) -> None:
        """As ``Store``."""
        self._inner.interrupt()

    def close(self) -> None:
        """As ``Store``."""
        self._inner.close()
