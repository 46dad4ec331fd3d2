"""The ``cufile`` engine: GPUDirect Storage for large aligned device memory, slabs for the rest.

Bytes that cuFile moves never pass the CPU, so their checksums are taken on the device: before a
write, after a read. cuFile's driver must be open; see ``native.cufile_open``.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from gdsckpt import kernels, native, tracing
from gdsckpt.config import Config
from gdsckpt.engine.base import ROW_WIDTH, DeviceChecksums, Transfer
from gdsckpt.engine.shared import SharedEngines


class CuFileEngine:
    """Moves device memory past the host where cuFile takes it; one per process and configuration.

    A file that cuFile does not take, at once or in the middle of a transfer, goes on through the
    host as in the ``pinned`` engine; ``native.File.cufile_refused`` tells why.

    Attributes:
        name: ``"cufile"``.
    """

    name = "cufile"

    def __init__(
        self,
        *,
        io_threads: int,
        slab_bytes: int,
        num_slabs: int,
        checksums: DeviceChecksums = kernels,
    ) -> None:
        """Start the threads; ``checksums`` takes those of device memory."""
        self._native = native.Engine(
            io_threads=io_threads, slab_bytes=slab_bytes, num_slabs=num_slabs
        )
        self._checksums = checksums

    def write(
        self,
        file: native.File,
        extents: array[int],
        *,
        chunk_bytes: int,
        streams: array[int],
        owner: object,
    ) -> Transfer:
        """Start to write; see :class:`gdsckpt.engine.base.Engine`.

        Returns when the devices have taken the checksums; nothing is written before.

        Raises:
            EngineUnavailableError: cuFile's driver is not open, or no kernel can be run.
            CudaError: A kernel failed.
        """
        crcs = None
        if _is_on_device(extents) and file.attach_cufile():
            crcs = _crcs_of_pieces(self._checksums, extents, chunk_bytes, streams)
        return self._native.write(
            file, extents, chunk_bytes=chunk_bytes, streams=streams, device_crcs=crcs, owner=owner
        )

    def read(
        self, file: native.File, extents: array[int], *, streams: array[int], owner: object
    ) -> Transfer:
        """Start to read; see :class:`gdsckpt.engine.base.Engine`.

        Raises:
            EngineUnavailableError: cuFile's driver is not open.
        """
        goes_by_cufile = _is_on_device(extents) and file.attach_cufile()
        transfer = self._native.read(file, extents, streams=streams, owner=owner)
        return CuFileRead(transfer, extents, self._checksums) if goes_by_cufile else transfer

    def scan(self, file: native.File, begin: int, end: int, *, chunk_bytes: int) -> Transfer:
        """Start to scan; see :class:`gdsckpt.engine.base.Engine`."""
        return self._native.scan(file, begin, end, chunk_bytes=chunk_bytes)

    @property
    def pin_refused(self) -> str:
        """Why slabs could not be page-locked, so that copies are slower; empty if they could."""
        return self._native.pin_refused


class CuFileRead:
    """A read of which cuFile may have brought a part to devices; these take its checksums."""

    def __init__(
        self, transfer: native.Transfer, extents: array[int], checksums: DeviceChecksums
    ) -> None:
        self._transfer = transfer
        self._extents = extents
        self._checksums = checksums
        self._extent_crcs: bytes | None = None

    @property
    def done_bytes(self) -> int:
        """File bytes done so far."""
        return self._transfer.done_bytes

    @property
    def total_bytes(self) -> int:
        """Bytes of all extents."""
        return self._transfer.total_bytes

    @property
    def prefix_bytes(self) -> int:
        """Of writes only."""
        return 0

    @property
    def buffered_bytes(self) -> int:
        """Of the bytes done, those that went through the page cache."""
        return self._transfer.buffered_bytes

    @property
    def direct_bytes(self) -> int:
        """Of the bytes done, those that went by direct I/O."""
        return self._transfer.direct_bytes

    @property
    def cufile_bytes(self) -> int:
        """Of the bytes done, those that cuFile moved, past the host."""
        return self._transfer.cufile_bytes

    def wait(self, timeout_s: float) -> bool:
        """Wait up to ``timeout_s`` seconds; True when ended, well or not. Signals are handled."""
        return self._transfer.wait(timeout_s)

    def cancel(self) -> None:
        """Drop what has not been started; the transfer then fails with ECANCELED."""
        self._transfer.cancel()

    def result(self) -> None:
        """Wait for the end and raise the first thing that went wrong."""
        self._transfer.result()

    def extent_crcs(self) -> bytes:
        """Give the CRC-32 of each extent, native-endian uint32, of the bytes that have arrived.

        The first call computes those of device memory, which must not have been changed since.

        Raises:
            CudaError: A kernel failed.
            EngineUnavailableError: No kernel can be run.
        """
        if self._extent_crcs is None:
            crcs = array("I", self._transfer.extent_crcs())
            if self._transfer.cufile_bytes:
                self._take_missing(crcs)
            self._extent_crcs = crcs.tobytes()
        return self._extent_crcs

    def chunk_crcs(self) -> bytes:
        """Raise ConfigError: a read has none."""
        return self._transfer.chunk_crcs()

    def _take_missing(self, crcs: array[int]) -> None:
        """Fill in the CRCs that the host could not take, which are 0."""
        missing: dict[int, list[int]] = {}
        for index, (_, nbytes, _, device) in enumerate(_rows(self._extents)):
            if crcs[index] == 0 and nbytes and device != native.HOST:
                missing.setdefault(device, []).append(index)
        for device, indices in missing.items():
            pieces = array("Q")
            for index in indices:
                begin = index * ROW_WIDTH
                pieces.extend(self._extents[begin : begin + 2])
            with tracing.stage("checksum", sum(pieces[1::2])):
                found = self._checksums.crc32_pieces(pieces, device)
            for index, crc in zip(indices, found, strict=True):
                crcs[index] = crc


_shared = SharedEngines(CuFileEngine)


def shared_engine(config: Config, slab_bytes: int | None = None) -> CuFileEngine:
    """Give the process's engine for these settings; made at the first call.

    Args:
        config: ``io_threads``, ``chunk_bytes`` and ``pinned_pool_bytes`` are read.
        slab_bytes: See :func:`gdsckpt.engine.pinned.shared_engine`.
    """
    return _shared.get(config, slab_bytes)


def _rows(extents: array[int]) -> Iterator[tuple[int, int, int, int]]:
    """Give (address, nbytes, file_offset, device) of each packed extent."""
    columns = (extents[column::ROW_WIDTH] for column in (0, 1, 2, 4))
    return zip(*columns, strict=True)


def _is_on_device(extents: array[int]) -> bool:
    return any(device != native.HOST for device in extents[4::ROW_WIDTH])


def _crcs_of_pieces(
    checksums: DeviceChecksums, extents: array[int], chunk_bytes: int, streams: array[int]
) -> array[int]:
    """Take the CRC-32 of device memory as ``native.Engine.write`` wants it.

    Returns:
        Those of the pieces of all extents on devices, in order; a piece ends at a multiple of
        ``chunk_bytes`` of the file offset.
    """
    pieces: dict[int, array[int]] = {}
    order: list[int] = []
    for address, nbytes, file_offset, device in _rows(extents):
        if device == native.HOST:
            continue
        done = 0
        while done < nbytes:
            piece = min(nbytes - done, chunk_bytes - (file_offset + done) % chunk_bytes)
            pieces.setdefault(device, array("Q")).extend((address + done, piece))
            order.append(device)
            done += piece
    found = {}
    for device, rows in pieces.items():
        with tracing.stage("checksum", sum(rows[1::2])):
            stream = _producer_of(device, streams)
            found[device] = checksums.crc32_pieces(rows, device, stream=stream)
    if len(found) == 1:
        return next(iter(found.values()))
    rest = {device: iter(crcs) for device, crcs in found.items()}
    return array("I", (next(rest[device]) for device in order))


def _producer_of(device: int, streams: array[int]) -> int | None:
    """Give the stream that a device's memory waits for; of several, all have been waited for."""
    handles = [streams[i + 1] for i in range(0, len(streams), 2) if streams[i] == device]
    if len(handles) == 1:
        return handles[0]
    if handles:
        native.cuda_wait(array("Q", [number for handle in handles for number in (device, handle)]))
    return None
