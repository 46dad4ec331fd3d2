"""The ``kvikio`` engine: KvikIO's thread pool for large aligned device memory, slabs for the rest.

For those who run RAPIDS and have KvikIO set up for their machine (``KVIKIO_NTHREADS``,
``KVIKIO_TASK_SIZE``, ``KVIKIO_COMPAT_MODE``); its settings are taken as they are. KvikIO is
imported when the engine is first asked for.
"""

from __future__ import annotations

import os
from array import array

from gdsckpt import kernels, native
from gdsckpt.config import Config
from gdsckpt.engine import base, kvikio_plan, pinned
from gdsckpt.engine.kvikio_job import Means, ReadJob, WriteJob, end_jobs, forked
from gdsckpt.engine.kvikio_library import KvikioLibrary, load_library, unavailable
from gdsckpt.engine.kvikio_requests import KvikioRequests
from gdsckpt.engine.kvikio_transfer import KvikioTransfer


class KvikioEngine:
    """Has KvikIO move the aligned insides of large device extents, and ``pinned`` all other bytes.

    What is not on a device, and files without direct I/O, go by ``pinned`` alone. KvikIO's bytes
    never pass this library, so their checksums are taken on the device.

    Attributes:
        name: ``"kvikio"``.
        pinned: The engine for the rest.
        reasons: What is to be known about KvikIO here, for reports.
    """

    name = "kvikio"

    def __init__(
        self,
        pinned: base.Engine,
        library: KvikioLibrary,
        checksums: base.DeviceChecksums = kernels,
    ) -> None:
        """Put an engine together; it starts nothing.

        Args:
            pinned: See ``pinned`` above; not closed with this one.
            library: See ``load_library``.
            checksums: Take those of device memory.
        """
        self.pinned = pinned
        self.reasons = (library.facts,)
        self._library = library
        self._checksums = checksums
        self._pid = os.getpid()
        self._is_closed = False

    def write(
        self,
        file: native.File,
        extents: array[int],
        *,
        chunk_bytes: int,
        streams: array[int],
        owner: object,
    ) -> base.Transfer:
        """Start to write; see :class:`gdsckpt.engine.base.Engine`.

        Raises:
            ConfigError: Extents, slots or ``chunk_bytes`` cannot be.
            StorageError: KvikIO cannot open the file.
            CuFileError: cuFile does not take the file, and KvikIO may not do without it.
            EngineUnavailableError: The engine is closed or belongs to the parent process.
            MemoryError: No thread can be started.
        """
        self._require_open()
        alignment = kvikio_plan.block_bytes(file.alignment)
        is_aligned = chunk_bytes % alignment == 0 and chunk_bytes > 0
        if not is_aligned or not self._has_work(file, extents, alignment):
            return self.pinned.write(
                file, extents, chunk_bytes=chunk_bytes, streams=streams, owner=owner
            )
        kvikio_plan.check(extents)
        plan = kvikio_plan.plan_write(extents, alignment, chunk_bytes)
        begin = extents[2]
        end = extents[-base.ROW_WIDTH + 1] + extents[-base.ROW_WIDTH + 2]
        means = self._means(file, extents, streams, "pwrite")
        job = WriteJob(means, file.path, plan, (begin, end - begin), chunk_bytes)
        transfer = KvikioTransfer(job, owner)
        try:
            # Also where there is no run: it checks what was given.
            for rows in [run.rows for run in plan.runs] or [array("Q")]:
                part = self.pinned.write(
                    file, rows, chunk_bytes=chunk_bytes, streams=streams, owner=owner
                )
                job.parts.append(part)
            job.begin()
        except BaseException:
            base.end(job)
            raise
        return transfer

    def read(
        self, file: native.File, extents: array[int], *, streams: array[int], owner: object
    ) -> base.Transfer:
        """Start to read; see :class:`gdsckpt.engine.base.Engine`. Raises as ``write``."""
        self._require_open()
        alignment = kvikio_plan.block_bytes(file.alignment)
        if not self._has_work(file, extents, alignment):
            return self.pinned.read(file, extents, streams=streams, owner=owner)
        kvikio_plan.check(extents)
        plan = kvikio_plan.plan_read(extents, alignment)
        means = self._means(file, extents, streams, "pread")
        nbytes = sum(extents[1 :: base.ROW_WIDTH])
        job = ReadJob(means, file.path, plan, (extents[2], nbytes))
        transfer = KvikioTransfer(job, owner)
        try:
            for run in plan.runs:
                job.parts.append(self.pinned.read(file, run.rows, streams=streams, owner=owner))
            job.begin()
        except BaseException:
            base.end(job)
            raise
        return transfer

    def scan(self, file: native.File, begin: int, end: int, *, chunk_bytes: int) -> base.Transfer:
        """Start to scan; see :class:`gdsckpt.engine.base.Engine`."""
        self._require_open()
        return self.pinned.scan(file, begin, end, chunk_bytes=chunk_bytes)

    def close(self) -> None:
        """Cancel the transfers that run and wait for their ends. A second call does nothing."""
        self._is_closed = True
        end_jobs(self)

    def _has_work(self, file: native.File, extents: array[int], alignment: int) -> bool:
        """Tell whether KvikIO gets anything: without direct I/O it has no way past the host."""
        return file.is_direct and kvikio_plan.is_for_kvikio(extents, alignment)

    def _means(self, file: native.File, extents: array[int], streams: array[int], op: str) -> Means:
        requests = KvikioRequests(self._library, file.buffered_fd, file.path, op)
        try:
            # KvikIO is not ordered with the streams: what is queued on them now has to be over.
            fence = native.StreamFence(extents, streams) if streams else None
        except BaseException:
            requests.close()
            raise
        return Means(self, self._checksums, requests, fence)

    def _require_open(self) -> None:
        if os.getpid() != self._pid:
            raise forked()
        if self._is_closed:
            raise unavailable(["it has been closed"], "Make another one.")


def shared_engine(config: Config, slab_bytes: int | None = None) -> KvikioEngine:
    """Give an engine over the process's KvikIO, and its ``pinned`` engine for these settings.

    Args:
        config: See :func:`gdsckpt.engine.pinned.shared_engine`.
        slab_bytes: See there.

    Raises:
        EngineUnavailableError: KvikIO, CUDA or the checksum kernels are not to be had.
    """
    return KvikioEngine(pinned.shared_engine(config, slab_bytes), load_library())
