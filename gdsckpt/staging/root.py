"""A root: a directory of checkpoints named by their steps, and what state each is in."""

from __future__ import annotations

import dataclasses
import errno
import os
import re
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gdsckpt.errors import (
    CheckpointNotFoundError,
    FormatError,
    StorageError,
    UnsupportedVersionError,
    storage_error_from,
)
from gdsckpt.format.manifest import Manifest, ShardEntry
from gdsckpt.staging import directory, files, manifests

PRIVATE_NAME = ".gdsckpt"
"""Directory in a root for what is no step: the lock, what is set aside, what is being deleted."""

COMPLETE = "complete"
TORN = "torn"
DAMAGED = "damaged"
SUPERSEDED = "superseded"
UNREADABLE = "unreadable"
FOREIGN = "foreign"

STEP_DIGITS = 64
STEP_END = 10**STEP_DIGITS
"""Above every step that can be named; file names end somewhere."""

_STEP_NAME = re.compile(rf"step-([0-9]{{8,{STEP_DIGITS}}})")
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEntry:
    """One step directory of a root.

    Attributes:
        step: By the directory's name.
        path: The directory.
        manifest: What its manifest says; None where there is none that can be used.
        state: ``complete``; ``torn`` (no manifest: no save was completed); ``damaged`` (not as its
            manifest says, or that is damaged); ``superseded`` (complete, but training went back to
            before it and saved again); ``unreadable`` (the operating system refuses, or a later
            gdsckpt wrote it); ``foreign`` (no manifest, and files that no save of ours makes).
        reason: Why it is not complete; empty where it is.
        nbytes: Bytes of its shards; of all its files where it is not complete.
    """

    step: int
    path: Path
    manifest: Manifest | None
    state: str
    reason: str
    nbytes: int

    @property
    def sequence(self) -> int:
        """Order of its save among those of the root; 0 where it is not known."""
        return 0 if self.manifest is None else self.manifest.sequence

    @property
    def metric(self) -> float | None:
        """What its saver measured it by, if anything."""
        return None if self.manifest is None else self.manifest.metric


def step_directory(root: str | os.PathLike[str], step: int) -> Path:
    """Give the directory of a step."""
    return Path(root) / f"step-{step:08d}"


def step_of(name: str) -> int | None:
    """Give the step that a directory's name stands for; None for any other name."""
    found = _STEP_NAME.fullmatch(name)
    if found is None:
        return None
    step = int(found.group(1))
    return step if step_directory("", step).name == name else None


def private_directory(root: str | os.PathLike[str]) -> Path:
    """Give the directory of a root that holds what is no step."""
    return Path(root) / PRIVATE_NAME


def make_private(root: str | os.PathLike[str], *names: str, fsync: bool = True) -> Path:
    """Make a directory below the private one, durably, and give it.

    Raises:
        StorageError: It cannot be made.
    """
    made = Path(root)
    for name in (PRIVATE_NAME, *names):
        made = made / name
        directory.make(made, fsync=fsync)
    return made


def scan(root: str | os.PathLike[str]) -> tuple[StepEntry, ...]:
    """List the steps of a root in ascending order, without reading any shard.

    A step is complete when its manifest is whole and names it, and each shard is a regular file of
    the size that the manifest says. Names that are no directories are left out.

    Raises:
        CheckpointNotFoundError: There is no such directory.
        StorageError: It cannot be listed.
    """
    try:
        names = os.listdir(root)  # noqa: PTH208 - plain names, undecodable ones too
    except (FileNotFoundError, NotADirectoryError) as error:
        raise CheckpointNotFoundError(
            f"no checkpoints at {os.fspath(root)}: there is no such directory.", path=root
        ) from error
    except OSError as error:
        raise storage_error_from(error, op="listdir", path=root) from error
    steps = sorted((step, name) for name in names if (step := step_of(name)) is not None)
    found = [look(step, Path(root) / name) for step, name in steps]
    return _with_superseded([entry for entry in found if entry is not None])


def complete(entries: Iterable[StepEntry]) -> tuple[StepEntry, ...]:
    """Give those that can be loaded, in the same order."""
    return tuple(entry for entry in entries if entry.state == COMPLETE)


def newest(entries: Iterable[StepEntry]) -> StepEntry | None:
    """Give the complete entry of the highest step, or None."""
    return max(complete(entries), key=lambda entry: entry.step, default=None)


def next_sequence(entries: Iterable[StepEntry]) -> int:
    """Give the sequence number of the next save into a root."""
    return 1 + max((entry.sequence for entry in entries), default=0)


