"""Streams of our own that have seen what was queued at one time, and nothing later."""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Iterator

import torch


class SideStreams:
    """One stream for each GPU of a state, ordered after what its producers had queued at one time.

    Without them a transfer that begins later would wait for the training that was queued meanwhile.
    Where torch has no GPUs, the producers themselves take their place.

    Args:
        producers: Rows of (device, CUDA stream).

    Attributes:
        rows: Rows of (device, CUDA stream) to wait for.
    """

    def __init__(self, producers: array[int]) -> None:
        self._producers = producers
        self._streams: dict[int, torch.cuda.Stream] = {}
        self.rows = producers
        if producers and torch.cuda.is_available():
            self._streams = {device: torch.cuda.Stream(device) for device in producers[::2]}
            self.rows = array("Q")
            for device, side in self._streams.items():
                self.rows.extend((device, side.cuda_stream))

    def follow(self) -> None:
        """Order them after all that is queued on the producers now."""
        if self._streams:
            for device, handle in zip(self._producers[::2], self._producers[1::2], strict=True):
                self._streams[device].wait_stream(_stream_of(device, handle))

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """Make them torch's current streams in this thread."""
        with contextlib.ExitStack() as stack:
            for side in self._streams.values():
                stack.enter_context(torch.cuda.stream(side))
            yield


def _stream_of(device: int, handle: int) -> torch.cuda.Stream:
    """Give torch's view of a CUDA stream, of whoever made it."""
    for known in (torch.cuda.current_stream(device), torch.cuda.default_stream(device)):
        if known.cuda_stream == handle:
            return known
    return torch.cuda.ExternalStream(handle, device=device)
