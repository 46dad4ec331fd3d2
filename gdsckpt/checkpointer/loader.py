"""Load a step from its nearest copy, and the step before where a copy is damaged."""

from __future__ import annotations

import errno
import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gdsckpt.checkpointer.copies import Copies
from gdsckpt.errors import (
    CheckpointNotFoundError,
    DamagedCheckpointWarning,
    FormatError,
    GdsckptError,
    ObjectNotFoundError,
    ShortTransferError,
    StorageError,
    UnpickleError,
    UnsafePickleError,
    UnsupportedVersionError,
)
from gdsckpt.staging import quarantine

logger = logging.getLogger(__name__)

_GONE = (CheckpointNotFoundError, ObjectNotFoundError)

_SAME_EVERYWHERE = (UnpickleError, UnsafePickleError, UnsupportedVersionError)
"""No damage: every other copy would give it too."""

_DAMAGE = frozenset({errno.EIO, errno.EBADMSG, errno.EUCLEAN, errno.ENODATA, errno.EREMOTEIO})
"""What drives and file systems answer for bytes that they have lost.

Others, such as too many open files, say nothing of the copy: to go on from an older step for them
would throw training away.
"""


def is_damage(error: GdsckptError) -> bool:
    """Tell whether an error of a load says that this copy is not what was saved."""
    if isinstance(error, _SAME_EVERYWHERE):
        return False
    if isinstance(error, (FormatError, ShortTransferError)):
        return True
    return isinstance(error, StorageError) and error.errno in _DAMAGE


def load_newest(
    copies: tuple[Copies, ...], root: Path, read: Callable[[str], Any], *, only: bool = False
) -> tuple[int, Any]:
    """Read the newest step of which a copy is whole; damaged ones are said aloud and set aside.

    Args:
        copies: Ascending by step.
        root: The root, locked.
        read: Reads one place.
        only: Take the last of ``copies`` or none.

    Returns:
        The step, and what ``read`` gave.

    Raises:
        CheckpointNotFoundError: There is no step.
        GdsckptError: No copy could be used; the error is that of the newest.
    """
    failures: list[tuple[str, GdsckptError]] = []
    for copy in reversed(copies[-1:] if only else copies):
        for place in copy.places:
            try:
                found = read(place)
            except GdsckptError as error:
                if not isinstance(error, _GONE) and not is_damage(error):
                    raise
                failures.append((place, error))
                continue
            _report(failures, place, root)
            return copy.step, found
    if not failures:
        raise CheckpointNotFoundError(
            f"no complete step in {root}. 'gdsckpt ls' lists what is there.", path=root
        )
    first = failures[0][1]
    for place, other in failures[1:]:
        first.add_note(f"{place} could not be used either: {other}")
    raise first


def _report(failures: list[tuple[str, GdsckptError]], taken: str, root: Path) -> None:
    """Warn of the copies that could not be used, and set those of the root aside."""
    for place, error in failures:
        text = f"{place} cannot be used: {error} Loaded {taken} in its place."
        if is_damage(error) and Path(place).is_dir():
            try:
                aside = quarantine.set_aside(root, Path(place), "damaged")
                text += f" The damaged one was set aside as {aside}."
            except (GdsckptError, OSError) as also:
                text += f" It stays where it is, since setting it aside failed: {also}"
        logger.warning("%s", text)
        warnings.warn(text, DamagedCheckpointWarning, stacklevel=4)
