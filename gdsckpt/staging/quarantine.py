"""What crashes and damage leave in a root: set aside by one rename, deleted where that is safe."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gdsckpt.errors import GdsckptError, storage_error_from
from gdsckpt.format.manifest import Manifest
from gdsckpt.staging import directory, files, manifests, pruning
from gdsckpt.staging import root as roots
from gdsckpt.staging.root import DAMAGED, SUPERSEDED, TORN, StepEntry

QUARANTINE_NAME = "quarantine"

SUPERSEDED_KEPT = 3
"""How many superseded steps stay set aside."""

_NAME = re.compile(rf"({TORN}|{DAMAGED}|{SUPERSEDED})\.(.+)\.[0-9a-f]{{8}}", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found in a root, and what became of it.

    Attributes:
        path: Where it is now, or was.
        what: What was done, such as ``removed``.
        why: Why.
        state: Of a step: in which it was found; else empty.
    """

    path: Path
    what: str
    why: str
    state: str = ""

    def __str__(self) -> str:
        """Give it as a line of a log."""
        return f"{self.path}: {self.what}: {self.why}"


@dataclass(frozen=True, slots=True)
class SetAside:
    """A directory that was set aside.

    Attributes:
        path: The directory.
        kind: ``torn``, ``damaged`` or ``superseded``.
        step: By its old name.
        manifest: What its manifest says, where that can be read.
        nbytes: Bytes of its files.
    """

    path: Path
    kind: str
    step: int
    manifest: Manifest | None
    nbytes: int

    @property
    def sequence(self) -> int:
        """Order of its save among those of the root; 0 where it is not known."""
        return 0 if self.manifest is None else self.manifest.sequence


def set_aside(
    root: str | os.PathLike[str],
    entry_path: str | os.PathLike[str],
    kind: str,
    *,
    fsync: bool = True,
) -> Path:
    """Take a step off a root, but keep it; gives where it is now.

    Args:
        root: The root, whose lock the caller has.
        entry_path: The step's directory.
        kind: ``torn``, ``damaged`` or ``superseded``.
        fsync: Whether it is to be durable.

    Raises:
        StorageError: It is where it was; or a sync failed, then a power failure may move it back.
    """
    path = Path(entry_path)
    where = roots.make_private(root, QUARANTINE_NAME, fsync=fsync)
    return pruning.move(path, where / f"{kind}.{path.name}.{secrets.token_hex(4)}", fsync=fsync)


def entries(root: str | os.PathLike[str]) -> tuple[SetAside, ...]:
    """List what is set aside, by step, the latest save of a step last.

    Raises:
        StorageError: It cannot be listed.
    """
    where = roots.private_directory(root) / QUARANTINE_NAME
    try:
        names = os.listdir(where)  # noqa: PTH208 - plain names, undecodable ones too
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except OSError as error:
        raise storage_error_from(error, op="listdir", path=where) from error
    found = []
    for name in names:
        match = _NAME.fullmatch(name)
        step = roots.step_of(match.group(2)) if match else None
        if match and step is not None:
            path = where / name
            nbytes = roots.bytes_below(path)
            found.append(SetAside(path, match.group(1), step, _manifest_of(path), nbytes))
    return tuple(sorted(found, key=lambda entry: (entry.step, entry.sequence, entry.path)))


def set_aside_superseded(
    root: str | os.PathLike[str],
    found: Iterable[StepEntry] | None = None,
    *,
    fsync: bool = True,
) -> list[Finding]:
    """Set the steps aside that belong to branches which training left.

    To be called after a save that went back, before the step is pruned that it went back to: a step
    is known to be superseded only as long as an earlier one with a later save is there.

    Args:
        root: The root, whose lock the caller has.
        found: Its entries as scanned just now; None scans.
        fsync: Whether it is to be durable.
    """
    scanned = roots.scan(root) if found is None else found
    findings = []
    for entry in scanned:
        if entry.state == SUPERSEDED:
            findings.extend(_guarded(entry.path, partial(_aside, root, entry, fsync=fsync)))
    findings.extend(_thin_out(root, fsync=fsync))
    return findings


