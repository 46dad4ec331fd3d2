"""Open files for transfers, temporary files that are recognised, durable renames."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import io
import logging
import os
import re
import secrets
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gdsckpt import native, tracing
from gdsckpt.errors import ConfigError, StorageError, storage_error_from

logger = logging.getLogger(__name__)

TEMPORARY_PREFIX = ".gdsckpt-tmp-"
"""Names of files that are being written; never a checkpoint, whatever they hold."""

_USUAL_ALIGNMENT = 4096


def local_path(path: object) -> str:
    """Check a path that a caller gave.

    Raises:
        ConfigError: It is no path at all, empty, or has a NUL.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise ConfigError(
            f"a path is needed, got {type(path).__name__}. Pass a str or a Path.", field="f"
        )
    text = os.fsdecode(path)
    if not text or "\0" in text:
        raise ConfigError(f"{text!r} is no path: it is empty or has a NUL.", field="f")
    if not isinstance(path, str) and _BROKEN_URL.match(text):
        raise ConfigError(
            f"{text!r} was an URL before it became a path, which took a slash away. Pass it as a "
            "str.",
            field="f",
        )
    return text


_BROKEN_URL = re.compile(r"(s3|file|memory):/[^/]")


def temporary_directory() -> Path:
    """Give the directory for temporary files.

    Raises:
        StorageError: There is none that can be written.
    """
    try:
        return Path(tempfile.gettempdir())
    except OSError as error:
        raise StorageError(
            f"there is no directory for temporary files: {error.strerror}. Set TMPDIR to one that "
            "can be written.",
            op="open",
            errno=error.errno,
        ) from error


@dataclass(frozen=True, slots=True)
class OpenFile:
    """A file that transfers may use.

    Attributes:
        path: For messages.
        fd: Buffered descriptor.
        native: What the engine needs to know of it.
        direct_refused: Why there is no direct descriptor; empty where there is one.
    """

    path: str
    fd: int
    native: native.File
    direct_refused: str


@contextlib.contextmanager
def transfers_on(fd: int, path: str, *, writable: bool, direct_io: str) -> Iterator[OpenFile]:
    """Add a direct-I/O descriptor to an open regular file, for as long as the block lasts.

    The second descriptor is opened through ``/proc/self/fd``, so that it is the same file even
    when another one has been renamed over its name.

    Args:
        fd: Buffered descriptor; stays the caller's.
        path: For messages.
        writable: Open the direct descriptor for writing too.
        direct_io: ``"auto"`` or ``"off"``.
    """
    direct_fd, refused = _open_direct(fd, writable=writable, direct_io=direct_io)
    try:
        alignment = native.direct_alignment(fd) if direct_fd >= 0 else 0
        if direct_fd >= 0 and alignment == 0:
            refused = "the file system offers no direct I/O"
        usable_fd = direct_fd if alignment else -1
        file = native.File(path, fd, usable_fd, alignment or _USUAL_ALIGNMENT)
    finally:
        if direct_fd >= 0:
            os.close(direct_fd)
    _kept_files.add(file)
    try:
        yield OpenFile(path, fd, file, refused)
    finally:
        _kept_files.discard(file)
        file.close()


def directory_of(fd: int) -> Path | None:
    """Give the directory that an open file is in; None where it has no name, or none any more."""
    try:
        path = os.readlink(f"/proc/self/fd/{fd}")  # noqa: PTH115 - the text tells what it is
    except OSError:
        return None
    is_named = path.startswith("/") and not path.endswith(" (deleted)")
    return Path(path).parent if is_named else None


def _open_direct(fd: int, *, writable: bool, direct_io: str) -> tuple[int, str]:
    if direct_io == "off":
        return -1, "switched off by the setting direct_io=off"
    flags = (os.O_RDWR if writable else os.O_RDONLY) | os.O_DIRECT | os.O_CLOEXEC
    try:
        return os.open(f"/proc/self/fd/{fd}", flags), ""
    except OSError as error:
        return -1, f"open with O_DIRECT failed: {os.strerror(error.errno or 0)}"


