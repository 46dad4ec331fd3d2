"""What storages were at one time, and which of them are something else now."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gdsckpt import native
from gdsckpt.engine.base import NO_STREAMS
from gdsckpt.errors import storage_error_from
from gdsckpt.format import layout as layouts
from gdsckpt.format.layout import ShardLayout
from gdsckpt.snapshot.samples import Look, blocks_of
from gdsckpt.staging.content import Buffer
from gdsckpt.tensors.naming import strided_parts, walk

FILE_SPAN_BYTES = 16 << 20
"""Of what was read live, one sample in every so many bytes of the file is read back."""


@dataclass(frozen=True, slots=True)
class Counter:
    """Torch's count of the changes of a tensor through its dispatcher.

    Attributes:
        tensor: Any tensor that shares the count.
        version: What it was.
        numbers: Storages of the tensor.
    """

    tensor: torch.Tensor
    version: int
    numbers: tuple[int, ...]


def counters_of(state: Any, storages: Sequence[Buffer]) -> list[Counter]:
    """Note the version counters of the tensors of a state.

    Args:
        state: The nest. What is inside other objects has no counter here, only samples.
        storages: Of its shard, to find the numbers.
    """
    number_of = {
        buffer.owner._cdata: number
        for number, buffer in enumerate(storages)
        if isinstance(buffer.owner, torch.UntypedStorage)
    }
    counters: list[Counter] = []
    for path, leaf in walk(state):
        if not isinstance(leaf, torch.Tensor) or leaf.is_inference():  # those have no counter
            continue
        if type(leaf) in _PLAIN and leaf.layout == torch.strided:
            parts: Iterable[torch.Tensor] = (leaf,)
        else:
            parts = (part for _, part in strided_parts(path, leaf))
        numbers = tuple(
            number
            for part in parts
            if torch._C._has_storage(part)
            and (number := number_of.get(part.untyped_storage()._cdata)) is not None
        )
        if numbers:
            counters.append(Counter(leaf, leaf._version, numbers))
    return counters


_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})


class Watch:
    """What some storages were at one time: counters, addresses, samples. For one thread at a time.

    Attributes:
        before: The samples at that time.

    Args:
        buffers: Their memory, by their numbers.
        counters: Of the tensors of the state; those of other storages are left out.
        seed: For the samples.
        streams: What makes the contents of device memory that is not torch's.
    """

    def __init__(
        self,
        buffers: Mapping[int, Buffer],
        counters: Sequence[Counter],
        seed: int,
        streams: array[int] = NO_STREAMS,
    ) -> None:
        self._buffers = {number: buffer for number, buffer in buffers.items() if buffer.nbytes}
        self._counters = [
            counter for counter in counters if any(n in self._buffers for n in counter.numbers)
        ]
        self._seed = seed
        self._streams = streams
        self.before = Look(self._buffers, seed, streams)

    def look(self) -> Look:
        """Take the samples again, after what is queued on torch's current streams."""
        return Look(self._buffers, self._seed, self._streams)

    def moved(self) -> set[int]:
        """Give the storages whose counters or addresses are others now."""
        found = {number for number, buffer in self._buffers.items() if _has_moved(buffer)}
        for counter in self._counters:
            if counter.tensor._version != counter.version:
                found.update(n for n in counter.numbers if n in self._buffers)
        return found

    def changed(self) -> set[int]:
        """Give the storages that are not what they were."""
        found = self.moved()
        if found:  # nobody knows whether what has moved can be read
            rest = {n: buffer for n, buffer in self._buffers.items() if n not in found}
            before = self.before.crcs()
            now = Look(rest, self._seed, self._streams).crcs()
            return found | {number for number, crcs in now.items() if crcs != before[number]}
        return self.before.differing(self.look())

    def look_at(self, copies: Mapping[int, Buffer]) -> Look:
        """Take the samples of copies, to be compared with ``before``."""
        return Look({n: copies[n] for n in self._buffers}, self._seed)

    def misread(self, fd: int, layout: ShardLayout) -> set[int]:
        """Give the storages of which a file holds something else than they were.

        One sample in every ``FILE_SPAN_BYTES`` of the file is read. What was changed and changed
        back while it was read is found only there.

        Raises:
            StorageError: The file cannot be read.
        """
        offsets = layouts.payload_offsets(layout)
        before = self.before.crcs()
        index_in_storage: dict[int, int] = {}
        seen: set[int] = set()
        found: set[int] = set()
        for block in blocks_of({n: b.nbytes for n, b in self._buffers.items()}, self._seed):
            index = index_in_storage.get(block.number, 0)
            index_in_storage[block.number] = index + 1
            file_offset = offsets[block.number] + block.offset
            if file_offset // FILE_SPAN_BYTES in seen:
                continue
            seen.add(file_offset // FILE_SPAN_BYTES)
            read = _read(fd, block.nbytes, file_offset)
            if native.crc32(read) != before[block.number][index]:
                found.add(block.number)
        return found


def _has_moved(buffer: Buffer) -> bool:
    storage = buffer.owner
    if not isinstance(storage, torch.UntypedStorage):
        return False
    return storage.nbytes() != buffer.nbytes or storage.data_ptr() != buffer.address


def _read(fd: int, nbytes: int, file_offset: int) -> bytes:
    parts = b""
    while len(parts) < nbytes:
        try:
            part = os.pread(fd, nbytes - len(parts), file_offset + len(parts))
        except OSError as error:
            raise storage_error_from(
                error, op="read", path=f"/proc/self/fd/{fd}", offset=file_offset, nbytes=nbytes
            ) from error
        if not part:
            break  # shorter than it was written: it is not what was there
        parts += part
    return parts
