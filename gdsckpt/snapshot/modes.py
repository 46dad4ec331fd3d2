"""Take a snapshot of a state: what is copied, what is read live, and what guards it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gdsckpt.errors import ConfigError
from gdsckpt.format import layout as layouts
from gdsckpt.format.layout import ShardLayout
from gdsckpt.snapshot import fence
from gdsckpt.snapshot.copies import Copies
from gdsckpt.snapshot.fence import Fence
from gdsckpt.snapshot.guard import Guard
from gdsckpt.snapshot.placing import Placing
from gdsckpt.snapshot.slots import Lease, Slots
from gdsckpt.snapshot.source import Source
from gdsckpt.snapshot.streams import SideStreams
from gdsckpt.staging.content import ShardContent
from gdsckpt.tensors import collector

MODES = ("auto", "fence", "host", "device")


@dataclass(frozen=True, slots=True)
class SnapshotOptions:
    """How to take a snapshot.

    Attributes:
        mode: ``fence``, ``host``, ``device``, or ``auto``: ``fence`` where an optimizer is given,
            else ``host``.
        optimizer: The torch optimizer, or several, that change the state.

    Raises:
        ConfigError: There is no such mode, or what is given is no optimizer.
    """

    mode: str = "auto"
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None = None

    def __post_init__(self) -> None:
        """Check the values."""
        if self.mode not in MODES:
            raise ConfigError(
                f"snapshot is {self.mode!r}. Allowed: {', '.join(MODES)}.", field="snapshot"
            )
        wrong = [each for each in self.optimizers if not isinstance(each, torch.optim.Optimizer)]
        if wrong:
            raise ConfigError(
                f"optimizer is a {type(wrong[0]).__name__}, whose steps cannot be made to wait. "
                'Give a torch.optim.Optimizer, or save with snapshot="host".',
                field="optimizer",
            )
        if self.mode == "fence" and not self.optimizers:
            raise ConfigError(
                'snapshot="fence" needs to know whose steps have to wait. Give optimizer=, or save '
                'with snapshot="host".',
                field="optimizer",
            )

    @property
    def optimizers(self) -> tuple[Any, ...]:
        """All that are given."""
        if self.optimizer is None:
            return ()
        return tuple(self.optimizer) if isinstance(self.optimizer, Iterable) else (self.optimizer,)


class Snapshot:
    """A state as it was at one call, to be written by another thread. Any thread may call.

    Attributes:
        mode: What was done: ``fence``, ``host`` or ``device``.
        content: What to write. Its ``require_unchanged`` is the guard's check, to be called when
            the last byte was read.
        live_bytes: Bytes that are read where they are.
        copied_bytes: Bytes that were copied.
        live_end: Where it is not 0, there was no room to copy all: the caller has to wait until
            some of the storages below this number were read, see :meth:`prefix_end`.
    """

    def __init__(self, mode: str, source: Source, placed: Placing, lease: Lease) -> None:
        """Begin a snapshot; :func:`take` makes it complete."""
        content = source.content
        self.mode = mode
        self.content = content
        live = [content.storages[n].nbytes for n in (*placed.fenced, *placed.waited)]
        self.live_bytes = sum(live)
        self.copied_bytes = content.payload_bytes - self.live_bytes
        self._waited = {n for n in placed.waited if content.storages[n].nbytes}
        self.live_end = 1 + max(self._waited, default=-1)
        self._lease = lease
        self._fence = _fence_of(source, placed.fenced)
        self._waited_fence = _fence_of(source, placed.waited)
        self._guard: Guard | None = None

    def prefix_end(self, layout: ShardLayout) -> int:
        """Give the file offset up to which the transfer must have come before the caller goes on.

        0 where nobody has to wait.
        """
        return layouts.payloads_end(layout, self._waited)

    def prefix_read(self) -> None:
        """Be told that the file has come so far, before the caller goes on.

        What the caller waited for is checked now and may change then; what is found is raised by
        ``content.require_unchanged``. Never raises.
        """
        guard = self._guard
        if guard is not None:
            guard.prefix_read()
        self._waited_fence.lift()

    def staged(self) -> None:
        """Be told that all was read and checked, or that the save failed: steps go on."""
        self._fence.lift()
        self._waited_fence.lift()

    def release(self) -> None:
        """Give the slot back, after the write has ended, well or not.

        Never raises; a second call does nothing.
        """
        self.staged()
        guard, self._guard = self._guard, None
        if guard is not None:
            guard.clear()
        self._lease.release()

    def fill(self, source: Source, copies: Copies) -> None:
        """Note what the state is, then make the copies; :func:`take` does so, once."""
        original = source.content
        streams = SideStreams(original.streams)
        self._fence.put_up()
        self._waited_fence.put_up()
        guard = self._guard = Guard(source, copies.placed, streams.current)
        storages = copies.make()
        guard.require_copied(storages)
        streams.follow()
        self.content = dataclasses.replace(
            original,
            storages=storages,
            streams=streams.rows,
            require_unchanged=guard.require_unchanged,
        )


def take(
    state: Any, content: ShardContent, options: SnapshotOptions, slots: Slots, *, step: int
) -> Snapshot:
    """Take a snapshot, in the thread that changes the state. The caller stalls for so long.

    Args:
        state: The nest that was pickled.
        content: Its shard.
        options: How.
        slots: Has one slot for it, which the snapshot holds until its release.
        step: For messages.

    Raises:
        SnapshotBusyError: No slot is free, and the slots' policy is not to wait.
        TornSnapshotError: Another thread changed the state meanwhile.
        CudaError: A copy from a device failed.
        ConfigError: The slots are closed.
    """
    lease = slots.acquire(step)
    try:
        with collector.paused():
            return _take(Source(state, content), options, lease, slots.slot_max_bytes)
    except BaseException:
        lease.release()
        raise


def _take(source: Source, options: SnapshotOptions, lease: Lease, room_bytes: int) -> Snapshot:
    is_fenced = options.mode == "fence" or (options.mode == "auto" and bool(options.optimizers))
    owned: dict[int, tuple[torch.Tensor, ...]] = {}
    for optimizer in options.optimizers if is_fenced else ():
        found = fence.storages_of(optimizer)
        shared = {each: owned[each] + found[each] for each in owned.keys() & found.keys()}
        owned |= found | shared
    copies = Copies(source, owned, lease, room_bytes, on_device=options.mode == "device")
    mode = "fence" if is_fenced else "device" if copies.are_on_device else "host"
    snapshot = Snapshot(mode, source, copies.placed, lease)
    try:
        snapshot.fill(source, copies)
    except BaseException:
        snapshot.staged()
        raise
    return snapshot


def _fence_of(source: Source, numbers: Iterable[int]) -> Fence:
    identities = {source.identities[number] for number in numbers}
    identities.discard(0)
    return Fence(identities)
