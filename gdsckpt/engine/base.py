"""What every engine offers, and the one way to wait for a transfer."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from gdsckpt import native
from gdsckpt.errors import EngineUnavailableError

Progress: TypeAlias = Callable[[int, int], None]
"""Called with (bytes done, bytes in all), several times a second, in the caller's thread."""

NO_STREAMS: array[int] = array("Q")
"""For transfers of host memory."""

POLL_S = 0.1
"""How often a wait wakes for signals and progress; the end itself wakes it at once."""


@dataclass(frozen=True, slots=True)
class Extent:
    """Contiguous bytes to move.

    Attributes:
        address: Address of the first byte, in the memory of ``device``.
        nbytes: Number of bytes.
        file_offset: Where they stand in the file.
        crc_offset: File offset where the engine has to leave their CRC-32 (4 bytes,
            little-endian, zero until then), or ``native.NO_CRC_SLOT``.
        device: CUDA's number of the GPU that the memory is on, or ``native.HOST``.
    """

    address: int
    nbytes: int
    file_offset: int
    crc_offset: int = native.NO_CRC_SLOT
    device: int = native.HOST


ROW_WIDTH = 5
"""Numbers in the row of an extent."""


def pack_extents(extents: Sequence[Extent]) -> array[int]:
    """Pack extents into the uint64 rows that cross the native line."""
    rows = array("Q")
    for extent in extents:
        rows.extend(
            (extent.address, extent.nbytes, extent.file_offset, extent.crc_offset, extent.device)
        )
    return rows


def pack_columns(columns: Sequence[Sequence[int]]) -> array[int]:
    """Pack rows that are given as columns of equal length; quicker than row by row, for many."""
    rows = array("Q", bytes(8 * len(columns) * len(columns[0])))
    for n, column in enumerate(columns):
        rows[n :: len(columns)] = array("Q", column)
    return rows


class Transfer(Protocol):
    """A write, read or scan that is under way: what ``gdsckpt/_C.pyi`` says of its ``Transfer``."""

    @property
    def done_bytes(self) -> int:
        """File bytes done so far."""

    @property
    def total_bytes(self) -> int:
        """File bytes of the whole transfer; of a read, those of its extents."""

    @property
    def buffered_bytes(self) -> int:
        """Of the bytes done, those that went through the page cache."""

    @property
    def direct_bytes(self) -> int:
        """Of the bytes done, those that went by direct I/O."""

    @property
    def prefix_bytes(self) -> int:
        """Bytes from the beginning of a write below which all is done; 0 where nobody knows."""

    def wait(self, timeout_s: float) -> bool:
        """Wait up to ``timeout_s`` seconds; True when ended, well or not. Signals are handled."""

    def cancel(self) -> None:
        """Drop what has not been started; the transfer then fails with ECANCELED."""

    def result(self) -> None:
        """Wait for the end and raise the first thing that went wrong."""

    def extent_crcs(self) -> bytes:
        """Give the CRC-32 of each extent of a write or read, native-endian uint32."""

    def chunk_crcs(self) -> bytes:
        """Give the CRC-32 of each chunk of a write or scan, native-endian uint32."""


class DeviceChecksums(Protocol):
    """What computes checksums of device memory there; ``gdsckpt.kernels`` is the real one."""

    def crc32_pieces(
        self, pieces: array[int], device: int, *, stream: int | None = None
    ) -> array[int]:
        """Give the CRC-32 of each piece, ``array('I')``.

        Args:
            pieces: (address, nbytes) one after the other, ``array('Q')``.
            device: CUDA's number of the GPU.
            stream: CUDA stream whose work so far makes the bytes; None: they are there.
        """


class Engine(Protocol):
    """An engine; see ``gdsckpt/_C.pyi`` for what the three transfers promise.

    Engines are shared by the whole process and may be used from several threads. None of the
    methods syncs the file.
    """

    name: str

    def write(
        self,
        file: native.File,
        extents: array[int],
        *,
        chunk_bytes: int,
        streams: array[int],
        owner: object,
    ) -> Transfer:
        """Start to write packed extents; gives the CRC-32 of each extent and of each chunk.

        ``streams`` are rows of (device, CUDA stream): device memory is read after what is queued
        on them now. ``owner`` keeps the memory alive; the transfer holds it until its end.
        """

    def read(
        self, file: native.File, extents: array[int], *, streams: array[int], owner: object
    ) -> Transfer:
        """Start to read packed extents into memory; gives the CRC-32 of each extent.

        Device memory is written after what is queued on ``streams`` now.
        """

    def scan(self, file: native.File, begin: int, end: int, *, chunk_bytes: int) -> Transfer:
        """Start to read a file range for its checksums only; gives the CRC-32 of each chunk."""


def end(transfer: Transfer) -> None:
    """Cancel a transfer and wait for its end, whatever interrupts.

    Nothing is raised: the exception that led here goes on, and a second Ctrl-C would close
    descriptors and free memory that the threads still use.
    """
    while True:
        try:
            transfer.cancel()
            while not transfer.wait(POLL_S):
                pass
        except EngineUnavailableError:  # a forked child: the transfer is the parent's
            return
        except BaseException:  # noqa: BLE001 - see above
            continue
        return


def wait(transfer: Transfer, progress: Progress | None = None) -> None:
    """Wait until a transfer has ended, open to signals all the while.

    Args:
        transfer: A started transfer.
        progress: Told about the bytes done.

    Raises:
        StorageError: The transfer failed.
        BaseException: What a signal handler or ``progress`` raised (Ctrl-C); the transfer has been
            cancelled and has ended by then, so its memory and descriptors may go.
    """
    try:
        while not transfer.wait(POLL_S):
            if progress is not None:
                progress(transfer.done_bytes, transfer.total_bytes)
    except BaseException:
        end(transfer)
        raise
    transfer.result()
    if progress is not None:
        progress(transfer.total_bytes, transfer.total_bytes)
