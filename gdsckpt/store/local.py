"""Objects as plain files below a directory: a local drive, or a network file system."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from gdsckpt import native
from gdsckpt.errors import ConfigError, StoreError, storage_error_from
from gdsckpt.store import local_files as files
from gdsckpt.store import local_uploads as uploads
from gdsckpt.store.answers import Answer, Call, error_for
from gdsckpt.store.base import (
    ALWAYS,
    Condition,
    ListPage,
    ObjectInfo,
    Upload,
    UploadedPart,
)
from gdsckpt.store.checks import check_assembly, check_condition, check_digest, check_metadata
from gdsckpt.store.listing import check_delimiter
from gdsckpt.store.url import check_key

_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR)


class LocalStore:
    """A store whose objects are the files below a directory.

    The object ``a/b`` is the file ``b`` in the directory ``a``; other programs read and write it as
    any file. Checksum and metadata are kept in an extended attribute, where the file system has
    these, and hold until the file is changed.

    Beside the errors of ``Store`` its methods raise StorageError where the operating system
    refuses, such as ``errno`` ENOSPC.

    Args:
        root: The directory; made when it is first written to.
        fsync: Whether what was written survives a power loss.
    """

    def __init__(self, root: str | os.PathLike[str], *, fsync: bool = True) -> None:
        self._root = Path(root).absolute()
        self._fsync = fsync

    def __repr__(self) -> str:
        return f"LocalStore({self.url})"

    @property
    def url(self) -> str:
        """As ``Store``."""
        return f"file://{self._root}".removesuffix("/")

    def head(self, key: str) -> ObjectInfo:
        """As ``Store``."""
        call = Call("head", key)
        with self._errors_of(call), self._opened(call) as (fd, status):
            attributes = files.read_attributes(fd, status)
        return _info(key, status, attributes)

    def list_page(self, prefix: str = "", *, delimiter: str = "", token: str = "") -> ListPage:
        """As ``Store``; there is one page only."""
        check_delimiter(delimiter)
        call = Call("list_page", prefix)
        objects, prefixes = [], []
        with self._errors_of(call):
            for key, entry in self._entries(prefix, delimiter):
                if entry is None:
                    prefixes.append(key)
                    continue
                with contextlib.suppress(FileNotFoundError):
                    objects.append(_info(key, entry.stat(), files.Attributes()))
        return ListPage(tuple(objects), tuple(prefixes))

    def get_range(self, key: str, begin: int, into: memoryview, *, if_match: str = "") -> None:
        """As ``Store``."""
        call = Call("get_range", key, into.nbytes)
        self._path(key)
        if not into.nbytes:
            return
        with self._errors_of(call), self._opened(call) as (fd, status):
            if if_match and if_match != files.etag_of(status):
                raise self._refused(call, 412, "PreconditionFailed")
            if files.read_all(fd, begin, into) < into.nbytes:
                raise self._refused(call, 416, "InvalidRange")
            if if_match and if_match != files.etag_of(os.fstat(fd)):
                raise self._refused(call, 412, "PreconditionFailed")

    def put(
        self,
        key: str,
        body: memoryview,
        *,
        crc32: int,
        metadata: Mapping[str, str] | None = None,
        condition: Condition = ALWAYS,
    ) -> ObjectInfo:
        """As ``Store``."""
        call = Call("put", key, body.nbytes)
        target = self._path(key)
        check_digest(self.url, call, actual=native.crc32(body), expected=crc32)
        with self._errors_of(call):
            files.make_directories(target.parent, fsync=self._fsync)
            with files.temporary_file(target) as (fd, path):
                files.write_all(fd, body)
                attributes = files.Attributes(crc32, check_metadata(metadata))
                return self._commit(call, (fd, path), attributes, condition)

    def create_upload(self, key: str, *, metadata: Mapping[str, str] | None = None) -> Upload:
        """As ``Store``."""
        target = self._path(key)
        with self._errors_of(Call("create_upload", key)):
            files.make_directories(target.parent, fsync=self._fsync)
            return Upload(key, uploads.create(target, check_metadata(metadata)), "FULL_OBJECT")

    def put_part(
        self, upload: Upload, number: int, body: memoryview, *, crc32: int
    ) -> UploadedPart:
        """As ``Store``."""
        call = Call("put_part", upload.key, body.nbytes)
        check_digest(self.url, call, actual=native.crc32(body), expected=crc32)
        with self._errors_of(call):
            directory = self._pending(call, upload)
            return uploads.put_part(directory, number, body, crc32=crc32, fsync=self._fsync)

    def list_parts(self, upload: Upload) -> tuple[UploadedPart, ...]:
        """As ``Store``."""
        call = Call("list_parts", upload.key)
        with self._errors_of(call):
            return tuple(uploads.parts_of(self._pending(call, upload)).values())

    def complete_upload(
        self, upload: Upload, parts: Iterable[UploadedPart], *, nbytes: int, crc32: int
    ) -> None:
        """As ``Store``."""
        call = Call("complete_upload", upload.key)
        target, wanted = self._path(upload.key), tuple(parts)
        with self._errors_of(call):
            directory = self._pending(call, upload)
            there = uploads.parts_of(directory)
            check_assembly(self.url, call, wanted, there, (nbytes, crc32))
            attributes = files.Attributes(crc32, uploads.metadata_of(directory))
            with files.temporary_file(target) as (fd, path):
                uploads.append_parts(directory, tuple(there[p.number] for p in wanted), fd)
                self._commit(call, (fd, path), attributes, ALWAYS)
            uploads.remove(directory)

    def abort_upload(self, upload: Upload) -> None:
        """As ``Store``."""
        directory = uploads.directory_of(self._path(upload.key), upload.upload_id)
        with self._errors_of(Call("abort_upload", upload.key)):
            if directory is not None:
                uploads.remove(directory)

    def delete(self, key: str) -> None:
        """As ``Store``; the directories stay."""
        target = self._path(key)
        try:
            with self._errors_of(Call("delete", key)), files.locked_directory(target.parent) as fd:
                target.unlink()
                if self._fsync:
                    files.sync_directory(fd)
        except FileNotFoundError:
            return

    def interrupt(self) -> None:
        """As ``Store``: no call waits for anything but the drive."""

    def close(self) -> None:
        """As ``Store``."""

    def _path(self, key: str) -> Path:
        names = check_key(key).split("/")
        if "" in names or any(name.startswith(files.PREFIX) for name in names):
            raise ConfigError(
                f"{key!r} cannot be a key of {self.url}: it has an empty name, or one that begins "
                f"with {files.PREFIX}. Use another one.",
                field="key",
            )
        return self._root.joinpath(*names)

    @contextlib.contextmanager
    def _opened(self, call: Call) -> Iterator[tuple[int, os.stat_result]]:
        """Open an object for reading; what is no regular file is none."""
        # O_NONBLOCK: a pipe of that name must not be waited for.
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
        fd = os.open(self._path(call.key), flags)
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise self._refused(call, 404, "NoSuchKey")
            yield fd, status
        finally:
            os.close(fd)

    def _commit(
        self,
        call: Call,
        written: tuple[int, Path],
        attributes: files.Attributes,
        condition: Condition,
    ) -> ObjectInfo:
        """Give a written temporary file the object's name, if the condition holds."""
        fd, path = written
        target = self._path(call.key)
        files.write_attributes(fd, attributes)
        if self._fsync:
            os.fsync(fd)
        with files.locked_directory(target.parent) as directory_fd:
            check_condition(self.url, call, self._etag(target), condition)
            path.replace(target)
            if self._fsync:
                files.sync_directory(directory_fd)
        return _info(call.key, os.fstat(fd), attributes)

    def _etag(self, target: Path) -> str | None:
        try:
            return files.etag_of(target.stat())
        except FileNotFoundError:
            return None

    def _pending(self, call: Call, upload: Upload) -> Path:
        directory = uploads.directory_of(self._path(upload.key), upload.upload_id)
        if directory is None:
            raise self._refused(call, 404, "NoSuchUpload")
        return directory

    def _entries(
        self, prefix: str, delimiter: str
    ) -> Iterator[tuple[str, os.DirEntry[str] | None]]:
        """List (key, its file) and (prefix, None) in the order of names."""
        above, separator, beginning = prefix.rpartition("/")
        if separator and not {"", ".", ".."}.isdisjoint(above.split("/")):
            return  # no key begins like that, and the path may lead out of the directory
        directory = self._root / above
        base = f"{above}/" if above else ""
        for entry in _sorted_entries(directory):
            if entry.name.startswith(beginning):
                yield from _below(base, entry, delimiter)

    @contextlib.contextmanager
    def _errors_of(self, call: Call) -> Iterator[None]:
        """Turn errors of the operating system into ours; ENOENT is a missing object."""
        try:
            yield
        except StoreError:
            raise
        except OSError as error:
            if error.errno in _ABSENT and call.op in ("head", "get_range", "delete"):
                raise self._refused(call, 404, "NoSuchKey") from error
            if error.errno in _ABSENT and call.op in ("put_part", "list_parts"):
                raise self._refused(call, 404, "NoSuchUpload") from error
            if error.errno in (errno.EACCES, errno.EPERM):
                raise self._refused(call, 403, "AccessDenied", os.strerror(error.errno)) from error
            path = f"{self._root}/{call.key}"
            raise storage_error_from(error, op=call.op, path=path) from error

    def _refused(self, call: Call, status: int, code: str, text: str = "") -> StoreError:
        return error_for(self.url, call, Answer(status, code, text))


