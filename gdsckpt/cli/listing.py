"""Find checkpoints and the leftovers of killed saves below a directory, without torch."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gdsckpt.cli.facts import kind_of
from gdsckpt.errors import (
    CheckpointNotFoundError,
    FormatError,
    GdsckptError,
    ShortTransferError,
    storage_error_from,
)
from gdsckpt.format.manifest import MANIFEST_NAME, Manifest
from gdsckpt.staging import directory as checkpoints
from gdsckpt.staging import files, listed_shards, manifests, reader
from gdsckpt.staging.shard import Origin, Shard, read_at

COMPLETE = "complete"
DAMAGED = "damaged structure"
LEFTOVER = "leftover"
NO_MANIFEST = "no manifest"
NO_CHECKPOINT = "no checkpoint"
UNREADABLE = "unreadable"
WRITING = "being written"

_ZIP_BEGINNING = b"PK\x03\x04"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One thing that was found.

    Attributes:
        path: As the user would name it.
        kind: ``checkpoint`` (a directory), a kind of file, ``temporary``, ``shard`` or ``other``.
        state: One of the constants of this module.
        reason: Why it is not complete; empty where it is.
        step: Training step, from a manifest.
        nbytes: Bytes of the file or of all shards of the directory.
        num_tensors: Named tensors; None where the file does not tell.
        engine: From a manifest.
        num_ranks: From a manifest.
        metric: From a manifest: what its saver measured the step by.
        modified_s: Time of the last change, seconds since 1970.
    """

    path: str
    kind: str
    state: str
    reason: str = ""
    step: int | None = None
    nbytes: int | None = None
    num_tensors: int | None = None
    engine: str | None = None
    num_ranks: int | None = None
    metric: float | None = None
    modified_s: float | None = None

    @property
    def age_s(self) -> float | None:
        """Seconds since the last change, at least 0."""
        return None if self.modified_s is None else max(0.0, time.time() - self.modified_s)

    def as_dict(self) -> dict[str, Any]:
        """Give all of it as values that JSON has."""
        return {**asdict(self), "age_s": self.age_s}


def rows_of(path: Path) -> list[Row]:
    """List what a path holds: a file, a checkpoint directory, or a directory of both.

    Raises:
        CheckpointNotFoundError: There is nothing at ``path``.
        StorageError: It cannot be looked at.
    """
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            names = sorted(os.listdir(path))  # noqa: PTH208 - plain names, undecodable ones too
    except FileNotFoundError as error:
        raise CheckpointNotFoundError(
            f"nothing at {path}: {os.strerror(errno.ENOENT)}. Check the path.", path=path
        ) from error
    except OSError as error:
        raise storage_error_from(error, op="stat", path=path) from error
    if not stat.S_ISDIR(mode):
        return [_file_row(path) if stat.S_ISREG(mode) else _special_row(path)]
    if _is_checkpoint(path, names):
        return _checkpoint_rows(path)
    rows: list[Row] = []
    for name in names:
        rows.extend(_entry_rows(path / name))
    return rows


def remove_leftovers(path: Path) -> list[Path]:
    """Remove the leftovers that :func:`rows_of` lists; gives what was removed.

    Files that a living process writes are kept, and so is everything in a directory whose manifest
    cannot be read: it may name them.
    """
    if not path.is_dir():
        return []
    below = [entry for entry in sorted(path.iterdir()) if not entry.is_symlink() and _is_dir(entry)]
    removed: list[Path] = []
    for where in (path, *below):
        removed.extend(files.remove_leftovers(where))
        removed.extend(_remove_abandoned(where))
    return removed


