"""Transfers of the ``kvikio`` engine, as their users hold them."""

from __future__ import annotations

from gdsckpt.engine import base
from gdsckpt.engine.kvikio_job import Job


class KvikioTransfer:
    """A transfer as its user holds it: cancelled and waited for when it is let go.

    In a forked child every method raises EngineUnavailableError.
    """

    def __init__(self, job: Job, owner: object) -> None:
        """Hold a job, and what keeps the memory alive."""
        self._job = job
        self._owner = owner

    def __del__(self) -> None:
        """Have the job end before the memory goes."""
        base.end(self._job)

    @property
    def done_bytes(self) -> int:
        """File bytes done so far."""
        return self._job.done_bytes

    @property
    def total_bytes(self) -> int:
        """File bytes of the whole transfer; of a read, those of its extents."""
        return self._job.total_bytes

    @property
    def buffered_bytes(self) -> int:
        """Of the bytes done, those that went through the page cache."""
        return self._job.buffered_bytes

    @property
    def direct_bytes(self) -> int:
        """Of the bytes done, the others: KvikIO does not tell how its bytes go."""
        return self._job.direct_bytes

    @property
    def cufile_bytes(self) -> int:
        """Of the bytes done, those known to have gone past the host: none."""
        return 0

    @property
    def prefix_bytes(self) -> int:
        """See the job's."""
        return self._job.prefix_bytes

    def wait(self, timeout_s: float) -> bool:
        """Wait up to ``timeout_s`` seconds; True when ended, well or not. Signals are handled."""
        return self._job.wait(timeout_s)

    def cancel(self) -> None:
        """Drop what has not been started; the transfer then fails with ECANCELED."""
        self._job.cancel()

    def result(self) -> None:
        """Wait for the end and raise the first thing that went wrong.

        Raises:
            StorageError: As for the native transfers; or KvikIO says so.
            ShortTransferError: As for the native transfers; or KvikIO's bytes came to an end.
            ConfigError: A CRC slot holds bytes that are not zero.
            CudaError: CUDA refused, here or in KvikIO.
            CuFileError: cuFile refused in KvikIO, or it gives no reason that has a number.
        """
        self._job.result()

    def extent_crcs(self) -> bytes:
        """Give the CRC-32 of each extent, native-endian uint32; raises as ``result``."""
        return self._job.extent_crcs()

    def chunk_crcs(self) -> bytes:
        """Give the CRC-32 of each chunk of a write, native-endian uint32; raises as ``result``.

        Raises:
            ConfigError: The transfer is a read.
        """
        return self._job.chunk_crcs()