def _info(key: str, status: os.stat_result, attributes: files.Attributes) -> ObjectInfo:
    return ObjectInfo(
        key,
        status.st_size,
        files.etag_of(status),
        crc32=attributes.crc32,
        metadata=attributes.metadata,
        modified_s=status.st_mtime,
    )


def _sorted_entries(directory: str | os.PathLike[str]) -> list[os.DirEntry[str]]:
    """Give a directory's entries that may be objects or lead to some, in the order of keys."""
    try:
        with os.scandir(directory) as entries:
            found = [entry for entry in entries if _is_key(entry.name)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(found, key=lambda entry: entry.name + ("/" if _is_directory(entry) else ""))


def _is_key(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return not name.startswith(files.PREFIX)


def _is_directory(entry: os.DirEntry[str]) -> bool:
    # A symbolic link to a directory may lead in a circle.
    return entry.is_dir(follow_symlinks=False)


def _below(
    base: str, entry: os.DirEntry[str], delimiter: str
) -> Iterator[tuple[str, os.DirEntry[str] | None]]:
    key = base + entry.name
    if not _is_directory(entry):
        if entry.is_file():
            yield key, entry
        return
    inner = (
        found for child in _sorted_entries(entry.path) for found in _below(f"{key}/", child, "")
    )
    if not delimiter:
        yield from inner
    elif next(inner, None) is not None:
        yield f"{key}/", None
