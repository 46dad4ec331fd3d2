"""Copies of storages: in a slot, or in the memory of the GPU that they are on."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from itertools import accumulate, islice, repeat

import torch

from gdsckpt import native, tracing
from gdsckpt.engine.base import pack_columns
from gdsckpt.errors import FallbackWarning
from gdsckpt.snapshot.placing import place, rooms_for
from gdsckpt.snapshot.slots import Lease
from gdsckpt.snapshot.source import Source
from gdsckpt.staging.content import Buffer, ShardContent


class Copies:
    """Room for the copies of a snapshot; nothing is copied before :meth:`make`.

    Args:
        source: The state.
        owned: Tensors that only an optimizer changes, by ``_cdata`` of their storages.
        lease: Slot for what is not cloned on its GPU.
        room_bytes: What the slot may have.
        on_device: Whether storages of torch's on GPUs are to be cloned there, if all fit.

    Attributes:
        placed: What is read live, and what is copied to the slot.
    """

    def __init__(
        self,
        source: Source,
        owned: Mapping[int, Sequence[torch.Tensor]],
        lease: Lease,
        room_bytes: int,
        *,
        on_device: bool,
    ) -> None:
        content = self._content = source.content
        self._lease = lease
        self._clones = _allocate_clones(content) if on_device else {}
        self.placed = place(source, owned, room_bytes, cloned=self._clones)
        self._address = 0
        originals = [content.storages[number] for number in self.placed.copied]
        needed = sum(rooms_for([buffer.nbytes for buffer in originals]))
        if not needed:
            return
        devices = {buffer.device for buffer in originals} - {native.HOST}
        try:
            self._address = lease.reserve(needed, min(devices, default=native.HOST))
        except MemoryError:
            warnings.warn(
                f"the state is read in place while the caller waits: there are no {needed} bytes "
                "of host memory for a copy. Lower staging_max_bytes or snapshot_slots.",
                FallbackWarning,
                stacklevel=2,
            )
            self.placed = place(source, owned, 0, cloned=self._clones)

    @property
    def are_on_device(self) -> bool:
        """Whether there are clones on GPUs."""
        return bool(self._clones)

    def make(self) -> list[Buffer]:
        """Copy; what goes to the slot is there on return, clones are queued on current streams.

        Returns:
            The storages, with copies in the place of what was copied; those in the slot keep it
            from being given back by itself.

        Raises:
            CudaError: A copy from a device failed.
        """
        storages = list(self._content.storages)
        originals = [storages[number] for number in self.placed.copied]
        sizes = [buffer.nbytes for buffer in originals]
        dests = list(islice(accumulate(rooms_for(sizes), initial=self._address), len(sizes)))
        copies = zip(dests, sizes, repeat(self._lease), repeat(native.HOST))
        for number, copy in zip(self.placed.copied, map(Buffer._make, copies), strict=True):
            storages[number] = copy if copy.nbytes else Buffer(0, 0, self._lease)
        for number, clone in self._clones.items():
            storages[number] = _filled(clone, storages[number])
        addresses = [buffer.address for buffer in originals]
        devices = [buffer.device for buffer in originals]
        rows = pack_columns((addresses, dests, sizes, devices))
        with tracing.stage("stage", sum(sizes)):
            native.gather(rows, streams=self._content.streams)
        return storages


def _allocate_clones(content: ShardContent) -> dict[int, torch.UntypedStorage]:
    """Have room for clones of all storages that are torch's and on GPUs, or of none of them."""
    wanted = {
        number: buffer
        for number, buffer in enumerate(content.storages)
        if buffer.device != native.HOST and isinstance(buffer.owner, torch.UntypedStorage)
    }
    room: dict[int, torch.UntypedStorage] = {}
    try:
        for number, buffer in wanted.items():
            device = torch.device("cuda", buffer.device)
            room[number] = torch.UntypedStorage(buffer.nbytes, device=device)
    except torch.OutOfMemoryError as error:
        nbytes = sum(buffer.nbytes for buffer in wanted.values())
        room.clear()
        warnings.warn(
            f"the snapshot is copied to host memory: there is no room for {nbytes} bytes on the "
            f'GPU ({str(error).splitlines()[0]}). Use snapshot="host" or "fence" to say so.',
            FallbackWarning,
            stacklevel=2,
        )
    return room


def _filled(clone: torch.UntypedStorage, source: Buffer) -> Buffer:
    if isinstance(source.owner, torch.UntypedStorage):
        clone.copy_(source.owner, non_blocking=True)
    address = clone.data_ptr() if source.nbytes else 0
    return Buffer(address, source.nbytes, clone, source.device)
