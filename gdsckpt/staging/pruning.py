"""Delete steps: one rename takes a step off the root, then its files go, whenever that is."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from gdsckpt.engine.fallback import warn_once
from gdsckpt.errors import storage_error_from
from gdsckpt.format.manifest import MANIFEST_NAME
from gdsckpt.staging import files, manifests
from gdsckpt.staging import root as roots

logger = logging.getLogger(__name__)

PRUNED_NAME = "pruned"

_HELD = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)


class InUseError(Exception):
    """Somebody reads a step or saves into it; not for users."""


def prune(
    root: str | os.PathLike[str], step_path: str | os.PathLike[str], *, fsync: bool = True
) -> bool:
    """Delete a step of a root, unless it is being read or saved into; never waits for that.

    A kill at any point leaves the whole step, or nothing that is listed; what is left of the latter
    goes with the next :func:`delete_pruned`.

    Args:
        root: The root, whose lock the caller has.
        step_path: A directory in it. A link is removed, not what it leads to.
        fsync: Whether the step's absence is to be durable before its files go.

    Returns:
        Whether it is gone from the root.

    Raises:
        StorageError: It cannot be taken off the root, or not durably: then its files stay.
    """
    path = Path(step_path)
    try:
        with kept_off(path):
            moved = take_off(root, path, fsync=fsync)
    except InUseError:
        return False
    except FileNotFoundError:
        return True
    _delete(moved)
    return True


def discard(root: str | os.PathLike[str], path: Path, *, fsync: bool = True) -> None:
    """Delete a directory that nobody reads, such as one that was set aside.

    Raises:
        StorageError: It is where it was, or its move may not be durable.
    """
    _delete(take_off(root, path, fsync=fsync))


def take_off(root: str | os.PathLike[str], path: Path, *, fsync: bool = True) -> Path:
    """Move a directory to where :func:`delete_pruned` deletes it, and give its new path.

    Raises:
        StorageError: It is where it was, or its move may not be durable.
    """
    target = roots.make_private(root, PRUNED_NAME, fsync=fsync)
    return move(path, target / f"{path.name}.{secrets.token_hex(4)}", fsync=fsync)


def move(source: Path, target: Path, *, fsync: bool) -> Path:
    """Rename a directory to a name that is not taken, durably on both sides, and give that.

    Raises:
        StorageError: It is where it was; or a sync failed, then a power failure may move it back.
    """
    try:
        source.rename(target)
    except OSError as error:
        raise storage_error_from(error, op="rename", path=source) from error
    if fsync:
        files.sync_directory(target.parent)
        files.sync_directory(source.parent)
    return target


def pruned(root: str | os.PathLike[str]) -> list[Path]:
    """List what was taken off a root and not deleted to its end."""
    where = roots.private_directory(root) / PRUNED_NAME
    try:
        return sorted(where.iterdir())
    except OSError:
        return []


def delete_pruned(root: str | os.PathLike[str]) -> list[Path]:
    """Delete what :func:`pruned` lists, which nobody needs; gives what is gone now."""
    return [path for path in pruned(root) if _delete(path)]


def _delete(path: Path) -> bool:
    try:
        if path.is_symlink() or not path.is_dir():
            path.unlink()
        else:
            shutil.rmtree(path)
    except FileNotFoundError:
        return True
    except OSError as error:
        logger.warning("a part of %s stays: %s", path, error)
        return False
    return True


@contextlib.contextmanager
def kept_off(path: Path) -> Iterator[None]:
    """Keep readers of a step and saves into it off while the block lasts.

    Raises:
        InUseError: There is one.
        FileNotFoundError: It is not there.
        StorageError: It cannot be opened.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(locked(path))
        manifest = path / MANIFEST_NAME
        try:
            fd = stack.enter_context(locked(manifest, os.O_RDWR | os.O_NONBLOCK))
        except FileNotFoundError:
            pass  # it never became a checkpoint
        else:
            if not manifests.is_at(manifest, fd):
                raise InUseError(f"{manifest} was replaced meanwhile")
        yield


@contextlib.contextmanager
def locked(path: Path, flags: int = os.O_RDONLY | os.O_DIRECTORY) -> Iterator[int]:
    """Lock a directory as saves do, or another file, at once; gives its descriptor.

    Raises:
        InUseError: It is locked.
        FileNotFoundError: It is not there.
        StorageError: It cannot be opened.
    """
    fd = _open(path, flags)
    try:
        with files.kept_from_children(fd):
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in _HELD:
                    raise InUseError(f"{path} is locked") from error
                warn_once(
                    f"no flock {os.fstat(fd).st_dev}",
                    f"{path} cannot be locked: {os.strerror(error.errno or 0)}. A step may be "
                    "deleted while it is read; readers then fail, and say so.",
                )
            yield fd
    finally:
        os.close(fd)


def _open(path: Path, flags: int) -> int:
    try:
        try:
            return os.open(path, flags | os.O_CLOEXEC)
        except PermissionError:
            # For writing it is opened for NFS only, which refuses exclusive locks otherwise.
            return os.open(path, (flags & ~os.O_RDWR) | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise storage_error_from(error, op="open", path=path) from error
