"""Cuts the objects that a store of our own has into pages and prefixes, as S3 does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gdsckpt.errors import ConfigError
from gdsckpt.store.base import ListPage, ObjectInfo

PAGE_MAX = 1000
"""Objects and prefixes of one page. Source: Amazon S3 API Reference, ListObjectsV2, MaxKeys."""


def check_delimiter(delimiter: str) -> None:
    """Refuse what only some stores could do.

    Raises:
        ConfigError: It is neither empty nor ``/``.
    """
    if delimiter not in ("", "/"):
        raise ConfigError(
            f"delimiter is {delimiter!r}. Allowed: '/' or nothing.", field="delimiter"
        )


def entry_of(key: str, prefix: str, delimiter: str) -> str:
    """Give what a listing shows of a key: itself, or the prefix that hides it."""
    end = key.find(delimiter, len(prefix)) if delimiter else -1
    return key if end < 0 else key[: end + len(delimiter)]


def page_of(
    objects: Mapping[str, ObjectInfo], prefix: str, *, delimiter: str, token: str
) -> ListPage:
    """Give a page of the objects that have a prefix.

    Args:
        objects: All that have it, by key.
        prefix: Beginning of the keys.
        delimiter: ``/`` or empty.
        token: Last entry of the page before; empty for the first page.
    """
    check_delimiter(delimiter)
    entries = sorted({entry_of(key, prefix, delimiter) for key in objects} - {""})
    page = [entry for entry in entries if entry > token][:PAGE_MAX]
    has_more = bool(page) and page[-1] != entries[-1]
    return ListPage(
        tuple(objects[entry] for entry in page if entry in objects),
        tuple(sorted_prefixes(page, objects)),
        page[-1] if has_more else "",
    )


def sorted_prefixes(entries: Iterable[str], objects: Mapping[str, ObjectInfo]) -> list[str]:
    """Give the entries that are prefixes."""
    return [entry for entry in entries if entry not in objects]
