"""GPUs as torch and CUDA see them: numbers, streams, and whether our own copies reach them."""

from __future__ import annotations

import functools
import warnings
from array import array
from collections.abc import Iterable

import torch

from gdsckpt import native
from gdsckpt.engine.driver import cuda_unusable
from gdsckpt.errors import FallbackWarning


def number_of(device: torch.device) -> int:
    """Give CUDA's number of the GPU that a storage is on, or ``native.HOST`` for the host.

    torch numbers devices as the driver does: ``CUDA_VISIBLE_DEVICES`` is the driver's own.
    """
    return native.HOST if device.type != "cuda" else device.index or 0


@functools.cache
def are_reachable() -> bool:
    """Tell whether torch's GPUs are CUDA's, and CUDA's driver can be used; warns once where not.

    A torch that was built for ROCm calls its devices ``cuda`` too.
    """
    if not torch.cuda.is_available():
        return False
    why = "torch was built for ROCm" if torch.version.hip else cuda_unusable()
    if not why:
        return True
    warnings.warn(
        f"tensors on GPUs are copied to host memory whole before a save, and after a load: {why}. "
        "'gdsckpt probe' says more.",
        FallbackWarning,
        stacklevel=2,
    )
    return False


def current_streams(numbers: Iterable[int]) -> array[int]:
    """Give torch's current stream of each GPU, as rows of (device, CUDA stream).

    Args:
        numbers: CUDA's numbers; may repeat, and name the host.
    """
    rows = array("Q")
    for number in sorted(set(numbers) - {native.HOST}):
        rows.extend((number, torch.cuda.current_stream(number).cuda_stream))
    return rows
