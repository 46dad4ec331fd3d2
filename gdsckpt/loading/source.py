"""Finished storages for torch's unpickler: read ahead, verified, in the order of the pickle."""

from __future__ import annotations

import mmap
from array import array
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch

from gdsckpt import native
from gdsckpt.engine import base
from gdsckpt.engine.base import Engine
from gdsckpt.errors import CudaError, FormatError
from gdsckpt.staging import shard as shards
from gdsckpt.staging.shard import Shard
from gdsckpt.tensors import devices

WAVE_BYTES = 16 << 20
"""Storages are read in waves of at least this many bytes (one transfer each)."""

HUGEPAGE_BYTES = 4 << 20
"""From this size on, huge pages make touching fresh memory several times cheaper."""

_HOST = torch.device("cpu")

_MAP_NORESERVE = 0x4000
"""From <asm-generic/mman.h>; Python names it since 3.13 only."""

_MAX_TRUNCATED_BYTES = 16
"""A typed storage may leave out a rest smaller than one element (complex128: 16 bytes)."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How storages are read.

    Attributes:
        engine: Moves the bytes.
        verify: Compare checksums.
        read_ahead_bytes: How many bytes may be under way beyond what was asked for.
    """

    engine: Engine
    verify: bool
    read_ahead_bytes: int


@dataclass(slots=True)
class _Wave:
    indices: list[int]
    nbytes: int
    storages: list[torch.UntypedStorage]
    transfer: base.Transfer | None = None


class StorageSource:
    """Reads the storages of a shard ahead of the unpickler.

    Not thread-safe. Close it before its storages are dropped: transfers may still write into them.

    Args:
        shard: An open shard.
        options: How to read.
        wanted: Indices (into ``shard.entries``) of the records to read; None reads all.
        places: GPUs of records that are read straight to one; the others go to the host.
    """

    def __init__(
        self,
        shard: Shard,
        options: ReadOptions,
        wanted: Collection[int] | None = None,
        places: Mapping[int, torch.device] | None = None,
    ) -> None:
        self._shard = shard
        self._options = options
        self._wanted = wanted
        self._places = places or {}
        self._waves: list[_Wave] = []
        self._wave_of: dict[int, int] = {}
        self._num_started = 0
        self._bytes_ahead = 0
        self._ready: dict[int, torch.UntypedStorage] = {}
        indices = shard.storage_records()
        if wanted is not None:
            self._blank = _Blank(max((shard.entries[n].nbytes for n in indices), default=0))
        for index in indices:
            if wanted is None or index in wanted:
                self._append(index)

    def take(self, index: int, nbytes: int) -> torch.UntypedStorage:
        """Give the finished storage of a record, or a blank one where it was not wanted.

        Args:
            index: Record, as an index into ``shard.entries``.
            nbytes: Size that the pickle claims.

        Raises:
            FormatError: The pickle claims more or less than the record has.
            ChecksumError: The record's bytes are damaged.
        """
        entry = self._shard.entries[index]
        if not 0 <= entry.nbytes - nbytes < _MAX_TRUNCATED_BYTES:
            raise FormatError(
                f"{self._shard.path} is damaged: its pickle claims {nbytes} bytes of record "
                f"{entry.name!r}, which has {entry.nbytes}. Use another copy.",
                path=self._shard.path,
                offset=self._shard.payload_offsets[index],
            )
        if self._wanted is not None and index not in self._wanted:
            return self._blank.storage(nbytes)
        if index not in self._ready:
            self._finish_wave(self._wave_of[index])
        storage = self._ready.pop(index, None)
        if storage is None:  # asked for again: torch forgets storages without an address
            self._append(index)
            return self.take(index, nbytes)
        return storage if nbytes == entry.nbytes else storage[:nbytes]

    def close(self) -> None:
        """End all transfers under way and drop what nobody took."""
        for wave in self._waves:
            if wave.transfer is not None:
                wave.transfer.cancel()
        for wave in self._waves:
            if wave.transfer is not None:
                base.end(wave.transfer)
        self._waves.clear()
        self._ready.clear()

    def _append(self, index: int) -> None:
        """Add a record to the last wave that has not begun, or to a new one."""
        nbytes = self._shard.entries[index].nbytes
        is_full = self._num_started == len(self._waves) or self._waves[-1].nbytes >= WAVE_BYTES
        if is_full:
            self._waves.append(_Wave([], 0, []))
        self._waves[-1].indices.append(index)
        self._waves[-1].nbytes += nbytes
        self._wave_of[index] = len(self._waves) - 1

    def _finish_wave(self, number: int) -> None:
        wave = self._waves[number]
        while self._num_started <= number or (
            self._num_started < len(self._waves)
            and self._bytes_ahead < self._options.read_ahead_bytes
        ):
            self._start(self._waves[self._num_started])
            self._num_started += 1
        if wave.transfer is None:
            return
        base.wait(wave.transfer)
        if self._options.verify:
            shards.check_crcs(self._shard, wave.indices, wave.transfer.extent_crcs())
        self._ready.update(zip(wave.indices, wave.storages, strict=True))
        self._bytes_ahead -= wave.nbytes
        wave.transfer = None
        wave.storages = []

    def _start(self, wave: _Wave) -> None:
        offsets = self._shard.payload_offsets
        wave.indices.sort(key=offsets.__getitem__)
        rows = array("Q")
        entries = self._shard.entries
        for index in wave.indices:
            nbytes = entries[index].nbytes
            storage = fresh_storage(nbytes, self._places.get(index, _HOST))
            wave.storages.append(storage)
            address = storage.data_ptr() if nbytes else 0
            device = devices.number_of(storage.device)
            rows.extend((address, nbytes, offsets[index], native.NO_CRC_SLOT, device))
        wave.transfer = self._options.engine.read(
            self._shard.file.native,
            rows,
            streams=devices.current_streams(rows[4 :: base.ROW_WIDTH]),
            owner=wave.storages,
        )
        self._bytes_ahead += wave.nbytes
        for storage in wave.storages:  # in this idle thread: one of the engine's that meets a page
            if _is_large_on_host(storage):  # fault keeps its slab from the drive meanwhile
                native.populate(storage.data_ptr(), storage.nbytes())


