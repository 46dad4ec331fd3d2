"""CRC-32 of many pieces of device memory in one launch: the door to the kernels.

numba is imported by the first call that needs it, so a machine without it can import this.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

from gdsckpt.errors import ConfigError, EngineUnavailableError

Pieces: TypeAlias = "array[int] | Sequence[tuple[int, int]]"
"""(address, nbytes) of each piece; as an ``array('Q')``, one after the other."""

HOST = -1
"""As ``device``: addresses of host memory, for numba's simulator only."""


@dataclass(frozen=True)
class Tuning:
    """How a launch is cut; the defaults are for large GPUs, other values for tests and benchmarks.

    Attributes:
        threads: Threads of a block: 64, 128 or 256.
        strip_bytes: Bytes that a block reads, a multiple of 128; 0 chooses them so that every
            multiprocessor gets several blocks, and at most 4 MiB.
    """

    threads: int = 256
    strip_bytes: int = 0

    def __post_init__(self) -> None:
        """Refuse what the kernel is not made for."""
        if self.threads not in (64, 128, 256):
            raise ConfigError(f"threads is {self.threads}; give 64, 128 or 256.", field="threads")
        if self.strip_bytes < 0 or self.strip_bytes % 128:
            raise ConfigError(
                f"strip_bytes is {self.strip_bytes}; give a multiple of 128, or 0.",
                field="strip_bytes",
            )


DEFAULT_TUNING = Tuning()


def crc32_pieces(
    pieces: Pieces,
    device: int,
    *,
    stream: int | None = None,
    tuning: Tuning = DEFAULT_TUNING,
) -> array[int]:
    """Compute the CRC-32 of pieces of a device's memory there, as ``zlib.crc32`` would.

    One launch on a stream of its own, in the primary context (that of torch). Any thread may call;
    calls for one device run one after the other. The first one on a device compiles the kernel,
    which takes seconds (see ``warm_up``).

    Args:
        pieces: Any address and size; they may overlap. The memory must stay valid until the return.
        device: Ordinal in CUDA's numbering, as N in torch's ``cuda:N``.
        stream: Handle of the stream whose work so far writes the pieces; 0 is CUDA's default
            stream, None says that the bytes are there already.
        tuning: For tests and benchmarks.

    Returns:
        ``array('I')`` in the order of the pieces; 0 for an empty one.

    Raises:
        ConfigError: A piece is no range of addresses.
        EngineUnavailableError: numba-cuda, the driver or the device is missing.
        CudaError: The driver refused an operation or the kernel failed.
    """
    with _numba_needed():
        from gdsckpt.kernels import launch
    return launch.crc32_pieces(pieces, device, stream, tuning)


def warm_up(device: int, *, tuning: Tuning = DEFAULT_TUNING) -> None:
    """Compile and load the kernel for a device, so that no later call has to.

    Raises:
        EngineUnavailableError: numba-cuda, the driver or the device is missing.
        CudaError: The driver refused an operation or the kernel failed.
    """
    with _numba_needed():
        from gdsckpt.kernels import launch
    launch.warm_up(device, tuning)


@contextmanager
def _numba_needed() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        if (error.name or "").partition(".")[0] == "gdsckpt":
            raise
        why = f"numba-cuda cannot be imported: {error}"
        raise EngineUnavailableError(
            f"The checksum kernels cannot be used: {why}. Install it with: "
            "pip install 'gdsckpt[gpu]'.",
            reasons=[why],
        ) from error
