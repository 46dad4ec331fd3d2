"""Samples of the memory of storages: a block of every MiB, to tell whether it has changed."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, chain, pairwise
from typing import NamedTuple

import torch

from gdsckpt import native
from gdsckpt.engine.base import NO_STREAMS, pack_columns
from gdsckpt.errors import CudaError
from gdsckpt.staging.content import Buffer

BLOCK_BYTES = 4096
"""Size of a sample; of native.sample_crcs, too."""

SPAN_BYTES = 1 << 20
"""There is one sample in every so many bytes."""


class Block(NamedTuple):
    """Where a sample lies.

    Attributes:
        number: Of the storage.
        offset: In its memory.
        nbytes: At most ``BLOCK_BYTES``.
    """

    number: int
    offset: int
    nbytes: int


class Memory(NamedTuple):
    """Storages, in columns.

    Attributes:
        numbers: Of the storages.
        buffers: The memory of each.
    """

    numbers: list[int]
    buffers: list[Buffer]

    def rows(self) -> array[int]:
        """Give them as native code takes them."""
        addresses = [buffer.address for buffer in self.buffers]
        sizes = [buffer.nbytes for buffer in self.buffers]
        return pack_columns((self.numbers, addresses, sizes))


def block_rows(memory: Memory, seed: int) -> array[int]:
    """Give where the samples of storages lie, in the order of the storages.

    Args:
        memory: The storages; nothing of it is read.
        seed: Which of the possible samples.

    Returns:
        Rows of (index of the storage in ``memory``, offset in it, bytes).
    """
    found = array("Q")
    found.frombytes(native.sample_blocks(memory.rows(), seed))
    return found


def blocks_of(memory: Memory, seed: int) -> list[Block]:
    """Give the same as ``block_rows``, one by one."""
    found = block_rows(memory, seed)
    return [
        Block(memory.numbers[index], offset, nbytes)
        for index, offset, nbytes in zip(found[::3], found[1::3], found[2::3], strict=True)
    ]


class Places:
    """Where the memory of storages is: on the host, or on GPUs, as torch's or as others' arrays.

    Args:
        memory: The storages.

    Attributes:
        memory: The same ones, those that are sampled together one after the other.
    """

    def __init__(self, memory: Memory) -> None:
        self.host = self.memory = memory
        self.foreign = Memory([], [])
        self.by_device: dict[torch.device, Memory] = {}
        if any(buffer.device != native.HOST for buffer in memory.buffers):
            self._divide(memory)
        self.host_rows = self.host.rows()

    def _divide(self, memory: Memory) -> None:
        self.host, self.memory = Memory([], []), Memory([], [])
        for number, buffer in zip(*memory, strict=True):
            group = self._group_of(buffer)
            group.numbers.append(number)
            group.buffers.append(buffer)
        for group in (self.host, self.foreign, *self.by_device.values()):
            self.memory.numbers.extend(group.numbers)
            self.memory.buffers.extend(group.buffers)

    def _group_of(self, buffer: Buffer) -> Memory:
        if buffer.device == native.HOST:
            return self.host
        if isinstance(buffer.owner, torch.UntypedStorage):
            return self.by_device.setdefault(torch.device(buffer.owner.device), Memory([], []))
        return self.foreign


class Look:
    """The samples of storages at one time. What is on a GPU stays there until it is compared.

    Args:
        places: Of the storages.
        seed: Decides, with the numbers and sizes, which blocks are taken.
        streams: What makes the contents of device memory that is not torch's.
    """

    def __init__(self, places: Places, seed: int, streams: array[int] = NO_STREAMS) -> None:
        self._memory = places.memory
        self._crcs: list[Callable[[], array[int]]] = []
        self._is_on_devices = bool(places.by_device)
        if places.host.numbers:
            crcs = array("I")
            crcs.frombytes(native.sample_crcs(places.host_rows, seed))
            self._crcs.append(lambda: crcs)
        if places.foreign.numbers:
            copied = _foreign_crcs(places.foreign, seed, streams)
            self._crcs.append(lambda: copied)
        for on_device in places.by_device.values():
            self._crcs.append(_device_crcs(on_device, seed))

    @property
    def is_here(self) -> bool:
        """Whether nothing of it is still on a device, to be waited for."""
        return not self._is_on_devices

    def crcs(self) -> array[int]:
        """Give the CRC-32 of each sample, in the order of ``places.memory``."""
        return sum((crcs() for crcs in self._crcs), start=array("I"))

    def crcs_by_number(self) -> dict[int, array[int]]:
        """Give the CRC-32 of each sample, by the number of the storage."""
        crcs = self.crcs()
        ends = accumulate(num_samples(buffer.nbytes) for buffer in self._memory.buffers)
        spans = zip(self._memory.numbers, pairwise(chain((0,), ends)), strict=True)
        return {number: crcs[begin:end] for number, (begin, end) in spans}

    def differing(self, other: Look) -> set[int]:
        """Give the numbers of the storages that are not as in a look at the same storages."""
        has_same_order = self._memory.numbers == other._memory.numbers
        if has_same_order and self.crcs() == other.crcs():  # as a rule, and 100,000 are quick
            return set()
        before, after = self.crcs_by_number(), other.crcs_by_number()
        return {number for number, crcs in before.items() if after[number] != crcs}


def num_samples(nbytes: int) -> int:
    """Give how many samples a storage has."""
    return -(-nbytes // SPAN_BYTES)


def _foreign_crcs(memory: Memory, seed: int, streams: array[int]) -> array[int]:
    """Copy the samples of arrays on GPUs, after what is queued on their streams, and wait."""
    blocks = blocks_of(memory, seed)
    buffers = dict(zip(*memory, strict=True))
    copies = torch.empty(sum(block.nbytes for block in blocks), dtype=torch.uint8)
    dest = copies.data_ptr()
    rows = array("Q")
    for block in blocks:
        buffer = buffers[block.number]
        rows.extend((buffer.address + block.offset, dest, block.nbytes, buffer.device))
        dest += block.nbytes
    native.gather(rows, streams=streams)
    return _packed_crcs(copies, [block.nbytes for block in blocks])


def _device_crcs(memory: Memory, seed: int) -> Callable[[], array[int]]:
    """Queue the samples of storages on one device; the result waits for them."""
    blocks = blocks_of(memory, seed)
    try:
        with torch.no_grad():
            taken = list(_on_device(memory, blocks))
    except RuntimeError as error:
        raise _failed(error) from error

    def crcs() -> array[int]:
        found = array("I", bytes(4 * len(blocks)))
        try:
            copies = [(places, samples.cpu()) for places, samples in taken]
        except RuntimeError as error:
            raise _failed(error) from error
        for places, samples in copies:
            sizes = [blocks[place].nbytes for place in places]
            for place, crc in zip(places, _packed_crcs(samples, sizes), strict=True):
                found[place] = crc
        return found

    return crcs


def _on_device(memory: Memory, blocks: Sequence[Block]) -> Iterator[tuple[list[int], torch.Tensor]]:
    """Gather blocks where they are, few operations for many storages.

    Yields:
        Indices of blocks, and their bytes, one after the other.
    """
    flat = {number: _flat(buffer) for number, buffer in zip(*memory, strict=True)}
    device = next(iter(flat.values())).device
    whole = [at for at, block in enumerate(blocks) if block.nbytes == BLOCK_BYTES]
    if whole:
        index = torch.tensor([blocks[at].offset // BLOCK_BYTES for at in whole]).to(device)
        samples = torch.empty((len(whole), BLOCK_BYTES), dtype=torch.uint8, device=device)
        begin = 0
        for number, storage in flat.items():
            num_whole = storage.numel() // BLOCK_BYTES
            end = begin
            while end < len(whole) and blocks[whole[end]].number == number:
                end += 1
            if end > begin:
                rows = storage[: num_whole * BLOCK_BYTES].view(num_whole, BLOCK_BYTES)
                torch.index_select(rows, 0, index[begin:end], out=samples[begin:end])
            begin = end
        yield whole, samples.view(-1)
    short = [at for at, block in enumerate(blocks) if block.nbytes < BLOCK_BYTES]
    if short:
        parts = [
            flat[number][offset : offset + nbytes]
            for number, offset, nbytes in (blocks[at] for at in short)
        ]
        yield short, torch.cat(parts)


def _flat(buffer: Buffer) -> torch.Tensor:
    """See a storage as bytes."""
    storage = buffer.owner
    if not isinstance(storage, torch.UntypedStorage):
        raise TypeError(f"{type(storage).__name__} is no storage")
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _packed_crcs(samples: torch.Tensor, sizes: Sequence[int]) -> array[int]:
    """Give the CRC-32 of blocks that stand in host memory one after the other."""
    address = samples.data_ptr()
    rows = array("Q")
    for nbytes in sizes:  # each is its own only sample
        rows.extend((0, address, nbytes))
        address += nbytes
    crcs = array("I")
    crcs.frombytes(native.sample_crcs(rows, 0))
    return crcs


def _failed(error: RuntimeError) -> CudaError:
    return CudaError(
        f"looking at the memory of tensors on a device failed: {error}. Nothing is known of their "
        "contents: save again, or start again where the device was lost.",
        op="sample",
    )
