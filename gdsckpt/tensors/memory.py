"""The memory behind the storages of a state: addresses, devices, streams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard

import torch

from gdsckpt import native, tracing
from gdsckpt.errors import TornSnapshotError
from gdsckpt.format.table import TensorEntry
from gdsckpt.staging.content import Buffer
from gdsckpt.tensors import devices
from gdsckpt.tensors.arrays import DeviceArray, array_streams

_CPU = torch.device("cpu")


class StateMemory:
    """The memory of the storages of one state.

    Attributes:
        buffers: One per storage, in the same order.
        streams: Rows of (device, CUDA stream) that the contents of device memory wait for.

    Args:
        storages: On devices other than GPUs of CUDA, they are copied to the host whole.
    """

    def __init__(self, storages: Sequence[torch.UntypedStorage | DeviceArray]) -> None:
        # Those of the host first, without a look at anything else: there are 100,000 of them.
        self.buffers = [
            _torch_buffer(storage) if _is_on_host(storage) else _buffer_of(storage)
            for storage in storages
        ]
        away = [buffer for buffer in self.buffers if buffer.device != native.HOST]
        self.streams = devices.current_streams(
            buffer.device for buffer in away if isinstance(buffer.owner, torch.UntypedStorage)
        )
        self.streams.extend(array_streams(buffer.owner for buffer in away))

    def require_unchanged(self, tensors: Sequence[TensorEntry]) -> None:
        """Check that every storage has still the memory that was read.

        Args:
            tensors: For the names in the error.

        Raises:
            TornSnapshotError: One was resized, freed or moved meanwhile.
        """
        moved = {n for n, buffer in enumerate(self.buffers) if _has_moved(buffer)}
        if not moved:
            return
        names = [entry.name for entry in tensors if entry.record in moved]
        raise TornSnapshotError(
            f"the memory of {', '.join(names[:3]) or 'a storage'} was freed or moved while it was "
            "saved, so what was read may be something else. Nothing was committed. Keep the state "
            "as it is until the save has ended.",
            names=names,
        )


def _is_on_host(storage: torch.UntypedStorage | DeviceArray) -> TypeGuard[torch.UntypedStorage]:
    return storage.device == _CPU  # that of an array is a number


def _torch_buffer(storage: torch.UntypedStorage, device: int = native.HOST) -> Buffer:
    nbytes = storage.nbytes()
    return Buffer(storage.data_ptr() if nbytes else 0, nbytes, storage, device)


def _buffer_of(storage: torch.UntypedStorage | DeviceArray) -> Buffer:
    if isinstance(storage, DeviceArray):
        return Buffer(storage.address, storage.nbytes, storage, storage.device)
    device = torch.device(storage.device)
    if device.type != "cuda" or not devices.are_reachable():
        with tracing.stage("stage", storage.nbytes()):
            return _torch_buffer(storage.cpu())
    return _torch_buffer(storage, devices.number_of(device))


def _has_moved(buffer: Buffer) -> bool:
    storage = buffer.owner
    if not isinstance(storage, torch.UntypedStorage) or not buffer.nbytes:
        return False
    return storage.nbytes() != buffer.nbytes or storage.data_ptr() != buffer.address
