"""The guard: raises when memory that a save reads was changed meanwhile."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager

from gdsckpt.errors import GdsckptError, TornSnapshotError
from gdsckpt.format.layout import ShardLayout
from gdsckpt.format.table import TensorEntry
from gdsckpt.snapshot.placing import Placing
from gdsckpt.snapshot.samples import Look, Memory
from gdsckpt.snapshot.source import Source
from gdsckpt.snapshot.watch import Watch, counters_of
from gdsckpt.staging.content import Buffer


class Guard:
    """Notes what the storages of a state are, before anything is copied or read.

    Args:
        source: The state.
        placed: What is read live; the rest is copied.
        on_side_streams: Gives a context for looks at devices by other threads.
    """

    def __init__(
        self,
        source: Source,
        placed: Placing,
        on_side_streams: Callable[[], AbstractContextManager[object]],
    ) -> None:
        seed = int.from_bytes(os.urandom(8))
        content = source.content
        counters = counters_of(source)
        live = {*placed.fenced, *placed.waited}
        copied = [number for number in range(len(content.storages)) if number not in live]

        def watch(numbers: Iterable[int]) -> Watch:
            filled = [number for number in numbers if content.storages[number].nbytes]
            memory = Memory(filled, [content.storages[number] for number in filled])
            return Watch(memory, counters, seed, content.streams)

        self._tensors = content.tensors
        self._on_side_streams = on_side_streams
        self._lock = threading.RLock()
        self._fenced: Watch | None = watch(placed.fenced)
        self._waited: Watch | None = watch(placed.waited)
        self._copied: Watch | None = watch(copied)
        self._is_waited_read = False
        self._looks: list[tuple[Look, Look]] = []
        self._changed: set[int] = set()
        self._failure: GdsckptError | None = None

    def require_copied(self, storages: Sequence[Buffer]) -> None:
        """Check, right after they were made, that copies are what the storages were and still are.

        What is on devices is compared later, by :meth:`require_unchanged`: nobody waits for it
        here. The originals are let go of.

        Args:
            storages: Of the state, with the copies in their places.

        Raises:
            TornSnapshotError: Another thread has changed a storage meanwhile.
        """
        watch, self._copied = self._copied, None
        if watch is None:
            raise AssertionError("the copies were checked before")
        require_none(watch.moved(), self._tensors)
        for look in (watch.look(), watch.look_at(storages)):
            if watch.before.is_here and look.is_here:
                require_none(watch.before.differing(look), self._tensors)
            else:
                self._looks.append((watch.before, look))

    def prefix_read(self) -> None:
        """Check what the caller waited for, before it goes on; what is found is raised later."""
        with self._lock:
            if self._is_waited_read or self._waited is None:
                return
            self._is_waited_read = True
            try:
                with self._on_side_streams():
                    self._changed |= self._waited.changed()
            except GdsckptError as error:
                self._failure = error

    def require_unchanged(self, fd: int, layout: ShardLayout) -> None:
        """Check all when the last byte was read.

        Args:
            fd: Of the file that was written, or -1 where none can be read back.
            layout: Where its storages lie.

        Raises:
            TornSnapshotError: Storages are not what they were, or the file does not hold that.
            StorageError: The file cannot be read.
            CudaError: A device cannot be looked at.
        """
        self.prefix_read()
        with self._lock, self._on_side_streams():
            if self._fenced is None or self._waited is None:
                raise AssertionError("the snapshot was released")
            if self._failure is not None:
                raise self._failure
            changed = self._changed | self._fenced.changed()
            for before, after in self._looks:
                changed |= before.differing(after)
            if fd >= 0:
                for live in (self._fenced, self._waited):
                    changed |= live.misread(fd, layout)
        require_none(changed, self._tensors)

    def clear(self) -> None:
        """Let go of the memory; nothing can be checked any more."""
        with self._lock:
            self._fenced = self._waited = self._copied = None
            self._looks.clear()


def require_none(changed: set[int], tensors: Sequence[TensorEntry]) -> None:
    """Raise when storages have changed.

    Args:
        changed: Their numbers.
        tensors: For the names.

    Raises:
        TornSnapshotError: There are some.
    """
    if not changed:
        return
    names = [entry.name for entry in tensors if entry.record in changed]
    listed = ", ".join(names[:3]) or "a tensor that has no name in the state"
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    raise TornSnapshotError(
        f"{listed}{more} changed while the state was saved, so what was read is of no one time. "
        "Nothing was committed. Change tensors only by the optimizer that the save was told of, or "
        'when "staged" of its handle is done, or save with snapshot="host".',
        names=names,
    )
