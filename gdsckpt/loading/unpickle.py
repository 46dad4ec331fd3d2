"""Unpickle with torch, from a skeleton of the shard, handing it finished storages."""

from __future__ import annotations

import itertools
import os
import pickle
import re
import sys
from collections.abc import Callable
from typing import Any

import torch

from gdsckpt import native
from gdsckpt.errors import (
    FormatError,
    GdsckptError,
    StorageError,
    UnpickleError,
    UnsafePickleError,
    storage_error_from,
)
from gdsckpt.format import skeleton
from gdsckpt.loading.restore import UserCallbackError
from gdsckpt.staging.shard import Shard
from gdsckpt.tensors import collector

_SMALL_RECORDS = (".data/version", "version", "byteorder", "data.pkl")
"""All that torch reads besides storages; ``.format_version`` is left out on purpose, since with it
torch may compute offsets instead of reading them."""

_HOLE_BYTES = 1 << 30
"""What of a storage the skeleton has at most: the kernel refuses to map more than there is memory.
"""

_LOOKS_AT_DEVICE = (
    b"_rebuild_wrapper_subclass",
    b"_rebuild_device_tensor_from_numpy",
)
"""Rebuild functions that refuse a callable ``map_location``."""

_TORCH_ERRNO = re.compile(r"^unable to .*: .* \((\d+)\)$")
"""How torch words the error number of a system call that failed while it mapped a file."""

_serial = itertools.count()

StorageGiver = Callable[[int, int, str], Any]
"""(record index, nbytes, location tag) -> storage."""


def needs_stock_torch(shard: Shard) -> str | None:
    """Tell why only stock ``torch.load`` can unpickle a zip archive, or None."""
    if shard.find("constants.pkl") is not None:
        return "it is a TorchScript archive"
    byteorder = shard.find("byteorder")
    if byteorder is not None and shard.read_record(byteorder) != sys.byteorder.encode():
        return "it has foreign byte order"
    index = shard.find("data.pkl")
    if index is not None:
        raw = shard.read_record(index)
        if any(name in raw for name in _LOOKS_AT_DEVICE):
            return "it holds wrapper subclasses"
    return None


def looks_at_values(shard: Shard, *, weights_only: bool) -> bool:
    """Tell whether unpickling may look at the values of tensors, not only at their shapes."""
    index = shard.find("data.pkl")
    if index is None or not weights_only:
        return True
    raw = shard.read_record(index)
    return any(name in raw for name in (b"_rebuild_nested", b"_rebuild_sparse", b"_rebuild_njt"))


def unpickle(shard: Shard, give: StorageGiver, *, weights_only: bool, verify: bool) -> Any:
    """Unpickle a shard.

    Args:
        shard: An open zip archive.
        give: Called for every storage that the pickle names.
        weights_only: As for ``torch.load``.
        verify: Check the pickle's checksum first.

    Raises:
        FormatError: The archive lacks a record, or the pickle is broken.
        UnsafePickleError: The pickle needs more than ``weights_only`` allows.
    """
    indices = shard.storage_records()
    small = []
    for name in _SMALL_RECORDS:
        index = shard.find(name)
        if index is not None:
            payload = shard.read_record(index, verify=verify)
            small.append((shard.entries[index].name, payload, native.crc32(payload)))
    if not any(name.endswith("/data.pkl") for name, _, _ in small):
        raise FormatError(
            f"{shard.path} is no torch checkpoint: it is a zip file without data.pkl. Pass a file "
            "that torch.save or gdsckpt.save wrote.",
            path=shard.path,
            offset=0,
        )
    bones = skeleton.build(
        [(shard.entries[n].name, min(shard.entries[n].nbytes, _HOLE_BYTES)) for n in indices],
        small,
    )
    name = f"gdsckpt-skeleton-{os.getpid()}-{next(_serial)}"
    try:
        fd = os.memfd_create(name, os.MFD_CLOEXEC)
    except OSError as error:
        raise storage_error_from(error, op="memfd_create", path=shard.path) from error
    try:
        _write(fd, bones)
        handed = _Handed()
        records = _SkeletonRecords(name, bones, indices, shard)

        def hook(storage: torch.UntypedStorage, location: str) -> Any:
            nbytes = storage.nbytes()
            if not nbytes:
                return handed.note(give(-1, 0, location))
            index, nbytes = records.find(storage.data_ptr(), nbytes)
            return handed.note(give(index, nbytes, location))

        path = f"/proc/self/fd/{fd}"
        loaded = torch_load(path, hook, shard, weights_only=weights_only, mmap=True)
        handed.require_unchanged(shard)
        return loaded
    finally:
        os.close(fd)


class _Handed:
    """The storages that torch was given, to find those that a lying pickle has grown.

    A tensor that needs more bytes than its storage has makes torch enlarge the storage, by whatever
    the memory held before.
    """

    def __init__(self) -> None:
        self._storages: list[torch.UntypedStorage] = []
        self._nbytes: list[int] = []  # two flat lists: the garbage collector has less to look at

    def note(self, storage: Any) -> Any:
        """Remember a storage and its size; gives it back."""
        if isinstance(storage, torch.UntypedStorage):
            self._storages.append(storage)
            self._nbytes.append(storage.nbytes())
        return storage

    def require_unchanged(self, shard: Shard) -> None:
        """Refuse the file if a storage has grown.

        Raises:
            FormatError: One has.
        """
        for storage, nbytes in zip(self._storages, self._nbytes, strict=True):
            if storage.nbytes() > nbytes:
                raise FormatError(
                    f"{shard.path} is damaged: its pickle places a tensor of {storage.nbytes()} "
                    f"bytes into a storage of {nbytes}. Use another copy.",
                    path=shard.path,
                    offset=0,
                )


