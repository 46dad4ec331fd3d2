"""The ways to save behind a training that are compared."""

from __future__ import annotations

import contextlib
import shutil
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.utils import _pytree as pytree

import gdsckpt
from bench.training import Trained, Training

SAVE = "gdsckpt save"
FENCE = "gdsckpt async_save, fence"
HOST = "gdsckpt async_save, host"
COPY = "copy into touched memory"
DCP = "DCP async_save"
DCP_KEPT = "DCP async_save, stager kept"
DCP_THREAD = "DCP async_save, stager kept, in a thread"


class Pending:
    """What is going on behind the training.

    Args:
        ends: Ends with it; None where it has ended already.
        staged: When it is done, the tensors may change; None where they may at once.
    """

    def __init__(self, ends: Future[Any] | None = None, staged: Future[Any] | None = None) -> None:
        self._ends = ends
        self._staged = staged
        self.ended_at = time.perf_counter()
        if ends is not None:
            ends.add_done_callback(self._note)

    def is_over(self) -> bool:
        """Tell whether it has ended."""
        return self._ends is None or self._ends.done()

    def before_optimizer(self) -> None:
        """Wait until the tensors may change. Ours waits by itself."""
        if self._staged is not None:
            self._staged.result()

    def finish(self) -> None:
        """Wait for the end, and raise what it failed with."""
        if self._ends is not None:
            self._ends.result()

    def _note(self, _: object) -> None:
        self.ended_at = time.perf_counter()


@dataclass(frozen=True, slots=True)
class Behind:
    """One way.

    Attributes:
        name: For tables.
        start: What the training calls, and waits for.
        tidy: Removes what the run before left, and waits for what still goes on.
        load: Gives the states that were saved last; None where nothing can be loaded.
    """

    name: str
    start: Callable[[], Pending]
    tidy: Callable[[], None] = lambda: None
    load: Callable[[], Any] | None = None


@contextlib.contextmanager
def ours(training: Trained, root: Path) -> Iterator[list[Behind]]:
    """Give our ways to save one training into one root."""
    state = gdsckpt.TrainingState(**training.parts())
    with gdsckpt.Checkpointer(root, keep_local=1) as checkpointer:
        step = 0

        def start(optimizer: Any, snapshot: str) -> Pending:
            nonlocal step
            step += 1
            return Pending(checkpointer.async_save(step, state, optimizer, snapshot).committed)

        def save() -> Pending:
            nonlocal step
            step += 1
            checkpointer.save(step, state)
            return Pending()

        def load() -> Any:
            found = checkpointer.load()
            return {name: found[name] for name in training.parts()}

        yield [
            Behind(SAVE, save, checkpointer.wait, load),
            Behind(FENCE, lambda: start(training.optimizer, "fence"), checkpointer.wait, load),
            Behind(HOST, lambda: start(None, "host"), checkpointer.wait, load),
        ]


def plain_copy(training: Training) -> Behind:
    """Give the least that a copy of the state can cost: torch's own, into memory that is there."""
    copies = [torch.zeros_like(tensor) for tensor in training.tensors()]

    def copy() -> Pending:
        for to, tensor in zip(copies, training.tensors(), strict=True):
            to.copy_(tensor.detach())
        return Pending()

    return Behind(COPY, copy)


@contextlib.contextmanager
def others(training: Training, directory: Path) -> Iterator[list[Behind]]:
    """Give the ways of ``torch.distributed.checkpoint``.

    Pinned memory and copies that do not block need a GPU, and have no place here.
    """
    kept = DefaultStager(StagingOptions(False, False, False, False))
    threaded = DefaultStager(StagingOptions(False, False, True, False))
    with contextlib.closing(kept), contextlib.closing(threaded), warnings.catch_warnings():
        # There is no process group, which is meant. Threads warn, too.
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield [
            _dcp(DCP, training, directory / "dcp", None),
            _dcp(DCP_KEPT, training, directory / "dcp-kept", kept),
            _dcp(DCP_THREAD, training, directory / "dcp-thread", threaded),
        ]


def _dcp(name: str, training: Training, path: Path, stager: DefaultStager | None) -> Behind:
    def start() -> Pending:
        answer: Any = dcp.async_save(
            training.parts(), checkpoint_id=path, no_dist=True, async_stager=stager
        )
        if isinstance(answer, Future):
            return Pending(answer)
        return Pending(answer.upload_completion, answer.staging_completion)

    def load() -> Any:
        nest = pytree.tree_map_only(torch.Tensor, torch.zeros_like, training.nest())
        dcp.load(nest, checkpoint_id=path, no_dist=True)
        return nest

    return Behind(name, start, lambda: shutil.rmtree(path, ignore_errors=True), load)
