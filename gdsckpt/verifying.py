"""Verify files and directories: every byte against its checksum, without torch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gdsckpt.config import Config
from gdsckpt.engine.base import Engine, Progress
from gdsckpt.engine.pinned import shared_engine
from gdsckpt.errors import CheckpointNotFoundError, FormatError, ShortTransferError
from gdsckpt.format.manifest import Manifest, ShardEntry
from gdsckpt.format.zipfmt import LOCAL_SIGNATURE
from gdsckpt.remote.opening import REMOVED, OpenedObject, Place, open_object, open_place
from gdsckpt.report import Damage, VerifyReport
from gdsckpt.staging import files, indexing, listed_shards, manifests, reader, scanning
from gdsckpt.staging.shard import Origin, Shard, read_at
from gdsckpt.store import is_url


def verify(
    path: str | os.PathLike[str],
    *,
    config: Config | Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> VerifyReport:
    """Check every byte of a file or checkpoint directory against its checksums.

    Args:
        path: A file, or a directory with a ``manifest.json``; or the URL of either, which is
            received whole, but not kept.
        config: Settings; also read from ``GDSCKPT_*``.
        progress: Called with (bytes done, bytes in all) now and then; per shard.

    Returns:
        ``ok`` is True (whole), False (see ``damaged``), or None: a file that gdsckpt did not write,
        whose zip checksums, where it has any, are right.

    Raises:
        CheckpointNotFoundError: There is nothing at ``path``.
        FormatError: It is no checkpoint of any kind.
        StorageError: Reading failed.
        StoreError: The object store failed, or the object was replaced meanwhile.
    """
    settings = Config.resolve(config, os.environ)
    if is_url(path):
        with open_place(str(path), settings) as place:
            return _verify_place(place, settings, progress)
    shown = files.local_path(path)
    if os.path.isdir(shown):  # noqa: PTH112 - Path.is_dir raises for names that are too long
        return _verify_directory(shown, settings, progress)
    try:
        with reader.open_shard(path, direct_io=settings.direct_io) as shard:
            return _verify_shard(shard, settings, progress)[0]
    except (FormatError, ShortTransferError) as error:
        if isinstance(error, _NotACheckpointError) or not Path(path).is_file():
            raise
        return _damaged_report(shown, error, _size_of(shown))


class _NotACheckpointError(FormatError):
    """Raised for files of another kind: there is nothing to verify."""


def _verify_shard(
    shard: Shard, config: Config, progress: Progress | None, remote: OpenedObject | None = None
) -> tuple[VerifyReport, int | None]:
    """Verify an open file; gives the report and, for our own files, the CRC-32 of all of it."""
    if shard.origin is Origin.NO_ZIP:
        return _verify_legacy(shard), None
    if shard.origin is Origin.FOREIGN_ZIP and shard.find("data.pkl") is None:
        raise _NotACheckpointError(
            f"{shard.path} is no torch checkpoint: it is a zip file without data.pkl. Pass a file "
            "that torch.save or gdsckpt.save wrote.",
            path=shard.path,
            offset=0,
        )
    # Whatever engine is asked for: all of it is read to the host, to be compared.
    engine: Engine = shared_engine(config, scanning.slab_bytes_for(shard))
    if remote is not None and shard.origin is Origin.GDSCKPT:
        engine = remote.engine
    elif remote is not None:
        remote.provide_all(progress)  # one request for many records
    found = scanning.scan(shard, engine, progress)
    ok: bool | None = True
    reason = ""
    if found.damaged:
        ok = False
        reason = f"{len(found.damaged)} damaged: {found.damaged[0]}"
    elif shard.origin is Origin.FOREIGN_ZIP:
        ok = None
        reason = "not written by gdsckpt: " + (
            f"{found.num_unchecked} records carry no checksum that can be compared"
            if found.num_unchecked
            else "zip checksums are right, all other bytes have none"
        )
    return (
        VerifyReport(
            path=shard.path,
            ok=ok,
            reason=reason,
            nbytes=shard.nbytes,
            checked_bytes=found.checked_bytes,
            num_chunks=found.num_chunks,
            damaged=found.damaged,
        ),
        found.crc32,
    )


def _verify_legacy(shard: Shard) -> VerifyReport:
    try:
        indexing.require_legacy(shard)
    except FormatError as error:
        if read_at(shard.fd, shard.path, 0, min(4, shard.nbytes)) == LOCAL_SIGNATURE:
            raise  # a zip archive that was cut short is damaged
        raise _NotACheckpointError(str(error), path=shard.path, offset=0) from None
    return VerifyReport(
        path=shard.path,
        ok=None,
        reason="a legacy torch file, which carries no checksums",
        nbytes=shard.nbytes,
        checked_bytes=0,
        num_chunks=0,
    )


def _verify_directory(path: str, config: Config, progress: Progress | None) -> VerifyReport:
    try:
        with manifests.being_read(path) as raw:
            manifest = manifests.decode_manifest(path, raw)
            shards = tuple(
                _verify_listed(path, entry, config, progress) for entry in manifest.shards
            )
            if not all(shard.ok for shard in shards) and _is_outdated(path, manifest):
                return _verify_directory(path, config, progress)
    except CheckpointNotFoundError:
        raise
    except FormatError as error:
        return _damaged_report(path, error, 0)
    return _report_of_all(path, shards)


def _report_of_all(path: str, shards: tuple[VerifyReport, ...]) -> VerifyReport:
    """Sum up the reports of a checkpoint's shards."""
    bad = [shard for shard in shards if not shard.ok]
    return VerifyReport(
        path=path,
        ok=not bad,
        reason=f"{len(bad)} of {len(shards)} shards damaged: {bad[0].reason}" if bad else "",
        nbytes=sum(shard.nbytes for shard in shards),
        checked_bytes=sum(shard.checked_bytes for shard in shards),
        num_chunks=sum(shard.num_chunks for shard in shards),
        damaged=tuple(damage for shard in shards for damage in shard.damaged),
        shards=shards,
    )


