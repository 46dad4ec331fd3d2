"""The fence: an optimizer waits before it changes tensors that are still being written."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import weakref
from collections.abc import Iterable, Set
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from gdsckpt.snapshot.leaves import leaves_of

logger = logging.getLogger(__name__)

POLL_S = 1.0
"""How often a wait wakes by itself; the end of the fence wakes it at once."""

_lock = threading.RLock()
_fences: list[weakref.ref[Fence]] = []
_is_installed = False


class Fence:
    """Storages that no optimizer may change until :meth:`lift`, or until the fence is let go.

    Args:
        storages: ``_cdata`` of each storage, which the caller keeps alive.
    """

    def __init__(self, storages: Set[int]) -> None:
        self._storages = storages
        self._lifted = threading.Event()

    def put_up(self) -> None:
        """Have the steps that begin from now on wait."""
        if not self._storages:
            self._lifted.set()
            return
        install()
        with _lock:
            _fences.append(weakref.ref(self))

    def lift(self) -> None:
        """Let all who wait go on. A second call does nothing."""
        self._lifted.set()
        with _lock:
            _fences[:] = [each for each in _fences if each() not in (self, None)]

    def lifted_for(self, storages: Iterable[int]) -> threading.Event | None:
        """Give what to wait for before these storages are changed; None for nothing."""
        if self._lifted.is_set() or self._storages.isdisjoint(storages):
            return None
        return self._lifted

    def __del__(self) -> None:
        """Let all go on: whoever put it up has lost it."""
        with contextlib.suppress(AttributeError):  # an interrupt of the constructor left it so
            self._lifted.set()


def install() -> None:
    """Have every ``step`` of every torch optimizer ask the fences first, for ever.

    Once for the process, when the first fence is put up: a compiled ``step`` is compiled again when
    hooks come or go. Called earlier, it is compiled with it from the beginning.
    """
    global _is_installed  # noqa: PLW0603 - torch's hooks are the process's, too
    with _lock:
        if not _is_installed:
            # Not to be compiled: there would be one version for each state of the fences.
            hook = torch._disable_dynamo(_wait_for_fences)  # type: ignore[attr-defined]
            register_optimizer_step_pre_hook(hook)
            _is_installed = True


def storages_of(optimizer: torch.optim.Optimizer) -> dict[int, tuple[torch.Tensor, ...]]:
    """Give the tensors that an optimizer changes, by ``_cdata`` of their storages."""
    parameters = [group["params"] for group in optimizer.param_groups]
    _, parts, storages = leaves_of([parameters, list(optimizer.state.values())])
    found: dict[int, tuple[torch.Tensor, ...]] = dict(zip(storages, zip(parts), strict=True))
    if len(found) < len(parts):  # some share a storage
        found.clear()
        for part, storage in zip(parts, storages, strict=True):
            found[storage] = (*found.get(storage, ()), part)
    return found


def _wait_for_fences(optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
    """Torch's hook: before any step of any optimizer, in the thread that steps."""
    if not _fences:
        return
    for lifted in _waits_of(optimizer):
        if not lifted.is_set():
            logger.debug("a step waits for a snapshot: optimizer=%s", type(optimizer).__name__)
        while not lifted.wait(POLL_S):
            pass


def _waits_of(optimizer: torch.optim.Optimizer) -> list[threading.Event]:
    """Give what a step has to wait for.

    Not the fences: one that its owner lets go of has to go, whoever waits.
    """
    with _lock:
        fences = [each() for each in _fences]
    owned = storages_of(optimizer)
    waits = [fence.lifted_for(owned) for fence in fences if fence is not None]
    return [wait for wait in waits if wait is not None]


def _start_in_child() -> None:
    """Forget the fences: those who would lift them are the parent's threads."""
    global _lock  # noqa: PLW0603 - see above
    _lock = threading.RLock()
    _fences.clear()


os.register_at_fork(after_in_child=_start_in_child)