@contextlib.contextmanager
def temporary_file(target: Path, *, sweep: bool = True) -> Iterator[tuple[int, Path]]:
    """Make a temporary file beside ``target``; it is gone after the block unless renamed.

    The descriptor holds a flock: a temporary file that nobody has locked is a leftover of a killed
    process, and is removed when the same target is saved again: by :func:`remove_leftovers_of`,
    which lists the directory, unless ``sweep`` is False.

    Yields:
        (descriptor open for reading and writing, path).

    Raises:
        StorageError: The directory is missing, full or read-only.
    """
    if sweep:
        remove_leftovers_of(target)
    owner = os.getpid()
    while True:
        # Named before it is made: an interrupt right after the open must not leave it behind.
        temporary = target.parent / f"{_temporary_stem(target)}{secrets.token_hex(8)}"
        try:
            with _create(temporary, target) as file, kept_from_children(file.fileno()):
                if not _lock(file.fileno()) or not os.fstat(file.fileno()).st_nlink:
                    _discard(temporary, owner)  # another save took it for a leftover
                    continue
                yield file.fileno(), temporary
                _discard(temporary, owner)
                return
        except BaseException as error:
            _discard(temporary, owner, error)
            raise


def _create(temporary: Path, target: Path) -> io.FileIO:
    try:
        return io.FileIO(temporary, "x+")  # mode 0666 less the umask, O_CLOEXEC
    except OSError as error:
        raise storage_error_from(error, op="open", path=str(target)) from error


def _discard(temporary: Path, owner: int, cause: BaseException | None = None) -> None:
    """Remove a temporary file if it still has its name; a failure never hides ``cause``."""
    if os.getpid() != owner:
        return  # a fork in mid-save: the file is the parent's
    try:
        temporary.unlink()
    except FileNotFoundError:  # renamed: the normal end
        return
    except OSError as error:
        text = f"removing {temporary} also failed: {error.strerror} (errno {error.errno})"
        if cause is None:
            logger.warning("%s", text)
        else:
            cause.add_note(text)


_kept_fds: set[int] = set()
_kept_files: set[native.File] = set()


@contextlib.contextmanager
def kept_from_children(fd: int) -> Iterator[None]:
    """Keep a locked descriptor out of children that are forked meanwhile.

    A flock belongs to all copies of a descriptor: a worker that outlives this process would hold
    the lock, and the next save would wait for it.
    """
    _kept_fds.add(fd)
    try:
        yield
    finally:
        _kept_fds.discard(fd)


def _let_go_in_child() -> None:
    """Put ``/dev/null`` in the place of the locked descriptors: their owners may yet close them."""
    while _kept_files:
        _kept_files.pop().abandon()
    if not _kept_fds:
        return
    with contextlib.suppress(OSError):
        null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        while _kept_fds:
            os.dup2(null, _kept_fds.pop(), inheritable=False)
        os.close(null)


os.register_at_fork(after_in_child=_let_go_in_child)


def _temporary_stem(target: Path) -> str:
    """Give the beginning of the names of a target's temporary files.

    A hash, since a target may have the longest name that the file system allows.
    """
    digest = hashlib.blake2b(os.fsencode(target.name), digest_size=8).hexdigest()
    return f"{TEMPORARY_PREFIX}{digest}-"