def torch_load(
    path: str, map_location: Any, shard: Shard, *, weights_only: bool, mmap: bool = False
) -> Any:
    """Call stock ``torch.load`` and turn what it raises into errors of ours.

    Args:
        path: What torch opens.
        map_location: As for torch.
        shard: The file that messages speak of.
        weights_only: As for torch.
        mmap: As for torch.
    """
    try:
        with collector.paused():
            return torch.load(path, map_location=map_location, weights_only=weights_only, mmap=mmap)
    except (GdsckptError, MemoryError):
        raise
    except UserCallbackError as error:
        raise error.cause from None
    except pickle.UnpicklingError as error:
        if weights_only:
            raise UnsafePickleError(
                f"{shard.path} was refused: its pickle needs more than tensors and plain values: "
                f"{_first_line(error)} If you trust the file, pass weights_only=False.",
                path=shard.path,
                offset=0,
            ) from error
        raise _broken(shard, error) from error
    except torch.OutOfMemoryError as error:
        raise MemoryError(f"{shard.path} does not fit: {_first_line(error)}") from error
    except OSError as error:
        if error.errno is None:  # some class's own
            raise _broken(shard, error) from error
        raise storage_error_from(error, op="map", path=shard.path) from error
    except Exception as error:
        refused = _refused_by_system(error)
        if refused is not None:
            raise storage_error_from(refused, op="map", path=shard.path) from error
        raise _broken(shard, error) from error


def _refused_by_system(error: Exception) -> OSError | None:
    """Give the OSError that torch has hidden in a RuntimeError, or None."""
    lines = str(error).splitlines()
    found = _TORCH_ERRNO.match(lines[0]) if lines and isinstance(error, RuntimeError) else None
    if found is None:
        return None
    number = int(found.group(1))
    return OSError(number, os.strerror(number))


def _broken(shard: Shard, error: Exception) -> UnpickleError:
    return UnpickleError(
        f"{shard.path} cannot be unpickled: {type(error).__name__}: {_first_line(error)} "
        "If a class is missing, import or install it; if torch lacks a layout on "
        "that device, load to 'cpu'; else use another copy.",
        path=shard.path,
        offset=0,
    )


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    detail = next((line for line in lines if "WeightsUnpickler error" in line), "")
    text = detail or (lines[0] if lines else "no message")
    return text if text.endswith(".") else f"{text}."


def _write(fd: int, bones: skeleton.Skeleton) -> None:
    """Write a skeleton into a memory file; the hole between stays unallocated."""
    try:
        os.truncate(fd, bones.nbytes)
        for raw, start in ((bones.head, 0), (bones.tail, bones.tail_offset)):
            done = 0
            while done < len(raw):
                done += os.pwrite(fd, raw[done:], start + done)
    except OSError as error:
        raise StorageError(
            f"memory file of {bones.nbytes} bytes failed: {error.strerror} (errno {error.errno}). "
            "Free memory.",
            op="pwrite",
            path="memfd",
            offset=0,
            nbytes=bones.nbytes,
            errno=error.errno,
        ) from error


class _SkeletonRecords:
    """Which record the pickle asks for: from an address in the mapped skeleton to its index."""

    def __init__(
        self, name: str, bones: skeleton.Skeleton, indices: list[int], shard: Shard
    ) -> None:
        self._name = name
        self._index_at = dict(zip(bones.payload_offsets, indices, strict=True))
        self._nbytes = bones.nbytes
        self._shard = shard
        self._address = 0

    def find(self, address: int, nbytes: int) -> tuple[int, int]:
        """Give the record at an address, and the size that the pickle claims of it.

        Raises:
            FormatError: No storage record begins there.
        """
        if not self._address:
            self._address = _mapping_address(self._name)
        offset = address - self._address
        index = self._index_at.get(offset)
        if index is None:
            raise FormatError(
                f"{self._shard.path} is damaged: its pickle asks for bytes that are no storage "
                "record. Use another copy.",
                path=self._shard.path,
                offset=0,
            )
        record_nbytes = self._shard.entries[index].nbytes
        if record_nbytes > _HOLE_BYTES and offset + nbytes == self._nbytes:
            nbytes = record_nbytes  # torch cut the claim at the end of the skeleton
        return index, nbytes


def _mapping_address(name: str) -> int:
    """Find where torch has mapped the memory file ``name``."""
    with open("/proc/self/maps", "rb") as maps:  # noqa: PTH123 - a kernel file, not a path
        marker = f"/memfd:{name} ".encode()
        for line in maps:
            fields = line.split(maxsplit=5)
            if len(fields) == 6 and (fields[5] + b" ").startswith(marker):
                return int(line.split(b"-", 1)[0], 16) - int(fields[2], 16)
    raise FormatError("torch did not map the skeleton; this torch version is not supported.")
