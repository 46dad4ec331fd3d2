"""Upload a file, or a checkpoint directory with its manifest last."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from gdsckpt import native
from gdsckpt.config import Config
from gdsckpt.engine.base import Progress
from gdsckpt.errors import (
    AccessDeniedError,
    CheckpointExistsError,
    CheckpointNotFoundError,
    ConfigError,
    GdsckptError,
    ObjectNotFoundError,
    StoreError,
)
from gdsckpt.format import manifest as manifest_format
from gdsckpt.format.manifest import MANIFEST_NAME, Manifest, ShardEntry
from gdsckpt.remote import opening
from gdsckpt.remote.crew import Crew
from gdsckpt.remote.sending import Sender, Sent, plan_upload
from gdsckpt.remote.shards import move_shards
from gdsckpt.remote.source import SourceFile, crcs_of, open_source, source_of
from gdsckpt.report import UploadReport
from gdsckpt.staging import files, listed_shards, manifests
from gdsckpt.store import open_store
from gdsckpt.store.base import IF_ABSENT, Condition, Store

logger = logging.getLogger(__name__)

T = TypeVar("T")

_COMMITS_MAX = 10
"""How often a manifest is put when others put theirs at the same time."""

_LOST_RACE = (404, 409, 412)
"""What a store answers when the manifest was removed, is being replaced, or was replaced."""


def upload(
    path: str | os.PathLike[str],
    url: str,
    *,
    config: Config | Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> UploadReport:
    """Upload a file or a checkpoint directory, checksummed from end to end.

    A file becomes the object at exactly that key. Of a directory each shard becomes an object below
    that key, and the manifest the last one: a reader finds the old checkpoint or the whole new one.
    What is there already, by size and checksum, is not sent again.

    Args:
        path: A file (any file, not only checkpoints), or a directory with a ``manifest.json``.
        url: ``s3://BUCKET/KEY``, ``file:///PATH`` or ``memory://NAME/KEY``.
        config: Settings; also read from ``GDSCKPT_*``.
        progress: Called with (bytes done, bytes in all) now and then.

    Returns:
        What was sent, and how long it took.

    Raises:
        CheckpointNotFoundError: There is nothing at ``path``, or a directory without a manifest.
        CheckpointExistsError: A checkpoint was to go below a key at which there is an object.
        StoreError: The store refused, or could not be reached: nothing was changed there, or an
            error note says what.
        StorageError: A file could not be read, or changed meanwhile.
        FormatError: What is there is damaged.
        ConfigError: An argument or a setting is wrong.
    """
    settings = Config.resolve(config, os.environ)
    shown = files.local_path(path)
    started = time.perf_counter()
    with open_uploader(url, settings) as uploader:
        is_directory = os.path.isdir(shown)  # noqa: PTH112 - Path.is_dir raises for long names
        if is_directory:
            sent = uploader.upload_directory(shown, progress)
        else:
            sent = [uploader.upload_file(shown, progress)]
        return UploadReport(
            path=shown,
            url=uploader.url,
            nbytes=sum(each.nbytes for each in sent),
            sent_bytes=sum(each.nbytes for each in sent if each.num_parts),
            num_objects=len(sent),
            num_parts=sum(each.num_parts for each in sent),
            seconds=time.perf_counter() - started,
            crc32=None if is_directory else sent[0].crc32,
        )


@contextlib.contextmanager
def open_uploader(url: str, config: Config) -> Iterator[Uploader]:
    """Open the store of an URL, to upload to what the URL names.

    Raises:
        ConfigError: It is no URL of a store, or a setting cannot be used.
    """
    store, key = open_store(url, config)
    with contextlib.closing(store), Crew(config.upload_concurrency) as crew:
        yield Uploader(store, crew, key, config)


class Uploader:
    """Uploads to what one URL names.

    Args:
        store: Where to.
        crew: Sends parts.
        key: Of the object or checkpoint.
        config: Settings.

    Attributes:
        key: As given.
    """

    def __init__(self, store: Store, crew: Crew, key: str, config: Config) -> None:
        self._store = store
        self._crew = crew
        self.key = key
        self._config = config
        self._sender = Sender(store, crew)

    @property
    def url(self) -> str:
        """What is uploaded to, for messages and reports."""
        return f"{self._store.url}/{self.key}".rstrip("/")

    def upload_file(self, path: str, progress: Progress | None) -> Sent:
        """Make an object of a file; raises as :func:`upload`."""
        self.require_key_of_object()
        with open_source(path, self._crew) as opened:
            return self.send(opened, self.key, progress)

    def send(
        self, opened: SourceFile, key: str, progress: Progress | None, crc32: int | None = None
    ) -> Sent:
        """Make an object of an open file.

        Args:
            opened: The file.
            key: Of the object.
            progress: Told about bytes sent.
            crc32: What the CRC-32 of the file has to be; None for anything.

        Raises:
            FormatError: It has another one.
        """
        plan = plan_upload(opened, key, self._config.upload_part_bytes)
        if crc32 is not None and crc32 != plan.crc32:
            raise listed_shards.not_as_listed(opened.path)
        return self._sender.send(plan, progress=progress)

    def require_key_of_object(self) -> None:
        """Refuse a key that names no object.

        Raises:
            ConfigError: It is empty or ends with a slash.
        """
        if not self.key or self.key.endswith("/"):
            raise ConfigError(
                f"{self._store.url}/{self.key} names no object, and a file becomes the object at "
                "exactly the key given. Give its whole URL.",
                field="url",
            )

    def require_key_of_checkpoint(self) -> None:
        """Refuse a key at which an object is: a checkpoint is below it, and would not be found.

        Raises:
            CheckpointExistsError: There is one.
            StoreError: The store cannot be asked.
        """
        key = self.key.rstrip("/")
        if key and self._sender.look(key) is not None:
            raise CheckpointExistsError(
                f"{self.url} is an object, and readers would find that rather than a checkpoint "
                "below it. Remove it, or give another URL.",
                path=self.url,
            )

    def upload_directory(self, path: str, progress: Progress | None) -> list[Sent]:
        """Make objects of the shards of a directory, then of its manifest."""
        self.require_key_of_checkpoint()
        tried = b""
        while True:
            with manifests.being_read(path) as raw:
                manifest = manifests.decode_manifest(path, raw)
                send = functools.partial(
                    move_shards,
                    manifest,
                    functools.partial(self._upload_shard, path),
                    store=self._store,
                    config=self._config,
                    progress=progress,
                )
                try:
                    return self.commit(raw, manifest, send)
                except CheckpointNotFoundError:
                    # A save that was committed meanwhile removes the shards of the one before.
                    if raw == tried:
                        raise
                    tried = raw

    def _upload_shard(self, path: str, entry: ShardEntry, progress: Progress | None) -> Sent:
        with listed_shards.open_listed_shard(path, entry, direct_io="off") as shard:
            opened = source_of(shard.file, crcs_of(shard), is_named=True)
            return self.send(opened, self.key_of(entry.name), progress, entry.crc32)

    def key_of(self, name: str) -> str:
        """Give the key of a file of the checkpoint."""
        return opening.prefix_of(self.key) + name

    def commit(self, raw: bytes, manifest: Manifest, send: Callable[[], T]) -> T:
        """Send the shards and put the manifest: from now on it is the checkpoint at this URL.

        The shards of the one that it replaces are removed; that they are may fail.

        Args:
            raw: The manifest as it stands.
            manifest: What it says.
            send: Sends the shards that are not there yet; called again after a lost race.

        Returns:
            What ``send`` gave.

        Raises:
            StoreError: It could not be put; the checkpoint there is what it was, unless a note says
                otherwise.
        """
        key = self.key_of(MANIFEST_NAME)
        for _ in range(_COMMITS_MAX):
            # First: who replaces a checkpoint removes its shards, and it may be this one.
            old, condition = self._old_manifest(key)
            sent = send()
            if old == raw:
                return sent
            try:
                self._store.put(key, memoryview(raw), crc32=native.crc32(raw), condition=condition)
            except StoreError as error:
                if error.status not in _LOST_RACE:
                    raise
                lost = error
            else:
                self._remove_replaced(old, manifest)
                return sent
        lost.add_note(f"Others put theirs {_COMMITS_MAX} times meanwhile.")
        raise lost

    def _old_manifest(self, key: str) -> tuple[bytes, Condition]:
        """Read the manifest that is there, and say what must still hold when it is replaced."""
        try:
            info = self._store.head(key)
        except ObjectNotFoundError:
            return b"", IF_ABSENT
        except AccessDeniedError:  # as of what is not there, where a bucket may not be listed
            return b"", IF_ABSENT
        raw = b""
        try:
            raw = opening.read_raw_manifest(self._store, opening.prefix_of(self.key))
        except GdsckptError as error:
            logger.warning("shards of the checkpoint that is to be replaced stay: %s", error)
        return raw, Condition(if_match=info.etag)

    def _remove_replaced(self, old: bytes, manifest: Manifest) -> None:
        """Remove the shards that only the old manifest named; the new one stands in any case."""
        if not old:
            return
        kept = {entry.name for entry in manifest.shards}
        try:
            for entry in manifest_format.decode(old, f"{self.url}/{MANIFEST_NAME}").shards:
                if entry.name not in kept:
                    self._store.delete(self.key_of(entry.name))
        except GdsckptError as error:
            logger.warning("shards of the checkpoint that was replaced stay: %s", error)