def _lock(fd: int) -> bool:
    """Take the lock that marks a temporary file as being written."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EAGAIN):
            return False
        logger.debug("flock refused fd=%d errno=%s", fd, error.errno)
        return True  # a file system without locks: nothing can tell, so nobody is in the way
    return True


def leftovers(directory: Path, stem: str = TEMPORARY_PREFIX) -> list[Path]:
    """List temporary files that no living process is writing.

    Args:
        directory: Where to look, not below.
        stem: Beginning of the names.
    """
    return _visit_leftovers(directory, stem, remove=False)


def remove_leftovers(directory: Path, stem: str = TEMPORARY_PREFIX) -> list[Path]:
    """Remove what :func:`leftovers` lists, and say so in the log."""
    return _visit_leftovers(directory, stem, remove=True)


def remove_leftovers_of(target: Path) -> None:
    """Remove the leftovers of one target, which stand beside it."""
    remove_leftovers(target.parent, _temporary_stem(target))


def _visit_leftovers(directory: Path, stem: str, *, remove: bool) -> list[Path]:
    try:
        candidates = sorted(directory.glob(f"{stem}*"))
    except OSError:
        return []
    return [path for path in candidates if _visit_leftover(path, remove=remove)]


def _visit_leftover(path: Path, *, remove: bool) -> bool:
    """Tell whether nobody writes ``path``; remove it while its lock is held, if asked."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return False
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if remove:
            path.unlink()
            logger.warning("removed %s, left by a save that was killed", path)
    except OSError:
        return False
    else:
        return True
    finally:
        os.close(fd)


def sync_data(fd: int, path: str) -> None:
    """Make a file's bytes and size durable. A failure means that the file is lost."""
    try:
        with tracing.stage("sync", os.fstat(fd).st_size):
            os.fdatasync(fd)
    except OSError as error:
        raise storage_error_from(error, op="fdatasync", path=path) from error


def rename_durably(source: Path, target: Path, *, fsync: bool) -> None:
    """Rename ``source`` over ``target`` and make the directory entry durable.

    Raises:
        StorageError: The rename failed: ``target`` is what it was. Or the sync of the directory
            failed: then the new file has its name, but may lose it in a power failure.
    """
    with tracing.stage("commit"):
        try:
            source.replace(target)
        except OSError as error:
            raise storage_error_from(error, op="rename", path=str(target)) from error
        if fsync:
            sync_directory(target.parent)


def sync_directory(directory: Path) -> None:
    """Make the entries of a directory durable."""
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise storage_error_from(error, op="open", path=str(directory)) from error
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network file systems cannot sync a directory
            raise storage_error_from(error, op="fsync", path=str(directory)) from error
        logger.debug("fsync of directory refused path=%s", directory)
    finally:
        os.close(fd)


def check_free_space(fd: int, path: str, nbytes: int) -> None:
    """Refuse a save that cannot fit, before anything is written.

    Raises:
        StorageError: ``errno`` is ENOSPC.
    """
    try:
        info = os.fstatvfs(fd)
    except OSError as error:
        raise storage_error_from(error, op="fstatvfs", path=path) from error
    free_bytes = info.f_bavail * info.f_frsize
    if info.f_blocks and free_bytes < nbytes:
        raise StorageError(
            f"save of {nbytes} bytes to {path} cannot fit: {free_bytes} bytes are free on its file "
            f"system (errno {errno.ENOSPC}). Free space there or save elsewhere.",
            op="save",
            path=path,
            offset=0,
            nbytes=nbytes,
            errno=errno.ENOSPC,
        )


def reserve(fd: int, path: str, nbytes: int) -> None:
    """Reserve disk space where the file system can.

    Raises:
        StorageError: It cannot be had, such as ENOSPC or EDQUOT; names the file, not its
            temporary name.
    """
    try:
        native.fallocate(fd, nbytes)
    except StorageError as error:
        raise storage_error_from(
            error, op="fallocate", path=path, offset=0, nbytes=nbytes
        ) from error


def set_mode(fd: int, path: str, mode: int) -> None:
    """Set the permission bits of an open file."""
    try:
        os.fchmod(fd, mode)
    except OSError as error:
        raise storage_error_from(error, op="fchmod", path=path) from error


def write_all(fd: int, raw: bytes | memoryview, offset: int = 0) -> None:
    """Write all of ``raw`` at ``offset``; short writes are continued, OSError is the caller's."""
    done = 0
    while done < len(raw):
        done += os.pwrite(fd, raw[done:], offset + done)


def append_all(fd: int, raw: bytes) -> None:
    """Write all of ``raw`` at the descriptor's position; OSError is the caller's."""
    view = memoryview(raw)
    while view:
        view = view[os.write(fd, view) :]
