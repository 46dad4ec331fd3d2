"""The ``pinned`` engine: a ring of aligned host slabs and direct I/O from writer threads."""

from __future__ import annotations

from array import array

from gdsckpt import native
from gdsckpt.config import Config
from gdsckpt.engine.shared import SharedEngines


class PinnedEngine:
    """Moves host and device memory through slabs; one per process and configuration.

    Attributes:
        name: ``"pinned"``.
    """

    name = "pinned"

    def __init__(self, *, io_threads: int, slab_bytes: int, num_slabs: int) -> None:
        self._native = native.Engine(
            io_threads=io_threads, slab_bytes=slab_bytes, num_slabs=num_slabs
        )

    def write(
        self,
        file: native.File,
        extents: array[int],
        *,
        chunk_bytes: int,
        streams: array[int],
        owner: object,
    ) -> native.Transfer:
        """Start to write; see :class:`gdsckpt.engine.base.Engine`."""
        return self._native.write(
            file, extents, chunk_bytes=chunk_bytes, streams=streams, owner=owner
        )

    def read(
        self, file: native.File, extents: array[int], *, streams: array[int], owner: object
    ) -> native.Transfer:
        """Start to read; see :class:`gdsckpt.engine.base.Engine`."""
        return self._native.read(file, extents, streams=streams, owner=owner)

    def scan(self, file: native.File, begin: int, end: int, *, chunk_bytes: int) -> native.Transfer:
        """Start to scan; see :class:`gdsckpt.engine.base.Engine`."""
        return self._native.scan(file, begin, end, chunk_bytes=chunk_bytes)

    @property
    def pin_refused(self) -> str:
        """Why slabs could not be page-locked, so that copies are slower; empty if they could."""
        return self._native.pin_refused


_shared = SharedEngines(PinnedEngine)


def shared_engine(config: Config, slab_bytes: int | None = None) -> PinnedEngine:
    """Give the process's engine for these settings; made at the first call.

    Args:
        config: ``io_threads``, ``chunk_bytes`` and ``pinned_pool_bytes`` are read.
        slab_bytes: Slab size in bytes where a file's own chunk size asks for more than
            ``config.chunk_bytes``.
    """
    return _shared.get(config, slab_bytes)
