"""Slots: host memory that snapshots are copied to, used again and again."""

from __future__ import annotations

import logging
import os
import threading
import warnings
import weakref

from gdsckpt import native
from gdsckpt.errors import ConfigError, FallbackWarning, SnapshotBusyError

logger = logging.getLogger(__name__)

POLICIES = ("wait", "skip", "raise")

ROUND_BYTES = 2 << 20
"""Memory comes in huge pages; and a state that grows by little finds room."""

POLL_S = 1.0
"""How often a wait for a slot wakes by itself; a slot that is given back wakes it at once."""


class Slots:
    """So many snapshots may be in flight, each in memory of its own, which is kept for the next.

    Memory comes when it is first needed, with all its pages. Any thread may call.

    Args:
        num_slots: At least 1.
        max_bytes: What all slots together may have; each has an equal part.
        policy: What :meth:`acquire` does when all are in flight: ``wait`` for one; ``skip`` and
            ``raise`` are one here, and differ in what the caller makes of the error.

    Attributes:
        slot_max_bytes: What one slot may have.
    """

    def __init__(self, num_slots: int, max_bytes: int, policy: str) -> None:
        if num_slots < 1 or max_bytes < 0:
            raise ConfigError(
                f"{num_slots} slots with {max_bytes} bytes in all cannot be. Have at least one "
                "slot, and no negative number of bytes.",
                field="snapshot_slots" if num_slots < 1 else "staging_max_bytes",
            )
        if policy not in POLICIES:
            raise ConfigError(
                f"snapshot_policy is {policy!r}. Allowed: {', '.join(POLICIES)}.",
                field="snapshot_policy",
            )
        self.slot_max_bytes = max_bytes // num_slots
        self._policy = policy
        # Re-entrant: the collector may free a lease in a thread that holds it.
        self._changed = threading.Condition(threading.RLock())
        self._slots = [_Slot() for _ in range(num_slots)]
        self._num_acquired = 0
        self._is_closed = False
        self._pid = os.getpid()

    @property
    def mapped_bytes(self) -> int:
        """Host memory of all slots, in flight or not."""
        with self._changed:
            return sum(slot.nbytes for slot in self._slots)

    @property
    def num_in_flight(self) -> int:
        """Slots that are in use."""
        with self._changed:
            return sum(not slot.is_free for slot in self._slots)

    def acquire(self, step: int) -> Lease:
        """Take a slot; with the policy ``wait``, wait for one, open to signals.

        Raises:
            SnapshotBusyError: None is free, and the policy is another.
            ConfigError: The slots were closed.
        """
        with self._changed:
            while not self._is_closed:
                free = [slot for slot in self._slots if slot.is_free]
                if free:
                    # The one used last: its pages are warm, and others may never be needed.
                    slot = max(free, key=lambda each: each.last_used)
                    self._num_acquired += 1
                    slot.last_used = self._num_acquired
                    lease = Lease(self, slot)
                    # Nothing is lost by an interrupt: a slot is free while nobody has its lease.
                    slot.lease = weakref.ref(lease, self._note_change)
                    return lease
                if self._policy != "wait":
                    raise SnapshotBusyError(
                        f"step {step} was not saved: {len(self._slots)} snapshots wait for the "
                        "drive, and there is no slot for another. Save less often, raise "
                        "snapshot_slots, or set snapshot_policy to wait.",
                        step=step,
                    )
                self._changed.wait(POLL_S)
        raise ConfigError(f"step {step} was not saved: the slots are closed.")

    def give_back(self, slot: _Slot) -> None:
        """Take a slot back from its lease. In a forked child nothing is done."""
        if os.getpid() == self._pid:
            with self._changed:
                slot.lease = None
                self._note_change()

    def close(self) -> None:
        """Free the memory, of slots in flight when they come back. A second call does nothing."""
        with self._changed:
            self._is_closed = True
            self._note_change()

    def _note_change(self, _lease: object = None) -> None:
        """Wake those who wait; free what is not needed any more."""
        if os.getpid() != self._pid:  # a lock may be held for ever by a thread of the parent
            return
        with self._changed:
            for slot in self._slots if self._is_closed else ():
                if slot.is_free:
                    slot.free()
            self._changed.notify_all()


class Lease:
    """A slot on loan: it goes back by :meth:`release`, or when nothing refers to it any more."""

    def __init__(self, slots: Slots, slot: _Slot) -> None:
        """Hold a slot."""
        self._slots = slots
        self._slot: _Slot | None = slot
        self._lock = threading.Lock()

    def reserve(self, nbytes: int, device: int) -> int:
        """Have memory in the slot; its content is anything.

        Args:
            nbytes: At least 1.
            device: CUDA's number of a GPU that copies to it, or ``native.HOST``.

        Returns:
            The address of the first byte, which begins a page.

        Raises:
            MemoryError: There is not that much.
        """
        if self._slot is None:
            raise AssertionError("the slot was given back")
        return self._slot.reserve(nbytes, device)

    def release(self) -> None:
        """Give the slot back. A second call does nothing; nor does one in a forked child."""
        with self._lock:
            slot, self._slot = self._slot, None
        if slot is not None:
            self._slots.give_back(slot)


class _Slot:
    """Memory that grows with what it is used for."""

    def __init__(self) -> None:
        self.lease: weakref.ref[Lease] | None = None
        self.last_used = 0
        self._memory: native.HostMemory | None = None
        self._is_pinned = False

    @property
    def is_free(self) -> bool:
        return self.lease is None or self.lease() is None

    @property
    def nbytes(self) -> int:
        return 0 if self._memory is None else self._memory.nbytes

    def free(self) -> None:
        self._memory = None

    def reserve(self, nbytes: int, device: int) -> int:
        needs_pin = device != native.HOST and not self._is_pinned
        if self._memory is None or self.nbytes < nbytes or needs_pin:
            self._memory = None  # before the new one comes: there may be no room for both
            rounded = -(-nbytes // ROUND_BYTES) * ROUND_BYTES
            self._memory = native.HostMemory(rounded, device)
            self._is_pinned = device != native.HOST
            logger.debug("mapped a slot: %d bytes pinned=%s", rounded, self._is_pinned)
            if self._memory.pin_refused:
                warnings.warn(
                    "snapshots of tensors on GPUs are copied to memory that is not page-locked, "
                    f"which is slower: {self._memory.pin_refused}. Raise the limit of locked "
                    "memory (ulimit -l) or lower staging_max_bytes.",
                    FallbackWarning,
                    stacklevel=2,
                )
        return self._memory.address