def _is_dir(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:
        return False


def _is_checkpoint(where: Path, names: list[str]) -> bool:
    return MANIFEST_NAME in names or bool(checkpoints.abandoned_shards(where, None))


def _remove_abandoned(where: Path) -> list[Path]:
    """Remove shards that no manifest names, while no save into the directory is under way."""
    removed: list[Path] = []
    try:
        with _lock(where, fcntl.LOCK_EX):
            for shard in _abandoned(where):
                shard.unlink()
                removed.append(shard)
    except (OSError, FormatError):  # being saved to, no locks, or a manifest that cannot be read
        return removed
    return removed


@contextlib.contextmanager
def _lock(where: Path, kind: int) -> Iterator[None]:
    """Hold the lock that a save into a directory holds, or raise BlockingIOError at once."""
    fd = os.open(where, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
        yield
    finally:
        os.close(fd)


def _abandoned(where: Path) -> list[Path]:
    manifest: Manifest | None
    try:
        manifest = manifests.read_manifest(where)
    except CheckpointNotFoundError:
        manifest = None
    return checkpoints.abandoned_shards(where, manifest)


def _entry_rows(path: Path) -> list[Row]:
    """Give the rows of one name in a directory; what is no checkpoint gives none."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        if error.errno == errno.ENOENT and not path.is_symlink():
            return []  # gone since the directory was read
        return [_unreadable(path, error)]
    if stat.S_ISDIR(mode):
        try:
            names = os.listdir(path)  # noqa: PTH208 - plain names, undecodable ones too
        except OSError as error:
            return [_unreadable(path, error)]
        if _is_checkpoint(path, names):
            return _checkpoint_rows(path)
        return _temporary_rows(path, names)
    if not stat.S_ISREG(mode):
        return []  # a pipe would block, a device may do anything
    row = _file_row(path)
    return [] if row.state == NO_CHECKPOINT else [row]


def _special_row(path: Path) -> Row:
    """Give the row of a pipe or device, which is not opened: it might block for ever."""
    reason = f"{path} is no regular file"
    return Row(path=str(path), kind="other", state=NO_CHECKPOINT, reason=reason)


def _temporary_rows(where: Path, names: list[str]) -> list[Row]:
    return [_file_row(where / n) for n in sorted(names) if n.startswith(files.TEMPORARY_PREFIX)]


def _checkpoint_rows(where: Path) -> list[Row]:
    """Give the row of a checkpoint directory, and one per leftover in it."""
    rows = [_checkpoint_row(where)]
    if not where.exists():
        return []  # pruned meanwhile
    rows.extend(_temporary_rows(where, os.listdir(where)))  # noqa: PTH208
    try:
        abandoned = _abandoned(where)
    except GdsckptError:
        return rows  # the damaged manifest is the row above; it may name these shards
    state, reason = LEFTOVER, "no manifest names it, so its save was not completed"
    if abandoned:
        try:
            with _lock(where, fcntl.LOCK_SH):
                abandoned = _abandoned(where)
        except OSError:
            state, reason = WRITING, "a save into the directory is under way"
    rows.extend(bare_row(path, "shard", state, reason) for path in abandoned)
    return rows


def _checkpoint_row(where: Path) -> Row:
    try:
        with manifests.being_read(where) as raw:
            manifest = manifests.decode_manifest(where, raw)
            return _manifest_row(where, manifest)
    except CheckpointNotFoundError:
        reason = f"{where} has no {MANIFEST_NAME}: no save into it was completed"
        return bare_row(where, "checkpoint", NO_MANIFEST, reason)
    except FormatError as error:
        return bare_row(where, "checkpoint", DAMAGED, str(error))
    except OSError as error:
        return _unreadable(where, error)


def _manifest_row(where: Path, manifest: Manifest) -> Row:
    state, reason, total = COMPLETE, "", 0
    for entry in manifest.shards:
        try:
            with listed_shards.open_listed_shard(where, entry) as shard:
                total += num_tensors(shard) or 0
        except (FormatError, ShortTransferError, CheckpointNotFoundError) as error:
            state, reason = DAMAGED, str(error)
        except OSError as error:
            return _unreadable(where, error)
    return dataclasses.replace(
        manifest_row(str(where), manifest),
        state=state,
        reason=reason,
        num_tensors=None if state == DAMAGED else total,
        modified_s=modified_s(where / MANIFEST_NAME),
    )


def manifest_row(path: str, manifest: Manifest) -> Row:
    """Give the row of a complete checkpoint, as far as its manifest tells."""
    return Row(
        path=path,
        kind="checkpoint",
        state=COMPLETE,
        step=manifest.step,
        nbytes=sum(entry.nbytes for entry in manifest.shards),
        engine=manifest.engine,
        num_ranks=manifest.world_size,
        metric=manifest.metric,
    )


def _file_row(path: Path) -> Row:
    if path.name.startswith(files.TEMPORARY_PREFIX):
        if path in files.leftovers(path.parent, path.name):
            reason = "a save was killed while it wrote this file"
            return bare_row(path, "temporary", LEFTOVER, reason)
        return bare_row(path, "temporary", WRITING, "a living process writes it")
    try:
        with reader.open_shard(path) as shard:
            return shard_row(str(path), shard, modified_s(path))
    except (FormatError, ShortTransferError) as error:
        return bare_row(path, "gdsckpt", DAMAGED, str(error))
    except OSError as error:
        return _unreadable(path, error)


def shard_row(path: str, shard: Shard, modified_s: float | None) -> Row:
    """Give the row of an open, indexed file.

    Args:
        path: As the user would name it.
        shard: The file.
        modified_s: Time of its last change.

    Raises:
        FormatError: Its chunk table is damaged.
    """
    kind, state, reason = _kind_and_state(path, shard)
    return Row(
        path=path,
        kind=kind,
        state=state,
        reason=reason,
        nbytes=shard.nbytes,
        num_tensors=num_tensors(shard) if state == COMPLETE else None,
        modified_s=modified_s,
    )


def _kind_and_state(path: str, shard: Shard) -> tuple[str, str, str]:
    try:
        kind = kind_of(shard)
    except FormatError as error:
        head = read_at(shard.fd, shard.path, 0, min(len(_ZIP_BEGINNING), shard.nbytes))
        if head == _ZIP_BEGINNING:
            return "zip", DAMAGED, str(error)
        return "other", NO_CHECKPOINT, str(error)
    if kind == "zip":
        reason = f"{path} is a zip archive without data.pkl, so torch did not write it"
        return kind, NO_CHECKPOINT, reason
    return kind, COMPLETE, ""


def num_tensors(shard: Shard) -> int | None:
    """Give the number of named tensors; None where the file does not tell."""
    return len(shard.read_table().tensors) if shard.origin is Origin.GDSCKPT else None


def _unreadable(path: Path, error: OSError) -> Row:
    why = f"{path}: {os.strerror(error.errno)}" if error.errno else str(error)
    return Row(path=str(path), kind="other", state=UNREADABLE, reason=why)


def bare_row(path: Path, kind: str, state: str, reason: str) -> Row:
    """Give the row of something of which no more is known."""
    is_file = path.is_file()
    return Row(
        path=str(path),
        kind=kind,
        state=state,
        reason=reason,
        nbytes=path.stat().st_size if is_file else None,
        modified_s=modified_s(path),
    )


def modified_s(path: Path) -> float | None:
    """Give the time of the last change, seconds since 1970; None where it cannot be told."""
    try:
        return path.stat().st_mtime
    except OSError:
        return None