def fresh_storage(nbytes: int, device: torch.device) -> torch.UntypedStorage:
    """Allocate memory for one storage; on the host on huge pages where it is large.

    Raises:
        MemoryError: There is not that much.
    """
    try:
        storage = torch.UntypedStorage(nbytes, device=device)
    except RuntimeError as error:
        if device.type == "cuda" and not isinstance(error, torch.cuda.OutOfMemoryError):
            raise CudaError(f"{device} gives no memory: {error}", op="cudaMalloc") from error
        raise MemoryError(
            f"a storage of {nbytes} bytes cannot be allocated on {device}. Free memory there, or "
            "load a part with keys=."
        ) from error
    if _is_large_on_host(storage):
        native.advise_hugepages(storage.data_ptr(), nbytes)
    return storage


def _is_large_on_host(storage: torch.UntypedStorage) -> bool:
    return storage.nbytes() >= HUGEPAGE_BYTES and storage.device.type == "cpu"


class _Blank:
    """Zeros that cost no memory until they are written to: what stands for unread storages."""

    def __init__(self, max_nbytes: int) -> None:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        try:
            zeros = mmap.mmap(-1, max(1, max_nbytes), flags=flags)
        except OSError as error:
            raise MemoryError(
                f"{max_nbytes} bytes of address space cannot be had. Raise the limit (ulimit -v)."
            ) from error
        self._storage = torch.frombuffer(zeros, dtype=torch.uint8).untyped_storage()

    def storage(self, nbytes: int) -> torch.UntypedStorage:
        """Give a storage object of its own; all share their bytes."""
        view: torch.UntypedStorage = self._storage[:nbytes]
        return view