def _is_outdated(path: str, manifest: Manifest) -> bool:
    """Tell whether another save was committed meanwhile, which removes the shards of this one."""
    try:
        return manifests.read_manifest(path).attempt != manifest.attempt
    except FormatError:
        return False


def _verify_listed(
    path: str, entry: ShardEntry, config: Config, progress: Progress | None
) -> VerifyReport:
    shown = os.path.join(path, entry.name)  # noqa: PTH118 - only shown
    try:
        with listed_shards.open_listed_shard(path, entry, direct_io=config.direct_io) as shard:
            report, crc32 = _verify_shard(shard, config, progress)
            if report.ok is False:
                return report
            if crc32 != entry.crc32:
                raise listed_shards.not_as_listed(shard.path)
            return report
    except (FormatError, ShortTransferError, CheckpointNotFoundError) as error:
        return _damaged_report(shown, error, _size_of(shown))


def _verify_place(place: Place, config: Config, progress: Progress | None) -> VerifyReport:
    """Verify what an URL names."""
    if place.source is not None:
        try:
            with open_object(place.source, place.crew) as opened:
                return _verify_shard(opened.shard, config, progress, opened)[0]
        except FormatError as error:
            if isinstance(error, _NotACheckpointError):
                raise
            return _damaged_report(place.url, error, place.source.nbytes)
    try:
        manifest = place.manifest
    except FormatError as error:
        return _damaged_report(place.url, error, 0)
    shards = tuple(_verify_object(place, entry, config, progress) for entry in manifest.shards)
    newer = None if all(shard.ok for shard in shards) else place.newer()
    if newer is not None:
        return _verify_place(newer, config, progress)
    return _report_of_all(place.url, shards)


def _verify_object(
    place: Place, entry: ShardEntry, config: Config, progress: Progress | None
) -> VerifyReport:
    """Verify a shard that the manifest of a checkpoint in a store names."""
    url = f"{place.url}/{entry.name}"
    nbytes = 0
    try:
        source = place.find(entry)
        nbytes = source.nbytes
        with place.open_listed(entry, source) as opened:
            report, crc32 = _verify_shard(opened.shard, config, progress, opened)
            if report.ok is False:
                return report
            if crc32 != entry.crc32:
                raise listed_shards.not_as_listed(url)
            return report
    except (FormatError, *REMOVED) as error:
        return _damaged_report(url, error, nbytes)


def _size_of(path: str) -> int:
    """Give a file's size, 0 where it is missing or gone since."""
    try:
        return Path(path).stat().st_size
    except OSError:
        return 0


def _damaged_report(path: str, error: Exception, nbytes: int) -> VerifyReport:
    """Report damage that keeps a file of some size from being read any further."""
    offset = getattr(error, "offset", None) or 0
    damage = Damage(
        path=path, offset=offset, nbytes=max(0, nbytes - offset), tensors=(), what=str(error)
    )
    return VerifyReport(
        path=path,
        ok=False,
        reason=str(error),
        nbytes=nbytes,
        checked_bytes=0,
        num_chunks=0,
        damaged=(damage,),
    )
