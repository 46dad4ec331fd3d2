"""Snapshots for tests: taken as the Checkpointer does, and written by the one write path."""

import contextlib
import logging
import threading
from pathlib import Path

import torch

from gdsckpt.config import Config
from gdsckpt.saving import content_of
from gdsckpt.snapshot import Slots, SnapshotOptions, take
from gdsckpt.staging import content as shard_content
from gdsckpt.staging import writer

MIB = 1 << 20
BUFFERED = Config(io_threads=2, direct_io="off", fsync=False)


def slots(num_slots=2, max_bytes=64 * MIB, policy="wait"):
    """Give slots for small states."""
    return Slots(num_slots, max_bytes, policy)


def snap(state, mode="auto", optimizer=None, *, into=None, step=1):
    """Take a snapshot of a nest."""
    options = SnapshotOptions(mode=mode, optimizer=optimizer)
    return take(state, content_of(state), options, into or slots(), step=step)


def layout_of(snapshot):
    """Give where the storages of a snapshot will lie."""
    return shard_content.plan(snapshot.content).layout


def check(snapshot):
    """Run the guard's check, without a file to read back."""
    snapshot.content.require_unchanged(-1, layout_of(snapshot))


def write(snapshot, path: Path, **how_to_load):
    """Write and check a snapshot; gives what stock torch then finds."""
    writer.write_file(path, snapshot.content, BUFFERED)
    return torch.load(path, **how_to_load)


def trained(model, make, **settings):
    """Give an optimizer that has made one step, so that it has its state."""
    optimizer = make(model.parameters(), **settings)
    give_gradients(model)
    optimizer.step()
    return optimizer


def give_gradients(model):
    """Let a step change every parameter."""
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 0.5)


def training_state(model, optimizer):
    """Give the nest that a training saves."""
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


class _Told(logging.Handler):
    def __init__(self, event):
        super().__init__(logging.DEBUG)
        self._event = event

    def emit(self, record):
        if "a step waits" in record.getMessage():
            self._event.set()


@contextlib.contextmanager
def when_a_step_waits():
    """Give an event that is set when an optimizer's step has begun to wait."""
    waiting = threading.Event()
    logger = logging.getLogger("gdsckpt.snapshot.fence")
    told = _Told(waiting)
    level = logger.level
    logger.addHandler(told)
    logger.setLevel(logging.DEBUG)
    try:
        yield waiting
    finally:
        logger.removeHandler(told)
        logger.setLevel(level)
