"""Shards that a manifest lists: opening them, and refusing those that are not as it says."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator

from gdsckpt.errors import CheckpointNotFoundError, ConfigError, FormatError, storage_error_from
from gdsckpt.format.manifest import Manifest, ShardEntry
from gdsckpt.staging import manifests, reader
from gdsckpt.staging.shard import TABLE_NAME, Shard


@contextlib.contextmanager
def open_only_shard(
    directory: str | os.PathLike[str], *, direct_io: str = "auto"
) -> Iterator[Shard]:
    """Open the shard of a checkpoint that one rank wrote; it is not pruned meanwhile.

    Raises:
        ConfigError: The checkpoint has several ranks.
    """
    tried = ""
    with contextlib.ExitStack() as stack:
        while True:
            raw = stack.enter_context(manifests.being_read(directory))
            manifest = manifests.decode_manifest(directory, raw)
            require_one_rank(directory, manifest)
            try:
                listed = open_listed_shard(directory, manifest.shards[0], direct_io=direct_io)
                shard = stack.enter_context(listed)
                break
            except CheckpointNotFoundError:
                # A save that was committed meanwhile removes the shards of the one before.
                if manifest.attempt == tried:
                    raise
                tried = manifest.attempt
        yield shard


def require_one_rank(directory: str | os.PathLike[str], manifest: Manifest) -> None:
    """Refuse a checkpoint of several ranks where one shard is to be loaded.

    Raises:
        ConfigError: It has several.
    """
    if len(manifest.shards) != 1:
        names = ", ".join(shard.name for shard in manifest.shards[:3])
        raise ConfigError(
            f"{os.fspath(directory)} was written by {manifest.world_size} ranks ({names}, ...). "
            "Pass one of its shards.",
            field="f",
        )


@contextlib.contextmanager
def open_listed_shard(
    directory: str | os.PathLike[str], entry: ShardEntry, *, direct_io: str = "auto"
) -> Iterator[Shard]:
    """Open a shard as the manifest names it: in its directory, links not followed.

    Raises:
        CheckpointNotFoundError: The shard is missing.
        FormatError: It has not the size or the chunk table that the manifest names.
    """
    try:
        dir_fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise storage_error_from(error, op="open", path=os.fspath(directory)) from error
    try:
        with reader.open_shard(entry.name, direct_io=direct_io, dir_fd=dir_fd) as shard:
            path = os.path.join(directory, entry.name)  # noqa: PTH118 - only shown
            require_as_listed(shard, entry, path)
            yield shard
    finally:
        os.close(dir_fd)


def require_as_listed(shard: Shard, entry: ShardEntry, path: str) -> None:
    """Refuse a shard that has not the size or the chunk table that the manifest names.

    Args:
        shard: An open shard.
        entry: What the manifest says of it.
        path: For messages.

    Raises:
        FormatError: It is another one, or damaged.
    """
    if shard.nbytes != entry.nbytes:
        raise FormatError(
            f"{path} has {shard.nbytes} bytes, but the manifest names {entry.nbytes}. "
            "Use another checkpoint.",
            path=path,
            offset=min(shard.nbytes, entry.nbytes),
        )
    index = shard.find(TABLE_NAME)
    table = b"" if index is None else shard.read_record(index)
    if hashlib.sha256(table).hexdigest() != entry.table_sha256:
        raise not_as_listed(shard.path)


def not_as_listed(path: str) -> FormatError:
    """Build the error for a shard that is whole in itself, but not the one of the manifest."""
    return FormatError(
        f"{path} is not the shard that the manifest names: its checksum differs. "
        "Use another checkpoint.",
        path=path,
        offset=0,
    )
