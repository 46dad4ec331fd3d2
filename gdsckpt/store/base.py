"""What an object store does, and the values that go in and out.

A store holds whole objects under keys. It is one bucket of S3, a directory, or memory; how the
three differ is in their modules, and ``gdsckpt.testing.store_contract`` is what all of them pass.
"""

from __future__ import annotations

import binascii
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

PARTS_MAX = 10_000
"""Parts of one upload are numbered from 1 to this. Source: Amazon S3 User Guide, "Multipart upload
limits"."""

PART_MIN_BYTES = 5 << 20
"""Smallest part, but for the last one. Source: as above."""

KEY_MAX_BYTES = 1024
"""Longest key in UTF-8. Source: Amazon S3 User Guide, "Naming Amazon S3 objects"."""


@dataclass(frozen=True, slots=True)
class StoreUrl:
    """An URL taken apart.

    Attributes:
        scheme: ``s3``, ``file`` or ``memory``.
        bucket: Name of the bucket, or of the memory store; empty for ``file``.
        key: Key in it, without a leading slash; empty for all of the bucket. For ``file`` it is the
            absolute path without its leading slash.
    """

    scheme: str
    bucket: str
    key: str

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}/{self.key}"


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What a store knows of an object.

    Attributes:
        key: Its key.
        nbytes: Its size.
        etag: Changes when the object is replaced; compare it, and give it back as ``if_match``,
            but read nothing into it. As the store wrote it, quotes included.
        crc32: CRC-32 of the object's bytes as the store computed or checked it, what S3 calls
            ``FULL_OBJECT``; None where it knows none, and always in listings.
        composite_crc32: (CRC-32 over the parts' CRCs, number of parts), what S3 calls
            ``COMPOSITE`` and :func:`composite_crc32` computes; None as above.
        metadata: What was given when it was put; empty in listings.
        modified_s: Seconds since 1970 by the store's clock; 0 where it does not tell.
    """

    key: str
    nbytes: int
    etag: str
    crc32: int | None = None
    composite_crc32: tuple[int, int] | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    modified_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Upload:
    """A multipart upload that was begun: plain values, so that a journal can keep it.

    Attributes:
        key: The object that it will be.
        upload_id: The store's name for it.
        checksum_type: ``FULL_OBJECT`` where the store compares the whole object with its CRC-32,
            ``COMPOSITE`` where only each part, empty where it checks nothing.
    """

    key: str
    upload_id: str
    checksum_type: str = ""


@dataclass(frozen=True, slots=True)
class UploadedPart:
    """A part that the store has.

    Attributes:
        number: From 1.
        etag: The store's name for these bytes.
        nbytes: Size of the part.
        crc32: Their CRC-32; None where the store's list does not tell.
    """

    number: int
    etag: str
    nbytes: int
    crc32: int | None = None


@dataclass(frozen=True, slots=True)
class Condition:
    """When a put may replace what is there; at most one of them.

    Attributes:
        if_match: Only an object with this ``etag``.
        if_none_match: Only where there is no object.
    """

    if_match: str = ""
    if_none_match: bool = False


ALWAYS = Condition()
IF_ABSENT = Condition(if_none_match=True)


@dataclass(frozen=True, slots=True)
class ListPage:
    """Part of a listing.

    Attributes:
        objects: In no promised order, without ``crc32`` and ``metadata``.
        prefixes: What stands before the delimiter, once each, delimiter included.
        next_token: Gives the next page; empty on the last one.
    """

    objects: tuple[ObjectInfo, ...]
    prefixes: tuple[str, ...] = ()
    next_token: str = ""


class Store(Protocol):
    """Objects by key.

    Any method may be called by any thread, and several at the same time. A buffer is read or
    written in the calling thread, and not after the call. An object is seen whole or not at all,
    and what a call that returned has written is seen by the calls that follow.

    Every method raises:
        StoreError: The store refused, or could not be reached. ``retryable`` tells whether the same
            call may succeed later (stores of ``open_store`` have then tried that already,
            ``attempts`` times); ``status`` is the HTTP status, and ``code`` the error code of S3,
            of all stores alike: 412 with ``PreconditionFailed``, 404 with ``NoSuchUpload``, 400
            with ``BadDigest``, 416 with ``InvalidRange``.
        ObjectNotFoundError: There is no such object, or no such bucket (``code`` tells).
        AccessDeniedError: The credentials are missing, wrong, expired, or allow too little.
        ConfigError: The key cannot be one.
    """

    @property
    def url(self) -> str:
        """The store for messages and logs, without secrets and without a slash at the end."""

    def head(self, key: str) -> ObjectInfo:
        """Describe an object.

        Raises:
            ObjectNotFoundError: There is none.
        """

    def list_page(self, prefix: str = "", *, delimiter: str = "", token: str = "") -> ListPage:
        """List objects whose keys begin with ``prefix``; :func:`list_all` gives all pages.

        Args:
            prefix: Beginning of the keys, not a directory: end it with ``/`` to mean one.
            delimiter: ``/`` to give what stands below the next one as one prefix; empty for all.
            token: ``next_token`` of the page before; empty for the first.
        """

    def get_range(self, key: str, begin: int, into: memoryview, *, if_match: str = "") -> None:
        """Read ``into.nbytes`` bytes at ``begin`` straight into memory.

        Nothing checks the bytes: that is for the caller, who has the checksums. After an error
        ``into`` holds anything. Ranges below 32 MiB spend more on the request than on the bytes.

        Args:
            key: The object.
            begin: Offset of the first byte.
            into: Writable and contiguous. Of no bytes: nothing is asked of the store.
            if_match: ``etag`` that the object must have; empty for any.

        Raises:
            ObjectNotFoundError: There is none.
            StoreError: ``status`` 412 where the object was replaced; 416 where it ends before the
                range does.
        """

    def put(
        self,
        key: str,
        body: memoryview,
        *,
        crc32: int,
        metadata: Mapping[str, str] | None = None,
        condition: Condition = ALWAYS,
    ) -> ObjectInfo:
        """Write an object in one request: of at most 5 GB, meant for small ones.

        Args:
            key: The object.
            body: Its bytes, contiguous.
            crc32: Their CRC-32, which the store compares with what it got.
            metadata: Short ASCII names and texts that ``head`` gives back; names in lower case.
            condition: When it may replace what is there.

        Returns:
            What was written; ``crc32`` is the store's, None where it did not check.

        Raises:
            StoreError: ``status`` 412 where the condition does not hold, 404 with ``if_match`` and
                no object; 400 ``BadDigest`` where the bytes do not have this CRC-32.
        """

    def create_upload(self, key: str, *, metadata: Mapping[str, str] | None = None) -> Upload:
        """Begin an object of many parts. Nothing is seen of it before it is completed.

        An answer that is lost leaves an upload that nobody knows: stores bill it until it is
        aborted by a lifecycle rule.
        """

    def put_part(
        self, upload: Upload, number: int, body: memoryview, *, crc32: int
    ) -> UploadedPart:
        """Send one part; sent again, it replaces the one of that number.

        Args:
            upload: From ``create_upload``.
            number: From 1 to ``PARTS_MAX``, in the order of the object's bytes, without gaps.
            body: Its bytes, contiguous; at least ``PART_MIN_BYTES`` but for the last.
            crc32: Their CRC-32, which the store compares with what it got, if it can.

        Raises:
            StoreError: 404 ``NoSuchUpload``: aborted or completed already; 400 ``BadDigest``.
        """

    def list_parts(self, upload: Upload) -> tuple[UploadedPart, ...]:
        """List the parts that the store has, by number, each once.

        Raises:
            StoreError: 404 ``NoSuchUpload``.
        """

    def complete_upload(
        self, upload: Upload, parts: Iterable[UploadedPart], *, nbytes: int, crc32: int
    ) -> None:
        """Make the parts an object, which replaces the one that is there.

        Whether it did is for ``head`` to say, also after an error: the answer may have been lost,
        and then the repeated call finds no upload.

        Args:
            upload: From ``create_upload``.
            parts: All of them, as ``put_part`` gave them.
            nbytes: Size of the object.
            crc32: CRC-32 of the object.

        Raises:
            StoreError: 404 ``NoSuchUpload``; 400 where parts are missing, too small or others than
                the store has, or where size or checksum differ.
        """

    def abort_upload(self, upload: Upload) -> None:
        """Drop an upload and its parts; one that is gone already is no error."""

    def delete(self, key: str) -> None:
        """Remove an object; one that is not there is no error."""

    def interrupt(self) -> None:
        """Break off the calls that other threads are in, and their waits before another attempt.

        They raise StoreError with the ``code`` ``Interrupted``, and are not tried again. Calls made
        later work: an upload can still be aborted.
        """

    def close(self) -> None:
        """Give back connections. Calls made later open new ones."""


def list_all(store: Store, prefix: str = "", *, delimiter: str = "") -> Iterator[ObjectInfo | str]:
    """List all objects whose keys begin with ``prefix``, page by page as they are asked for.

    Yields:
        Objects, and with a ``delimiter`` also prefixes, as text.
    """
    token = ""
    while True:
        page = store.list_page(prefix, delimiter=delimiter, token=token)
        yield from page.prefixes
        yield from page.objects
        token = page.next_token
        if not token:
            return


def composite_crc32(parts: Iterable[UploadedPart]) -> tuple[int, int] | None:
    """Compute what a store that checksums by parts says of an object made of them.

    Args:
        parts: All of them in order.

    Returns:
        As ``ObjectInfo.composite_crc32``; None where the CRC-32 of a part is not known.

    Source: Amazon S3 User Guide, "Checking object integrity", composite checksums.
    """
    value, num_parts = 0, 0
    for part in parts:
        if part.crc32 is None:
            return None
        value = binascii.crc32(struct.pack(">I", part.crc32), value)
        num_parts += 1
    return value, num_parts
