"""An object that is read in ranges, and the buffers that ranges are received into."""

from __future__ import annotations

import mmap
import queue
from dataclasses import dataclass

from gdsckpt.errors import ObjectNotFoundError, StoreError
from gdsckpt.store.base import ObjectInfo, Store

CRC32_METADATA = "gdsckpt-crc32"
"""Name of the metadata that holds the CRC-32 of an object of ours, 8 hex digits: for stores that
know no checksum of a whole object."""


def crc32_of(info: ObjectInfo) -> int | None:
    """Give the CRC-32 of an object as the store knows it, else as its uploader noted it."""
    if info.crc32 is not None:
        return info.crc32
    noted = info.metadata.get(CRC32_METADATA, "")
    try:
        return int(noted, 16) if len(noted) == 8 else None
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class RemoteObject:
    """One version of an object; reads of it fail when another has taken its place.

    Attributes:
        store: Where it is.
        key: Its key.
        nbytes: Its size.
        etag: What tells the version.
        crc32: CRC-32 of all of it, or None where it is not known.
    """

    store: Store
    key: str
    nbytes: int
    etag: str
    crc32: int | None

    @classmethod
    def find(cls, store: Store, key: str) -> RemoteObject:
        """Look an object up.

        Raises:
            ObjectNotFoundError: There is none.
        """
        info = store.head(key)
        return cls(store, key, info.nbytes, info.etag, crc32_of(info))

    @property
    def url(self) -> str:
        """The object, for messages."""
        return f"{self.store.url}/{self.key}"

    def read(self, offset: int, into: memoryview) -> None:
        """Read ``into.nbytes`` bytes at ``offset``.

        Raises:
            ObjectNotFoundError: The object was removed meanwhile.
            StoreError: It was replaced (status 412), or the store failed.
        """
        try:
            self.store.get_range(self.key, offset, into, if_match=self.etag)
        except StoreError as error:
            is_gone = isinstance(error, ObjectNotFoundError)
            if error.status != 412 and not is_gone:
                raise
            raise (ObjectNotFoundError if is_gone else StoreError)(
                f"{self.url} was {'removed' if is_gone else 'replaced'} while it was read, so what "
                "was read of it is of no use. Start again.",
                op=error.op,
                key=self.key,
                attempts=error.attempts,
                status=error.status,
                code=error.code,
            ) from error


class Buffers:
    """Buffers that are used again and again: fresh memory costs more than what is received into it.

    For any thread. They are page-aligned, as direct I/O needs it.

    Args:
        nbytes: Size of each.
    """

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._free: queue.SimpleQueue[memoryview] = queue.SimpleQueue()

    def take(self) -> memoryview:
        """Give a buffer to the caller alone; a new one where none is free."""
        try:
            return self._free.get_nowait()
        except queue.Empty:
            return memoryview(mmap.mmap(-1, self.nbytes))

    def give(self, buffer: memoryview) -> None:
        """Take a buffer back that nobody uses any more."""
        self._free.put(buffer)
