"""What storages were at one time, and which of them are something else now."""

from __future__ import annotations

import os
from array import array
from collections.abc import Collection, Sequence
from itertools import compress

import torch

from gdsckpt import native
from gdsckpt.engine.base import NO_STREAMS
from gdsckpt.errors import storage_error_from
from gdsckpt.format import layout as layouts
from gdsckpt.format.layout import ShardLayout
from gdsckpt.snapshot.leaves import leaves_of
from gdsckpt.snapshot.samples import Look, Memory, Places, block_rows
from gdsckpt.snapshot.source import Source
from gdsckpt.staging.content import Buffer

FILE_SPAN_BYTES = 16 << 20
"""Of what was read live, one sample in every so many bytes of the file is read back."""


class Counters:
    """Torch's counts of the changes of tensors through its dispatcher, as they were at one time.

    Args:
        tensors: The tensors.
        numbers: Of the storage of each; None where it is not saved.
        versions: The counts.
    """

    def __init__(
        self, tensors: list[torch.Tensor], numbers: list[int | None], versions: list[int]
    ) -> None:
        self._tensors = tensors
        self._numbers = numbers
        self._versions = versions

    def among(self, numbers: Collection[int]) -> Counters:
        """Give those of some storages."""
        wanted = set(numbers)
        if wanted.issuperset(self._numbers):
            return self
        chosen = [number in wanted for number in self._numbers] if wanted else []
        return Counters(
            list(compress(self._tensors, chosen)),
            list(compress(self._numbers, chosen)),
            list(compress(self._versions, chosen)),
        )

    def changed(self) -> set[int]:
        """Give the storages of the tensors whose counts are others now."""
        versions = _versions(self._tensors)
        if versions == self._versions:
            return set()
        rows = zip(self._numbers, self._versions, versions, strict=True)
        return {number for number, before, now in rows if before != now and number is not None}


def counters_of(source: Source) -> Counters:
    """Note the version counters of the tensors of a state.

    What is inside other objects than containers and modules has no counter here, only samples.
    """
    tensors, _, storages = leaves_of(source.state)
    return Counters(tensors, list(map(source.number_of.get, storages)), _versions(tensors))


def _versions(tensors: list[torch.Tensor]) -> list[int]:
    try:
        return [tensor._version for tensor in tensors]
    except RuntimeError:  # one was made in inference mode: it has none
        return [0 if tensor.is_inference() else tensor._version for tensor in tensors]


class Watch:
    """What some storages were at one time: counters, addresses, samples. For one thread at a time.

    Attributes:
        before: The samples at that time.

    Args:
        memory: Of the storages. None of them is empty.
        counters: Of the tensors of the state; those of other storages are left out.
        seed: For the samples.
        streams: What makes the contents of device memory that is not torch's.
    """

    def __init__(
        self,
        memory: Memory,
        counters: Counters,
        seed: int,
        streams: array[int] = NO_STREAMS,
    ) -> None:
        self._counters = counters.among(memory.numbers)
        self._seed = seed
        self._streams = streams
        self._places = Places(memory)
        self.before = Look(self._places, seed, streams)

    def look(self) -> Look:
        """Take the samples again, after what is queued on torch's current streams."""
        return Look(self._places, self._seed, self._streams)

    def look_at(self, storages: Sequence[Buffer]) -> Look:
        """Take the samples of copies, to be compared with ``before``.

        Args:
            storages: Has them by their numbers.
        """
        numbers = self._places.memory.numbers
        copies = Memory(numbers, [storages[number] for number in numbers])
        return Look(Places(copies), self._seed)

    def moved(self) -> set[int]:
        """Give the storages whose counters or addresses are others now."""
        found = self._counters.changed()
        for number, (address, nbytes, owner, _) in zip(*self._places.memory, strict=True):
            if isinstance(owner, torch.UntypedStorage) and (
                owner.data_ptr() != address or owner.nbytes() != nbytes
            ):
                found.add(number)
        return found

    def changed(self) -> set[int]:
        """Give the storages that are not what they were."""
        found = self.moved()
        if found:  # nobody knows whether what has moved can be read
            rows = zip(*self._places.memory, strict=True)
            rest = [(number, buffer) for number, buffer in rows if number not in found]
            memory = Memory([number for number, _ in rest], [buffer for _, buffer in rest])
            before = self.before.crcs_by_number()
            now = Look(Places(memory), self._seed, self._streams).crcs_by_number()
            return found | {number for number, crcs in now.items() if crcs != before[number]}
        return self.before.differing(self.look())

    def misread(self, fd: int, layout: ShardLayout) -> set[int]:
        """Give the storages of which a file holds something else than they were.

        One sample in every ``FILE_SPAN_BYTES`` of the file is read. What was changed and changed
        back while it was read is found only there.

        Raises:
            StorageError: The file cannot be read.
        """
        numbers = self._places.memory.numbers
        if not numbers:
            return set()
        payload_offsets = layouts.payload_offsets(layout)
        begins = [payload_offsets[number] for number in numbers]
        rows = block_rows(self._places.memory, self._seed)
        sample_of_span: dict[int, int] = {}
        for sample, (row, offset) in enumerate(zip(rows[::3], rows[1::3], strict=True)):
            sample_of_span.setdefault((begins[row] + offset) // FILE_SPAN_BYTES, sample)
        before = self.before.crcs()
        found: set[int] = set()
        for sample in sample_of_span.values():
            row, offset, nbytes = rows[3 * sample : 3 * sample + 3]
            if native.crc32(_read(fd, nbytes, begins[row] + offset)) != before[sample]:
                found.add(numbers[row])
        return found


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