def recover(root: str | os.PathLike[str], *, fsync: bool = True) -> list[Finding]:
    """Put a root in order after any crash; to be called with its lock held, before the first save.

    Torn steps are set aside, and deleted the next time. Leftovers in complete steps are removed.
    Damaged steps are set aside and never deleted. Superseded ones are set aside; of those the
    newest stay. What is being saved into by another process is left alone, and so is what cannot
    be moved: each finding says what was done and why.

    Raises:
        CheckpointNotFoundError: There is no such root.
        StorageError: It cannot be listed.
    """
    findings = [
        Finding(path, "deleted", "it was pruned, and its deletion did not come to its end")
        for path in pruning.delete_pruned(root)
    ]
    for old in entries(root):
        if old.kind == TORN:
            findings.extend(_guarded(old.path, partial(_drop, root, old, fsync=fsync)))
    scanned = roots.scan(root)
    for entry in scanned:
        if entry.state == roots.COMPLETE:
            findings.extend(_guarded(entry.path, partial(_tidied, entry)))
        elif entry.state in (TORN, DAMAGED):
            findings.extend(_guarded(entry.path, partial(_aside, root, entry, fsync=fsync)))
        elif entry.state != SUPERSEDED:
            findings.append(Finding(entry.path, "skipped", entry.reason, entry.state))
    return findings + set_aside_superseded(root, scanned, fsync=fsync)


def _guarded(path: Path, work: Callable[[], list[Finding]]) -> list[Finding]:
    """Do it; what is not possible for one step must not keep the trainer from starting."""
    try:
        return work()
    except pruning.InUseError as error:
        return [Finding(path, "left alone", f"it is in use: {error}")]
    except (GdsckptError, OSError) as error:
        return [Finding(path, "left alone", str(error))]


def _aside(root: str | os.PathLike[str], entry: StepEntry, *, fsync: bool) -> list[Finding]:
    with pruning.kept_off(entry.path):
        now = roots.look(entry.step, entry.path)
        if entry.state != SUPERSEDED and (now is None or now.state != entry.state):
            return []  # a save into it was completed since it was scanned
        moved = set_aside(root, entry.path, entry.state, fsync=fsync)
    return [Finding(moved, f"set aside as {entry.state}", entry.reason, entry.state)]


def _drop(root: str | os.PathLike[str], old: SetAside, *, fsync: bool) -> list[Finding]:
    pruning.discard(root, old.path, fsync=fsync)
    if old.kind == TORN:
        why = "its save was never completed"
    else:
        why = f"{SUPERSEDED_KEPT} newer superseded steps are set aside"
    return [Finding(old.path, "deleted", why)]


def _thin_out(root: str | os.PathLike[str], *, fsync: bool) -> Iterator[Finding]:
    """Delete all but the newest superseded steps."""
    left = [old for old in entries(root) if old.kind == SUPERSEDED]
    left.sort(key=lambda old: (old.sequence, old.step))
    for old in left[:-SUPERSEDED_KEPT]:
        yield from _guarded(old.path, partial(_drop, root, old, fsync=fsync))


def _tidied(entry: StepEntry) -> list[Finding]:
    """Remove from a complete step what killed saves into it left."""
    why = "a save that was killed left it"
    removed = files.remove_leftovers(entry.path)
    with pruning.locked(entry.path):
        for shard in directory.abandoned_shards(entry.path, manifests.read_manifest(entry.path)):
            shard.unlink(missing_ok=True)
            removed.append(shard)
    return [Finding(path, "removed", why) for path in removed]


def _manifest_of(path: Path) -> Manifest | None:
    try:
        return manifests.read_manifest(path)
    except (GdsckptError, OSError):
        return None