def look(step: int, path: Path) -> StepEntry | None:
    """Look at one step alone; None where it is no directory, or gone.

    It is not told whether it is superseded.
    """
    try:
        if not stat.S_ISDIR(path.stat().st_mode):
            return None
        manifest = manifests.read_manifest(path)
    except CheckpointNotFoundError:
        return _without_manifest(step, path)
    except UnsupportedVersionError as error:
        return _not_complete(step, path, UNREADABLE, str(error))
    except FormatError as error:
        return _not_complete(step, path, DAMAGED, str(error))
    except StorageError as error:
        return _not_complete(step, path, UNREADABLE, str(error))
    except OSError as error:
        if error.errno in _ABSENT:
            return None
        return _not_complete(step, path, UNREADABLE, f"{path}: {os.strerror(error.errno or 0)}")
    if manifest.step != step:
        why = f"its manifest names step {manifest.step}: the directory was renamed"
        return _not_complete(step, path, DAMAGED, why)
    state, reason = _check_shards(path, manifest)
    if state != COMPLETE:
        return dataclasses.replace(_not_complete(step, path, state, reason), manifest=manifest)
    nbytes = sum(shard.nbytes for shard in manifest.shards)
    return StepEntry(
        step=step, path=path, manifest=manifest, state=COMPLETE, reason="", nbytes=nbytes
    )


def _without_manifest(step: int, path: Path) -> StepEntry | None:
    try:
        names = sorted(os.listdir(path))  # noqa: PTH208
    except FileNotFoundError:
        return None  # pruned since the root was listed
    except OSError as error:
        return _not_complete(step, path, UNREADABLE, f"{path}: {os.strerror(error.errno or 0)}")
    others = [name for name in names if not is_made_by_saves(name)]
    if others:
        why = f"it has no manifest, and files such as {others[0]!r} that no save makes"
        return _not_complete(step, path, FOREIGN, why)
    return _not_complete(step, path, TORN, "it has no manifest: no save into it was completed")


def is_made_by_saves(name: str) -> bool:
    """Tell whether a file of this name, beside a manifest, is one that saves make."""
    return directory.is_shard_name(name) or name.startswith(files.TEMPORARY_PREFIX)


def _not_complete(step: int, path: Path, state: str, reason: str) -> StepEntry:
    return StepEntry(
        step=step,
        path=path,
        manifest=None,
        state=state,
        reason=reason,
        nbytes=bytes_below(path),
    )


def bytes_below(path: Path) -> int:
    """Give the bytes of the regular files in a directory, as far as they can be seen."""
    total = 0
    for where, _, names in os.walk(path):
        for name in names:
            try:
                info = os.lstat(os.path.join(where, name))  # noqa: PTH118
            except OSError:
                continue
            total += info.st_size if stat.S_ISREG(info.st_mode) else 0
    return total


def _check_shards(path: Path, manifest: Manifest) -> tuple[str, str]:
    """Give (state, reason) by the sizes of the shards."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        return UNREADABLE, f"{path}: {os.strerror(error.errno or 0)}"
    try:
        for shard in manifest.shards:
            state, reason = _check_shard(fd, shard)
            if reason:
                return state, reason
    finally:
        os.close(fd)
    return COMPLETE, ""


def _check_shard(fd: int, shard: ShardEntry) -> tuple[str, str]:
    try:
        info = os.stat(shard.name, dir_fd=fd, follow_symlinks=False)
    except OSError as error:
        # EIO or ESTALE may pass; only what is not there is known to be lost.
        state = DAMAGED if error.errno in _ABSENT else UNREADABLE
        return state, f"its shard {shard.name}: {os.strerror(error.errno or 0)}"
    if not stat.S_ISREG(info.st_mode):
        return DAMAGED, f"its shard {shard.name} is no regular file"
    if info.st_size != shard.nbytes:
        why = f"its shard {shard.name} has {info.st_size} bytes, not {shard.nbytes}"
        return DAMAGED, why
    return COMPLETE, ""


def _with_superseded(entries: Sequence[StepEntry]) -> tuple[StepEntry, ...]:
    """Mark the steps of branches that training left.

    A later save of an earlier step counts even where its shards are damaged: the branch was left
    all the same.
    """
    marked = []
    latest: StepEntry | None = None
    for entry in entries:
        is_left = latest is not None and 0 < entry.sequence < latest.sequence
        if latest is not None and is_left and entry.state == COMPLETE:
            reason = f"training went back and saved step {latest.step} after it"
            marked.append(dataclasses.replace(entry, state=SUPERSEDED, reason=reason))
        else:
            marked.append(entry)
        if latest is None or entry.sequence > latest.sequence:
            latest = entry
    return tuple(marked)
