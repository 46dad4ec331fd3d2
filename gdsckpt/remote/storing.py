"""Write a state to an object store: to a temporary file first, so that memory stays bounded."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

from gdsckpt.config import Config
from gdsckpt.engine.base import Progress
from gdsckpt.errors import storage_error_from
from gdsckpt.format import manifest as manifest_format
from gdsckpt.remote.source import SourceFile, crcs_of, source_of
from gdsckpt.remote.uploader import open_uploader
from gdsckpt.staging import directory, files, indexing, writer
from gdsckpt.staging.content import ShardContent
from gdsckpt.staging.directory import SaveIdentity
from gdsckpt.staging.writer import WrittenShard


def write_object(
    url: str, content: ShardContent, config: Config, *, progress: Progress | None = None
) -> tuple[WrittenShard, float]:
    """Write a shard as the object at exactly this URL.

    Args:
        url: Of the object.
        content: What to write; its memory must not change until the function returns.
        config: Settings.
        progress: Told about bytes: the first half of them are written, the second half sent.

    Returns:
        What was written, and the seconds of the upload.

    Raises:
        StoreError: The store refused; what was at the URL is there still, unless a note says
            otherwise.
        StorageError: The temporary directory cannot take it.
    """
    with open_uploader(url, config) as uploader:
        uploader.require_key_of_object()
        with _written(content, config, progress) as (written, source):
            started = time.perf_counter()
            uploader.send(source, uploader.key, _second_half(progress, written.nbytes))
            upload_s = time.perf_counter() - started
            return dataclasses.replace(written, path=uploader.url), upload_s


def write_checkpoint(
    url: str,
    content: ShardContent,
    identity: SaveIdentity,
    config: Config,
    *,
    progress: Progress | None = None,
) -> tuple[WrittenShard, float]:
    """Write a checkpoint of one rank below an URL, its manifest last.

    Raises:
        CheckpointExistsError: There is an object at the URL.
        GdsckptError: As :func:`write_object`.
    """
    with open_uploader(url, config) as uploader:
        uploader.require_key_of_checkpoint()
        with _written(content, config, progress) as (written, source):
            started = time.perf_counter()
            attempt = secrets.token_hex(8)
            manifest = directory.manifest_of(identity, attempt, written)
            key = uploader.key_of(manifest.shards[0].name)
            told = _second_half(progress, written.nbytes)
            send = functools.partial(uploader.send, source, key, told)
            uploader.commit(manifest_format.encode(manifest), manifest, send)
            upload_s = time.perf_counter() - started
            return dataclasses.replace(written, path=uploader.url), upload_s


@contextlib.contextmanager
def _written(
    content: ShardContent, config: Config, progress: Progress | None
) -> Iterator[tuple[WrittenShard, SourceFile]]:
    """Write a shard to a file without a name, for as long as the block lasts.

    It is read again at once, so it goes through the page cache, and nothing waits for the drive.
    """
    quick = dataclasses.replace(config, engine="pinned", direct_io="off", fsync=False)
    target = files.temporary_directory() / f"gdsckpt-{secrets.token_hex(8)}.pt"
    try:
        written = writer.write_file(target, content, quick, progress=_first_half(progress))
        fd = _open(target)
    finally:
        target.unlink(missing_ok=True)
    try:
        with files.transfers_on(fd, str(target), writable=False, direct_io="off") as file:
            crcs = crcs_of(indexing.index_file(file))
            reason = "written to a temporary file, which was uploaded"
            source = source_of(file, crcs, is_named=False)
            yield dataclasses.replace(written, engine_reasons=(reason,)), source
    finally:
        os.close(fd)


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise storage_error_from(error, op="open", path=path) from error


def _first_half(progress: Progress | None) -> Progress | None:
    return None if progress is None else lambda done, total: progress(done, 2 * total)


def _second_half(progress: Progress | None, nbytes: int) -> Progress | None:
    return None if progress is None else lambda done, _: progress(nbytes + done, 2 * nbytes)
