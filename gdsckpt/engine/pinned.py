"""The ``pinned`` engine: a ring of aligned host slabs and direct I/O from writer threads."""

from __future__ import annotations

import os
import threading
from array import array

from gdsckpt import native
from gdsckpt.config import Config

_lock = threading.Lock()
_engines: dict[tuple[int, int, int], PinnedEngine] = {}


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


def shared_engine(config: Config, slab_bytes: int | None = None) -> PinnedEngine:
    """Give the process's engine for these settings; made at the first call.

    Args:
        config: ``io_threads``, ``chunk_bytes`` and ``pinned_pool_bytes`` are read.
        slab_bytes: Slab size in bytes where a file's own chunk size asks for more than
            ``config.chunk_bytes``.
    """
    slab = max(config.chunk_bytes, slab_bytes or 0)
    num_slabs = max(1, min(config.io_threads, config.pinned_pool_bytes // slab))
    key = (config.io_threads, slab, num_slabs)
    with _lock:
        if key not in _engines:
            _engines[key] = PinnedEngine(
                io_threads=config.io_threads, slab_bytes=slab, num_slabs=num_slabs
            )
        return _engines[key]


def _forget_engines() -> None:
    """Start afresh in a forked child: it has none of the parent's threads."""
    global _lock  # noqa: PLW0603 - the parent's lock may be held by a thread that is not here
    _lock = threading.Lock()
    _engines.clear()


os.register_at_fork(after_in_child=_forget_engines)
