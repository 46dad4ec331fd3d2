"""What an URL names, opened: an object as an indexed file, a checkpoint by its manifest."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from gdsckpt.config import Config
from gdsckpt.engine import base
from gdsckpt.errors import (
    AccessDeniedError,
    CheckpointNotFoundError,
    FormatError,
    ObjectNotFoundError,
)
from gdsckpt.format import manifest as manifest_format
from gdsckpt.format.manifest import MANIFEST_MAX_BYTES, MANIFEST_NAME, Manifest, ShardEntry
from gdsckpt.remote.chunks import RECEIVES_MAX
from gdsckpt.remote.crew import Crew
from gdsckpt.remote.engine import ObjectEngine
from gdsckpt.remote.objects import RemoteObject
from gdsckpt.remote.ondemand import OnDemandFile
from gdsckpt.staging import files, indexing, listed_shards
from gdsckpt.staging import shard as shards
from gdsckpt.staging.shard import Shard
from gdsckpt.store import open_store
from gdsckpt.store.base import Store

T = TypeVar("T")

REMOVED = (CheckpointNotFoundError, ObjectNotFoundError)
"""What a reader meets whose checkpoint was replaced, which removes its shards."""


@dataclass(frozen=True, slots=True)
class OpenedObject:
    """An object that is read as a file.

    Attributes:
        shard: Indexed. Its descriptor has only what was read by ``read_at``.
        engine: Reads the rest.
        provide_all: Has the descriptor filled, for those who read it by themselves.
    """

    shard: Shard
    engine: ObjectEngine
    provide_all: Callable[[base.Progress | None], None]


@contextlib.contextmanager
def open_object(source: RemoteObject, crew: Crew) -> Iterator[OpenedObject]:
    """Open and index an object for as long as the block lasts; little of it is received.

    Raises:
        StoreError: It cannot be read.
        StorageError: The temporary directory cannot take the little.
        FormatError: As for a file.
    """
    copy = OnDemandFile(source, crew)
    with (
        contextlib.closing(copy),
        shards.provided(copy.fd, copy.provide),
        files.transfers_on(copy.fd, source.url, writable=False, direct_io="off") as file,
    ):
        shard = copy.read_checked(lambda: _index(file, copy))
        engine = ObjectEngine(source, crew)
        engine.expect(shard)
        yield OpenedObject(shard, engine, copy.provide_all)


def _index(file: files.OpenFile, copy: OnDemandFile) -> Shard:
    if not indexing.has_our_marks(file):
        # Their payloads lie where local headers say: not a request for each of these.
        copy.provide_blocks(indexing.record_headers(file))
    return indexing.index_file(file)


@dataclass(frozen=True, slots=True)
class Place:
    """What an URL names.

    Attributes:
        store: Where it is.
        crew: Threads for reading it.
        key: Key of the object; of a checkpoint the prefix of all its keys, with its slash.
        source: The object; None for a checkpoint.
        raw_manifest: The manifest as it stands; empty for an object.
    """

    store: Store
    crew: Crew
    key: str
    source: RemoteObject | None
    raw_manifest: bytes

    @property
    def url(self) -> str:
        """It, for messages and reports."""
        return f"{self.store.url}/{self.key.rstrip('/')}"

    @property
    def manifest(self) -> Manifest:
        """The checkpoint's manifest.

        Raises:
            FormatError: It is damaged.
        """
        return manifest_format.decode(self.raw_manifest, f"{self.url}/{MANIFEST_NAME}")

    def newer(self) -> Place | None:
        """Look again, after something was missing; gives the checkpoint that took its place."""
        if self.source is not None:
            return None
        found = find_place(self.store, self.crew, self.key)
        return None if found.raw_manifest == self.raw_manifest else found

    def find(self, entry: ShardEntry) -> RemoteObject:
        """Look up a shard that the manifest names.

        Raises:
            CheckpointNotFoundError: It is missing.
        """
        try:
            return RemoteObject.find(self.store, self.key + entry.name)
        except ObjectNotFoundError as error:
            raise CheckpointNotFoundError(
                f"the checkpoint at {self.url} lacks its shard {entry.name}. Use another one.",
                path=f"{self.url}/{entry.name}",
            ) from error

    @contextlib.contextmanager
    def open_only(self) -> Iterator[OpenedObject]:
        """Open the object, or the checkpoint's only shard.

        Raises:
            ConfigError: The checkpoint has several ranks.
        """
        if self.source is not None:
            with open_object(self.source, self.crew) as opened:
                yield opened
            return
        manifest = self.manifest
        listed_shards.require_one_rank(self.url, manifest)
        with self.open_listed(manifest.shards[0]) as opened:
            yield opened

    @contextlib.contextmanager
    def open_listed(
        self, entry: ShardEntry, source: RemoteObject | None = None
    ) -> Iterator[OpenedObject]:
        """Open a shard as the manifest names it.

        Args:
            entry: What the manifest says of it.
            source: The object, if it has been looked up.

        Raises:
            CheckpointNotFoundError: It is missing.
            FormatError: It has not the size or the chunk table that the manifest names.
        """
        with open_object(source or self.find(entry), self.crew) as opened:
            listed_shards.require_as_listed(opened.shard, entry, opened.shard.path)
            yield opened


@contextlib.contextmanager
def open_place(url: str, config: Config) -> Iterator[Place]:
    """Find out what an URL names: an object of that key, else a checkpoint below it.

    Raises:
        CheckpointNotFoundError: Neither is there.
        StoreError: The store cannot be asked.
        FormatError: The manifest is too large for one.
        ConfigError: It is no URL of a store.
    """
    store, key = open_store(url, config)
    with contextlib.closing(store), Crew(config.upload_concurrency) as crew:
        yield find_place(store, crew, key)


def find_place(store: Store, crew: Crew, key: str) -> Place:
    """Look for an object, then for a checkpoint; raises as :func:`open_place`."""
    refused: AccessDeniedError | None = None
    if key and not key.endswith("/"):
        try:
            return Place(store, crew, key, RemoteObject.find(store, key), b"")
        except ObjectNotFoundError as error:
            if error.code == "NoSuchBucket":
                raise
        except AccessDeniedError as error:  # S3 says so too of what is not there
            refused = error
    prefix = prefix_of(key)
    try:
        return Place(store, crew, prefix, None, read_raw_manifest(store, prefix))
    except ObjectNotFoundError as error:
        if refused is not None:
            raise refused from None
        if error.code == "NoSuchBucket":
            raise
        url = f"{store.url}/{key}"
        raise CheckpointNotFoundError(
            f"nothing at {url}: it is no object, and there is no {MANIFEST_NAME} below it. Check "
            "the key; 'gdsckpt ls' lists what is there.",
            path=url,
        ) from error
    except AccessDeniedError as error:
        raise refused or error from None


def prefix_of(key: str) -> str:
    """Give the beginning of the keys of a checkpoint's objects."""
    return f"{key.rstrip('/')}/" if key else ""


