"""Fetch an object into a file, or a checkpoint into a directory with its manifest last."""

from __future__ import annotations

import contextlib
import functools
import os
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gdsckpt.config import Config
from gdsckpt.engine.base import Progress
from gdsckpt.errors import (
    CheckpointNotFoundError,
    ConfigError,
    GdsckptError,
    UnverifiedWarning,
    storage_error_from,
)
from gdsckpt.format.manifest import MANIFEST_NAME, Manifest, ShardEntry, is_plain_name
from gdsckpt.remote.opening import REMOVED, Place, open_place
from gdsckpt.remote.receiving import Received, plan_receive, receive
from gdsckpt.remote.shards import move_shards
from gdsckpt.report import FetchReport
from gdsckpt.staging import directory, files, manifests


def fetch(
    url: str,
    path: str | os.PathLike[str],
    *,
    config: Config | Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> FetchReport:
    """Fetch what an URL names: every byte checked, durable when the function returns.

    An object becomes a file, which is the old one or the whole new one at any instant. A
    checkpoint becomes a directory whose manifest is written last.

    Args:
        url: ``s3://BUCKET/KEY``, ``file:///PATH`` or ``memory://NAME/KEY``.
        path: File or directory to write. An object goes into a directory that exists, under the
            last part of its key.
        config: Settings; also read from ``GDSCKPT_*``.
        progress: Called with (bytes done, bytes in all) now and then.

    Returns:
        What was written, and how long it took.

    Raises:
        CheckpointNotFoundError: There is nothing at the URL.
        ChecksumError: It is damaged, or was on the way, again and again.
        StoreError: The store failed, or what is there was replaced meanwhile.
        StorageError: It cannot be written: ``path`` is what it was.
        ConfigError: An argument or a setting is wrong.
    """
    settings = Config.resolve(config, os.environ)
    shown = files.local_path(path)
    started = time.perf_counter()
    with open_place(url, settings) as place:
        fetcher = Fetcher(place, settings)
        if place.source is not None:
            file = _file_target(shown, place)
            target = str(file)
            received = [fetcher.fetch_file(Path(os.path.realpath(file)), progress)]
        else:
            target = shown
            received = fetcher.fetch_directory(Path(shown), progress)
        is_verified = all(each.is_verified for each in received)
        if not is_verified:
            warnings.warn(
                f"{place.url} carries no checksums: damage in it cannot be found.",
                UnverifiedWarning,
                stacklevel=2,
            )
        return FetchReport(
            url=place.url,
            path=target,
            nbytes=sum(each.nbytes for each in received),
            num_objects=len(received),
            is_verified=is_verified,
            seconds=time.perf_counter() - started,
            direct_io=not any(each.refused for each in received),
            crc32=received[0].crc32 if place.source is not None else None,
        )


def _file_target(shown: str, place: Place) -> Path:
    """Say which file an object becomes.

    Raises:
        ConfigError: It would be none, or one outside the directory that was given.
    """
    target = Path(shown)
    if os.path.isdir(shown):  # noqa: PTH112 - Path.is_dir raises for names that are too long
        name = place.key.rpartition("/")[2]
        if not is_plain_name(name):
            raise ConfigError(
                f"{place.url} would not stay in {shown}: its last part is {name!r}. Give the whole "
                "path of the file.",
                field="path",
            )
        target = target / name
    elif shown.endswith("/"):
        raise ConfigError(
            f"{shown} is no directory. Make it, or give the path of a file.", field="path"
        )
    if target.name.startswith(files.TEMPORARY_PREFIX):
        raise ConfigError(
            f"{target} cannot be the name of a file: {files.TEMPORARY_PREFIX}* are temporary "
            "files. Give another path.",
            field="path",
        )
    return target


class Fetcher:
    """Fetches what one URL names.

    Args:
        place: What it names.
        config: Settings.
    """

    def __init__(self, place: Place, config: Config) -> None:
        self._place = place
        self._config = config

    def fetch_file(self, target: Path, progress: Progress | None) -> Received:
        """Fetch an object."""
        if self._place.source is None:
            raise CheckpointNotFoundError(f"no object at {self._place.url}.", path=self._place.url)
        plan = plan_receive(self._place.source, self._place.crew)
        files.remove_leftovers_of(target)
        return receive(plan, target, self._place.crew, self._config, progress=progress)

    def fetch_directory(self, target: Path, progress: Progress | None) -> list[Received]:
        """Fetch a checkpoint; one that replaces it meanwhile is fetched in its place."""
        _require_ours(target)
        with (
            _removed_if_new(target),
            directory.prepared(target, self._config),
        ):
            files.remove_leftovers(target)
            while True:
                manifest = self._place.manifest
                try:
                    with _without_leftovers(target, manifest):
                        received = move_shards(
                            manifest,
                            functools.partial(self._fetch_shard, target),
                            store=self._place.store,
                            config=self._config,
                            progress=progress,
                        )
                        directory.commit(target, self._place.raw_manifest, self._config)
                    break
                except REMOVED:
                    newer = self._place.newer()
                    if newer is None:
                        raise
                    self._place = newer
            directory.remove_other_shards(target, manifest)
        return received

    def _fetch_shard(self, target: Path, entry: ShardEntry, progress: Progress | None) -> Received:
        place = self._place
        plan = plan_receive(place.find(entry), place.crew, entry)
        return receive(plan, target / entry.name, place.crew, self._config, progress=progress)


def _require_ours(target: Path) -> None:
    """Refuse a directory that holds anything but a checkpoint, or what was begun of one.

    Raises:
        ConfigError: It does.
        StorageError: It cannot be looked at.
    """
    try:
        names = os.listdir(target)  # noqa: PTH208 - plain names, undecodable ones too
        known = {path.name for path in directory.abandoned_shards(target, None)}
    except FileNotFoundError:
        return
    except OSError as error:
        raise storage_error_from(error, op="listdir", path=target) from error
    known |= {MANIFEST_NAME, *(_named_in(target) or ())}
    others = [name for name in names if name not in known and not _is_temporary(name)]
    if others:
        raise ConfigError(
            f"{target} holds other things, such as {min(others)!r}, and becomes a checkpoint "
            "itself. Give a directory of its own.",
            field="path",
        )


def _is_temporary(name: str) -> bool:
    return name.startswith(files.TEMPORARY_PREFIX)


def _named_in(target: Path) -> set[str] | None:
    """Give the shards that the manifest of a directory names; None where it cannot be read."""
    try:
        return {entry.name for entry in manifests.read_manifest(target).shards}
    except CheckpointNotFoundError:
        return set()
    except GdsckptError:
        return None


@contextlib.contextmanager
def _removed_if_new(target: Path) -> Iterator[None]:
    """Remove a directory that was made for a fetch that failed."""
    is_new = not target.exists()
    try:
        yield
    except BaseException:
        if is_new:
            with contextlib.suppress(OSError):  # not made, or not empty
                target.rmdir()
        raise


@contextlib.contextmanager
def _without_leftovers(target: Path, manifest: Manifest) -> Iterator[None]:
    """Remove the shards of a fetch that failed, unless the directory's manifest may name them."""
    try:
        yield
    except BaseException as error:
        named = _named_in(target)
        for entry in manifest.shards if named is not None else ():
            if entry.name not in (named or ()):
                try:
                    (target / entry.name).unlink(missing_ok=True)
                except OSError as also:
                    error.add_note(f"Removing {target / entry.name} also failed: {also.strerror}.")
        raise
