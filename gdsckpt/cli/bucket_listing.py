"""Find checkpoints, and what uploads left that were not completed, in an object store."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from dataclasses import dataclass

from gdsckpt.cli import listing
from gdsckpt.cli.listing import Row
from gdsckpt.config import Config
from gdsckpt.engine import base
from gdsckpt.errors import (
    CheckpointNotFoundError,
    FormatError,
    ObjectNotFoundError,
    StoreError,
)
from gdsckpt.format.manifest import MANIFEST_NAME
from gdsckpt.remote.crew import Crew, Work
from gdsckpt.remote.objects import RemoteObject
from gdsckpt.remote.opening import Place, open_object, prefix_of, read_raw_manifest
from gdsckpt.staging import directory
from gdsckpt.store import open_store
from gdsckpt.store.base import ObjectInfo, Store, list_all


def rows_of(url: str, config: Config) -> list[Row]:
    """List what an URL holds: an object, a checkpoint, or the objects and checkpoints below it.

    Raises:
        CheckpointNotFoundError: There is nothing.
        StoreError: The store cannot be asked.
        ConfigError: It is no URL of a store.
    """
    store, key = open_store(url, config)
    with (
        contextlib.closing(store),
        Crew(config.upload_concurrency) as readers,
        Crew(config.upload_concurrency) as rows,
    ):
        return _Lister(store, readers, rows).rows_at(key)


@dataclass(frozen=True, slots=True)
class _Folder:
    """The keys that begin alike, up to the next slash.

    Attributes:
        prefix: How they begin.
        objects: Those without another slash.
        prefixes: How the others go on, up to that slash.
    """

    prefix: str
    objects: tuple[ObjectInfo, ...]
    prefixes: tuple[str, ...]

    @property
    def names(self) -> dict[str, ObjectInfo]:
        """The objects by what follows the prefix."""
        return {info.key[len(self.prefix) :]: info for info in self.objects}

    @property
    def is_checkpoint(self) -> bool:
        """Whether a checkpoint is or was to be here."""
        return MANIFEST_NAME in self.names or any(map(directory.is_shard_name, self.names))


class _Lister:
    """Lists one store.

    Args:
        store: The store.
        readers: Receive what is large.
        rows: Look at several objects at a time.
    """

    def __init__(self, store: Store, readers: Crew, rows: Crew) -> None:
        self._store = store
        self._readers = readers
        self._rows = rows

    def rows_at(self, key: str) -> list[Row]:
        """List what a key holds; raises as :func:`rows_of`."""
        if key and not key.endswith("/"):
            try:
                return [self._object_row(self._store.head(key))]
            except ObjectNotFoundError as error:
                if error.code == "NoSuchBucket":
                    raise
        folder = self._folder(prefix_of(key))
        if not folder.objects and not folder.prefixes:
            url = f"{self._store.url}/{key}"
            raise CheckpointNotFoundError(f"nothing at {url}. Check the key.", path=url)
        if folder.is_checkpoint:
            return self._checkpoint_rows(folder)
        found: list[list[Row]] = [[] for _ in (*folder.prefixes, *folder.objects)]

        def list_prefix(n: int, prefix: str) -> None:
            below = self._folder(prefix)
            if below.is_checkpoint:
                found[n] = self._checkpoint_rows(below)

        def list_object(n: int, info: ObjectInfo) -> None:
            row = self._object_row(info)
            found[n] = [] if row.state == listing.NO_CHECKPOINT else [row]

        jobs = [
            *(functools.partial(list_prefix, n, each) for n, each in enumerate(folder.prefixes)),
            *(
                functools.partial(list_object, n, each)
                for n, each in enumerate(folder.objects, len(folder.prefixes))
            ),
        ]
        base.wait(self._rows.start(jobs, Work(0, self._store.interrupt)))
        return sorted((row for rows in found for row in rows), key=lambda row: row.path)

    def _folder(self, prefix: str) -> _Folder:
        objects: list[ObjectInfo] = []
        prefixes: list[str] = []
        for each in list_all(self._store, prefix, delimiter="/"):
            if isinstance(each, str):
                prefixes.append(each)
            elif each.key != prefix:  # an empty object that stands for a folder
                objects.append(each)
        return _Folder(prefix, tuple(objects), tuple(prefixes))

    def _url(self, key: str) -> str:
        return f"{self._store.url}/{key}".rstrip("/")

    def _object_row(self, info: ObjectInfo) -> Row:
        source = RemoteObject(self._store, info.key, info.nbytes, info.etag, None)
        try:
            with open_object(source, self._readers) as opened:
                return listing.shard_row(source.url, opened.shard, info.modified_s or None)
        except FormatError as error:
            return self._bare_row(info, "gdsckpt", listing.DAMAGED, str(error))
        except StoreError as error:
            return self._bare_row(info, "other", listing.UNREADABLE, str(error))

    def _bare_row(self, info: ObjectInfo, kind: str, state: str, reason: str) -> Row:
        return Row(
            path=self._url(info.key),
            kind=kind,
            state=state,
            reason=reason,
            nbytes=info.nbytes,
            modified_s=info.modified_s or None,
        )

    def _checkpoint_rows(self, folder: _Folder) -> list[Row]:
        """Give the row of a checkpoint, and one per shard that its manifest does not name."""
        url = self._url(folder.prefix)
        named: set[str] = set()
        try:
            raw = read_raw_manifest(self._store, folder.prefix)
            place = Place(self._store, self._readers, folder.prefix, None, raw)
            row = self._checkpoint_row(place, folder.names.get(MANIFEST_NAME))
            named = {entry.name for entry in place.manifest.shards}
        except ObjectNotFoundError:
            reason = f"{url} has no {MANIFEST_NAME}: no upload to it was completed"
            row = Row(path=url, kind="checkpoint", state=listing.NO_MANIFEST, reason=reason)
        except FormatError as error:  # it may name any of the shards
            return [Row(path=url, kind="checkpoint", state=listing.DAMAGED, reason=str(error))]
        except StoreError as error:
            return [Row(path=url, kind="other", state=listing.UNREADABLE, reason=str(error))]
        reason = "no manifest names it: its upload was not completed, or is under way"
        return [
            row,
            *(
                self._bare_row(info, "shard", listing.LEFTOVER, reason)
                for name, info in sorted(folder.names.items())
                if directory.is_shard_name(name) and name not in named
            ),
        ]

    def _checkpoint_row(self, place: Place, info: ObjectInfo | None) -> Row:
        manifest = place.manifest
        state, reason, num_tensors = listing.COMPLETE, "", 0
        for entry in manifest.shards:
            try:
                with place.open_listed(entry) as opened:
                    num_tensors += listing.num_tensors(opened.shard) or 0
            except (FormatError, CheckpointNotFoundError) as error:
                state, reason = listing.DAMAGED, str(error)
        return dataclasses.replace(
            listing.manifest_row(place.url, manifest),
            state=state,
            reason=reason,
            num_tensors=None if state == listing.DAMAGED else num_tensors,
            modified_s=(info.modified_s or None) if info else None,
        )