def read_raw_manifest(store: Store, prefix: str) -> bytes:
    """Read a checkpoint's manifest as it stands.

    Raises:
        ObjectNotFoundError: There is none.
        FormatError: It is larger than any manifest.
    """
    source = RemoteObject.find(store, f"{prefix}{MANIFEST_NAME}")
    if source.nbytes > MANIFEST_MAX_BYTES:
        raise FormatError(
            f"{source.url} is larger than {MANIFEST_MAX_BYTES} bytes, which no manifest is. Use "
            "another checkpoint.",
            path=source.url,
            offset=0,
        )
    raw = bytearray(source.nbytes)
    for _ in range(RECEIVES_MAX):
        source.read(0, memoryview(raw))
        try:
            manifest_format.decode(bytes(raw), source.url)
            break
        except FormatError:  # it may have been flipped on the way; else the caller finds it
            continue
    return bytes(raw)


def read_only_object(url: str, config: Config, read: Callable[[OpenedObject], T]) -> T:
    """Open the object that an URL names, or the shard of a checkpoint that one rank wrote.

    Args:
        url: Of the object or checkpoint.
        config: Settings.
        read: Reads it; is called again for the checkpoint that takes its place meanwhile.

    Returns:
        What ``read`` gives.

    Raises:
        ConfigError: The checkpoint has several ranks.
        CheckpointNotFoundError: There is nothing.
    """
    with open_place(url, config) as place:
        while True:
            try:
                with place.open_only() as opened:
                    return read(opened)
            except REMOVED:
                newer = place.newer()
                if newer is None:
                    raise
                place = newer
