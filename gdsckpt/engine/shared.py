"""One engine per process and configuration: threads and slabs are shared by all that use it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from gdsckpt.config import Config

E = TypeVar("E")


class SharedEngines(Generic[E]):
    """The engines of one kind, each made when it is first asked for. Any thread may call.

    A forked child starts afresh: it has none of the parent's threads.

    Args:
        make: Makes an engine from ``io_threads``, ``slab_bytes`` and ``num_slabs``.
    """

    def __init__(self, make: Callable[..., E]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._engines: dict[tuple[int, int, int], E] = {}
        os.register_at_fork(after_in_child=self._forget)

    def get(self, config: Config, slab_bytes: int | None = None) -> E:
        """Give the engine for some settings.

        Args:
            config: ``io_threads``, ``chunk_bytes`` and ``pinned_pool_bytes`` are read.
            slab_bytes: Slab size in bytes where a file's own chunk size asks for more than
                ``config.chunk_bytes``.
        """
        slab = max(config.chunk_bytes, slab_bytes or 0)
        num_slabs = max(1, min(config.io_threads, config.pinned_pool_bytes // slab))
        key = (config.io_threads, slab, num_slabs)
        with self._lock:
            if key not in self._engines:
                self._engines[key] = self._make(
                    io_threads=config.io_threads, slab_bytes=slab, num_slabs=num_slabs
                )
            return self._engines[key]

    def _forget(self) -> None:
        # The parent's lock may be held by a thread that is not here.
        self._lock = threading.Lock()
        self._engines.clear()
