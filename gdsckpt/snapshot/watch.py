"""What storages were at one time, and which of them are something else now."""

from __future__ import annotations

import os
from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import torch

from gdsckpt import native
from gdsckpt.engine.base import NO_STREAMS
from gdsckpt.errors import storage_error_from
from gdsckpt.format import layout as layouts
from gdsckpt.format.layout import ShardLayout
from gdsckpt.snapshot.samples import Look, Places, blocks_of
from gdsckpt.snapshot.source import Source
from gdsckpt.staging.content import Buffer
from gdsckpt.tensors.naming import children_of, strided_parts

FILE_SPAN_BYTES = 16 << 20
"""Of what was read live, one sample in every so many bytes of the file is read back."""


_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
_NO_CONTAINERS = frozenset({str, int, float, bool, type(None)})


class Counters:
    """Torch's counts of the changes of tensors through its dispatcher.

    Args:
        rows: Tensors, what their counts are, and the number of a storage of each.
    """

    def __init__(self, rows: Iterable[tuple[torch.Tensor, int, int]]) -> None:
        self._rows = list(rows)
        self._tensors = [tensor for tensor, _, _ in self._rows]
        self._versions = [version for _, version, _ in self._rows]

    def among(self, numbers: Collection[int]) -> Counters:
        """Give those of some storages."""
        if not numbers:
            return Counters(())
        others = [row for row in self._rows if row[2] not in numbers]
        return Counters([row for row in self._rows if row[2] in numbers]) if others else self

    def changed(self) -> set[int]:
        """Give the storages of the tensors whose counts are others now."""
        if [tensor._version for tensor in self._tensors] == self._versions:
            return set()
        return {number for tensor, version, number in self._rows if tensor._version != version}


def counters_of(source: Source) -> Counters:
    """Note the version counters of the tensors of a state.

    What is inside other objects than containers and modules has no counter here, only samples.
    """
    return Counters(_counts(source.state, source.number_of))


def _counts(state: Any, number_of: Mapping[int, int]) -> Iterator[tuple[torch.Tensor, int, int]]:
    for tensor in _tensors(state):
        try:
            version = tensor._version
        except RuntimeError:  # made in inference mode: it has none
            continue
        if type(tensor) in _PLAIN and tensor.layout is torch.strided:
            number = number_of.get(tensor.untyped_storage()._cdata)
            if number is not None:
                yield tensor, version, number
            continue
        for _, part in strided_parts((), tensor):
            if torch._C._has_storage(part):
                number = number_of.get(part.untyped_storage()._cdata)
                if number is not None:
                    yield tensor, version, number


def _tensors(root: Any) -> Iterator[torch.Tensor]:
    """Give the tensors of a nest, as ``walk`` does, but without their paths and in any order."""
    stack = [root]
    entered: set[int] = set()
    while stack:
        node = stack.pop()
        if type(node) in _NO_CONTAINERS:
            continue
        if isinstance(node, torch.Tensor):
            yield node
            continue
        children = children_of(node)
        if children is not None and id(node) not in entered:
            entered.add(id(node))
            stack.extend([child for _, child in children])


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
        counters: Counters,
        seed: int,
        streams: array[int] = NO_STREAMS,
    ) -> None:
        self._buffers = {number: buffer for number, buffer in buffers.items() if buffer.nbytes}
        self._counters = counters.among(self._buffers)
        self._seed = seed
        self._streams = streams
        self._places = Places(self._buffers)
        self.before = Look(self._places, seed, streams)

    def look(self) -> Look:
        """Take the samples again, after what is queued on torch's current streams."""
        return Look(self._places, self._seed, self._streams)

    def look_at(self, copies: Mapping[int, Buffer]) -> Look:
        """Take the samples of copies, to be compared with ``before``."""
        return Look(Places({n: copies[n] for n in self._buffers}), self._seed)

    def moved(self) -> set[int]:
        """Give the storages whose counters or addresses are others now."""
        found = self._counters.changed()
        found.update(number for number, buffer in self._buffers.items() if _has_moved(buffer))
        return found

    def changed(self) -> set[int]:
        """Give the storages that are not what they were."""
        found = self.moved()
        if found:  # nobody knows whether what has moved can be read
            rest = {n: buffer for n, buffer in self._buffers.items() if n not in found}
            before = self.before.crcs()
            now = Look(Places(rest), self._seed, self._streams).crcs()
            return found | {number for number, crcs in now.items() if crcs != before[number]}
        return self.before.differing(self.look())

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
