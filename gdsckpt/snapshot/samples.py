"""Samples of the memory of storages: a block of every MiB, to tell whether it has changed."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import torch

from gdsckpt import native
from gdsckpt.engine.base import NO_STREAMS
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


def blocks_of(sizes: Mapping[int, int], seed: int) -> list[Block]:
    """Give the samples of storages, in the order of the mapping.

    Args:
        sizes: Size in bytes of each storage, by its number.
        seed: Which of the possible samples.
    """
    numbers = list(sizes)
    rows = array("Q")
    for number, nbytes in sizes.items():
        rows.extend((number, 0, nbytes))
    found = array("Q")
    found.frombytes(native.sample_blocks(rows, seed))
    return [
        Block(numbers[row], offset, nbytes)
        for row, offset, nbytes in zip(found[::3], found[1::3], found[2::3], strict=True)
    ]


_Buffers: TypeAlias = dict[int, Buffer]


class Places:
    """Where the memory of storages is: on the host, or on GPUs, as torch's or as others' arrays.

    Args:
        buffers: The memory, by the number of the storage.
    """

    def __init__(self, buffers: Mapping[int, Buffer]) -> None:
        self.sizes = {number: buffer.nbytes for number, buffer in buffers.items()}
        self.foreign: _Buffers = {}
        self.by_device: dict[torch.device, _Buffers] = {}
        host = [(n, buffer) for n, buffer in buffers.items() if buffer.device == native.HOST]
        self.host = [number for number, _ in host]
        rows = ((number, buffer.address, buffer.nbytes) for number, buffer in host)
        self.host_rows = array("Q", itertools.chain.from_iterable(rows))
        for number, buffer in buffers.items() if len(host) < len(buffers) else ():
            if buffer.device == native.HOST:
                continue
            if isinstance(buffer.owner, torch.UntypedStorage):
                self.by_device.setdefault(torch.device(buffer.owner.device), {})[number] = buffer
            else:
                self.foreign[number] = buffer


class Look:
    """The samples of storages at one time. What is on a GPU stays there until it is compared.

    Args:
        places: Of the storages.
        seed: Decides, with the numbers and sizes, which blocks are taken.
        streams: What makes the contents of device memory that is not torch's.
    """

    def __init__(self, places: Places, seed: int, streams: array[int] = NO_STREAMS) -> None:
        self._sizes = places.sizes
        self._crcs: list[tuple[list[int], Callable[[], array[int]]]] = []
        self._is_on_devices = bool(places.by_device)
        if places.host:
            crcs = array("I")
            crcs.frombytes(native.sample_crcs(places.host_rows, seed))
            self._crcs.append((places.host, lambda: crcs))
        if places.foreign:
            copied = _foreign_crcs(places.foreign, seed, streams)
            self._crcs.append((list(places.foreign), lambda: copied))
        for on_device in places.by_device.values():
            self._crcs.append((list(on_device), _device_crcs(on_device, seed)))

    @property
    def is_here(self) -> bool:
        """Whether nothing of it is still on a device, to be waited for."""
        return not self._is_on_devices

    def crcs(self) -> dict[int, array[int]]:
        """Give the CRC-32 of each sample, by the number of the storage."""
        found: dict[int, array[int]] = {}
        for numbers, crcs_of_all in self._crcs:
            crcs = crcs_of_all()
            at = 0
            for number in numbers:
                end = at + num_samples(self._sizes[number])
                found[number] = crcs[at:end]
                at = end
        return found

    def differing(self, other: Look) -> set[int]:
        """Give the numbers of the storages that are not as in a look at the same storages."""
        if len(self._crcs) == 1 and len(other._crcs) == 1:  # as a rule, and 100,000 are quick
            (mine, crcs), (theirs, others) = self._crcs[0], other._crcs[0]
            if mine == theirs and crcs() == others():
                return set()
        before, after = self.crcs(), other.crcs()
        return {number for number, crcs in before.items() if after[number] != crcs}


def num_samples(nbytes: int) -> int:
    """Give how many samples a storage has."""
    return -(-nbytes // SPAN_BYTES)


def _foreign_crcs(buffers: _Buffers, seed: int, streams: array[int]) -> array[int]:
    """Copy the samples of arrays on GPUs, after what is queued on their streams, and wait."""
    blocks = blocks_of({n: buffer.nbytes for n, buffer in buffers.items()}, seed)
    copies = torch.empty(sum(block.nbytes for block in blocks), dtype=torch.uint8)
    dest = copies.data_ptr()
    rows = array("Q")
    for block in blocks:
        buffer = buffers[block.number]
        rows.extend((buffer.address + block.offset, dest, block.nbytes, buffer.device))
        dest += block.nbytes
    native.gather(rows, streams=streams)
    return _packed_crcs(copies, [block.nbytes for block in blocks])


def _device_crcs(buffers: _Buffers, seed: int) -> Callable[[], array[int]]:
    """Queue the samples of storages on one device; the result waits for them."""
    blocks = blocks_of({n: buffer.nbytes for n, buffer in buffers.items()}, seed)
    try:
        with torch.no_grad():
            taken = list(_on_device(buffers, blocks))
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


def _on_device(
    buffers: _Buffers, blocks: Sequence[Block]
) -> Iterator[tuple[list[int], torch.Tensor]]:
    """Gather blocks where they are, few operations for many storages.

    Yields:
        Indices of blocks, and their bytes, one after the other.
    """
    flat = {number: _flat(buffer) for number, buffer in buffers.items()}
    device = next(iter(flat.values())).device
    whole = [at for at, block in enumerate(blocks) if block.nbytes == BLOCK_BYTES]
    if whole:
        index = torch.tensor([blocks[at].offset // BLOCK_BYTES for at in whole]).to(device)
        samples = torch.empty((len(whole), BLOCK_BYTES), dtype=torch.uint8, device=device)
        begin = 0
        for number, memory in flat.items():
            num_whole = memory.numel() // BLOCK_BYTES
            end = begin
            while end < len(whole) and blocks[whole[end]].number == number:
                end += 1
            if end > begin:
                rows = memory[: num_whole * BLOCK_BYTES].view(num_whole, BLOCK_BYTES)
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
