"""A checkpoint directory: shards, and one commit point, the rename of ``manifest.json``."""

from __future__ import annotations

import contextlib
import datetime
import errno
import fcntl
import logging
import os
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gdsckpt.config import Config
from gdsckpt.engine import base
from gdsckpt.errors import CheckpointNotFoundError, GdsckptError, storage_error_from
from gdsckpt.format import manifest as manifest_format
from gdsckpt.format.manifest import MANIFEST_NAME, Manifest, ShardEntry
from gdsckpt.staging import files, manifests, writer
from gdsckpt.staging.content import ShardContent
from gdsckpt.staging.writer import WrittenShard

logger = logging.getLogger(__name__)

_SHARD_NAME = re.compile(r"rank-\d{5}\.[0-9a-f]{16}\.pt")


@dataclass(frozen=True, slots=True)
class SaveIdentity:
    """What a save says of itself.

    Attributes:
        step: Training step.
        created_by: Program and version.
        sequence: Number of the save in its root, 0 outside of any; see Manifest.
        metric: What the caller says of the step, finite; None for nothing.
    """

    step: int
    created_by: str
    sequence: int = 0
    metric: float | None = None


def shard_name(rank: int, attempt: str) -> str:
    """Name a shard; the attempt keeps a new save off the bytes that an old manifest names."""
    return f"rank-{rank:05d}.{attempt}.pt"


def write_directory(
    directory: Path,
    content: ShardContent,
    identity: SaveIdentity,
    config: Config,
    *,
    progress: base.Progress | None = None,
) -> tuple[Manifest, WrittenShard]:
    """Write a checkpoint of one rank; an older one in the same directory stays until the commit.

    Two saves into one directory wait for each other.

    Args:
        directory: Made if absent.
        content: What to write.
        identity: Step and origin.
        config: Settings.
        progress: Told about bytes written.

    Raises:
        StorageError: An operation failed; the directory's checkpoint is what it was.
    """
    with prepared(directory, config):
        attempt = secrets.token_hex(8)
        name = shard_name(0, attempt)
        with _removed_unless_committed(directory, attempt, name):
            written = writer.write_file(directory / name, content, config, progress=progress)
            manifest = manifest_of(identity, attempt, written)
            commit(directory, manifest_format.encode(manifest), config)
        remove_other_shards(directory, manifest)
    return manifest, written


def manifest_of(identity: SaveIdentity, attempt: str, written: WrittenShard) -> Manifest:
    """Make the manifest of a checkpoint of one rank, whose shard was written just now."""
    entry = ShardEntry(shard_name(0, attempt), written.nbytes, written.crc32, written.table_sha256)
    return Manifest(
        step=identity.step,
        attempt=attempt,
        world_size=1,
        created_by=identity.created_by,
        wall_time=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        engine=written.engine,
        engine_reasons=written.engine_reasons,
        shards=(entry,),
        sequence=identity.sequence,
        metric=identity.metric,
    )


@contextlib.contextmanager
def prepared(directory: Path, config: Config) -> Iterator[None]:
    """Make a checkpoint directory if it is absent, and keep other saves out of it meanwhile.

    Raises:
        StorageError: It cannot be made or opened.
    """
    make(directory, fsync=config.fsync)
    with _locked(directory):
        yield


def is_shard_name(name: str) -> bool:
    """Tell whether a file of this name is a shard that some save wrote."""
    return _SHARD_NAME.fullmatch(name) is not None


def abandoned_shards(directory: Path, manifest: Manifest | None) -> list[Path]:
    """List shards that no manifest names: of saves that were killed before their commit."""
    named = {shard.name for shard in manifest.shards} if manifest else set()
    return [
        path
        for path in sorted(directory.iterdir())
        if is_shard_name(path.name) and path.name not in named
    ]


def make(directory: Path, *, fsync: bool) -> None:
    """Make a directory durably, if it is absent.

    Raises:
        StorageError: It cannot be made: its parent is missing, or a file is there.
    """
    try:
        directory.mkdir()
    except FileExistsError as error:
        if directory.is_dir():
            # Its maker may have been killed before its sync. Who may only pass through the parent
            # can neither have made it nor sync it.
            if fsync and os.access(directory.parent, os.R_OK):
                files.sync_directory(directory.parent)
            return
        refused = NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        raise storage_error_from(refused, op="mkdir", path=str(directory)) from error
    except OSError as error:
        raise storage_error_from(error, op="mkdir", path=str(directory)) from error
    if fsync:
        files.sync_directory(directory.parent)


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise storage_error_from(error, op="open", path=str(directory)) from error
    try:
        with files.kept_from_children(fd):
            with contextlib.suppress(OSError):  # file systems without locks: nobody to wait for
                fcntl.flock(fd, fcntl.LOCK_EX)
            yield
    finally:
        os.close(fd)


@contextlib.contextmanager
def _removed_unless_committed(directory: Path, attempt: str, name: str) -> Iterator[None]:
    """Remove the shard of a save that failed, unless the manifest names it by then."""
    owner = os.getpid()
    try:
        yield
    except BaseException as error:
        if os.getpid() == owner and not _is_committed(directory, attempt):
            try:
                (directory / name).unlink(missing_ok=True)
            except OSError as also:
                error.add_note(f"removing {directory / name} also failed: {also}")
        raise


def _is_committed(directory: Path, attempt: str) -> bool:
    """Tell whether the manifest may name an attempt; a manifest that cannot be read may."""
    try:
        return manifests.read_manifest(directory).attempt == attempt
    except CheckpointNotFoundError:
        return False
    except GdsckptError:
        return True


def commit(directory: Path, raw: bytes, config: Config) -> None:
    """Put a manifest in place: from now on it is the directory's checkpoint.

    Args:
        directory: A prepared directory that has the shards.
        raw: The encoded manifest.
        config: Settings.

    Raises:
        StorageError: It was not, unless ``path`` of the error is the directory.
    """
    target = directory / MANIFEST_NAME
    with files.temporary_file(target) as (fd, temporary):
        try:
            files.write_all(fd, raw)
        except OSError as error:
            raise storage_error_from(error, op="pwrite", path=str(target)) from error
        if config.fsync:
            files.sync_data(fd, str(target))
        files.rename_durably(temporary, target, fsync=config.fsync)


def remove_other_shards(directory: Path, manifest: Manifest) -> None:
    """Remove what the manifest does not name; the save has succeeded, whatever comes of this."""
    try:
        for path in abandoned_shards(directory, manifest):
            path.unlink(missing_ok=True)
    except OSError as error:
        logger.warning("old shards stay in %s: %s", directory, error)
    files.remove_leftovers(directory)
