"""A training run that is killed and goes on: what children of server.py do for the crash matrix.

A run follows a script of trainings, saves and goings back. What it has reached it appends to a file
of events, a line of JSON each, which outlives a kill.
"""

import hashlib
import importlib
import json
import os
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy
import torch
from crash_roles import tree
from torch.nn import functional

import gdsckpt
from gdsckpt import Checkpointer, TrainingState
from gdsckpt.config import Config
from gdsckpt.errors import GdsckptError
from gdsckpt.remote.steps import RemoteSteps
from gdsckpt.staging import root as roots

# Small ones, so that a shard has several of each.
CONFIG = {"chunk_bytes": "192KiB", "pinned_pool_bytes": "1MiB", "io_threads": 2}


@dataclass(frozen=True)
class Train:
    """So many steps of training."""

    num_steps: int

    def do(self, run):
        for _ in range(self.num_steps):
            run.trainer.train()


@dataclass(frozen=True)
class Save:
    """Save the step: ``save`` waits, ``fence`` and ``host`` are asynchronous."""

    mode: str = "save"
    overwrite: bool = False

    def do(self, run):
        run.save(self)


@dataclass(frozen=True)
class Back:
    """Go back to a step, and on from there at half the learning rate."""

    step: int

    def do(self, run):
        run.checkpointer.load(self.step, into=run.trainer.state)
        run.trainer.halve_the_rate()


@dataclass(frozen=True)
class Wait:
    """Wait until all saves and uploads have ended."""

    def do(self, run):
        run.checkpointer.wait()


@dataclass(frozen=True)
class Script:
    """What a run does.

    Attributes:
        ops: In order.
        keep_local: Of the Checkpointer.
    """

    ops: tuple
    keep_local: int


def _waiting(*ops):
    """Wait after each save, so that every run makes the same calls in the same order."""
    return tuple(each for op in ops for each in ((op, Wait()) if isinstance(op, Save) else (op,)))


SCRIPTS = {
    # Retention; going back to before the newest step; saving over the newest step.
    "steady": Script(
        _waiting(
            *(Train(2), Save("save"), Train(2), Save("fence"), Train(2), Save("host")),
            *(Back(4), Train(1), Save("host", overwrite=True)),
            *(Back(4), Train(1), Save("fence", overwrite=True), Train(1), Save("save"), Train(1)),
        ),
        keep_local=2,
    ),
    # Saves on top of one another, while the training goes on.
    "overlapping": Script(
        (
            *(Train(1), Save("fence"), Train(1), Save("host"), Train(1), Save("host"), Train(2)),
            *(Save("fence"), Train(1), Save("save"), Train(3), Save("host"), Train(1)),
            *(Save("fence"), Train(2), Save("host"), Wait(), Back(10), Train(1)),
            *(Save("fence", overwrite=True), Train(1), Save("host", overwrite=True), Train(1)),
            *(Save("fence"), Train(2), Save("save"), Train(2), Save("fence"), Train(1)),
            *(Save("host"), Train(1)),
        ),
        keep_local=2,
    ),
    # Two steps stay in the root, all in the store.
    "stored": Script(
        _waiting(
            *(Train(2), Save("fence"), Train(2), Save("save"), Train(2), Save("host"), Train(1)),
            *(Back(4), Train(1), Save("fence", overwrite=True), Train(2), Save("host"), Train(1)),
            *(Save("save"), Train(1)),
        ),
        keep_local=2,
    ),
}


class Trainer:
    """A small model with all that has a state: the same seed gives the same bits."""

    def __init__(self):
        random.seed(5)
        numpy.random.seed(6)  # noqa: NPY002 - what training scripts use
        torch.manual_seed(7)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(16, 256),
            torch.nn.BatchNorm1d(256),
            torch.nn.GELU(),
            torch.nn.Dropout(0.2),
            torch.nn.Linear(256, 128),
            torch.nn.Linear(128, 4),
        )
        # Fused, it changes the parameters behind the back of their version counters.
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01, fused=True)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.97)
        self.loader = Loader()
        average = self.model[4].weight.detach().clone()
        self.extra = {"step": 0, "save": 0, "op": -1, "average": average}
        self.scheduler = scheduler
        self.state = TrainingState(
            model=self.model,
            optimizer=self.optimizer,
            scheduler=scheduler,
            dataloader=self.loader,
            extra=self.extra,
        )

    def train(self):
        """Do one step."""
        inputs, classes = self.loader.next()
        if random.random() < 0.5:
            inputs = -inputs
        noise = numpy.random.standard_normal(inputs.shape)  # noqa: NPY002
        loss = functional.cross_entropy(
            self.model(inputs + torch.from_numpy(noise).float()), classes
        )
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        self.extra["average"].lerp_(self.model[4].weight.detach(), 0.1)
        self.extra["step"] += 1

    def halve_the_rate(self):
        for group in self.optimizer.param_groups:
            group["lr"] *= 0.5

    def digest(self):
        """Give the digest of all that a save of now holds."""
        return digest_of(self.state.state_dict())


class Loader:
    """Gives the samples in an order that is drawn anew for each epoch."""

    def __init__(self):
        chance = torch.Generator().manual_seed(8)
        self._inputs = torch.randn(32, 16, generator=chance)
        self._classes = torch.randint(4, (32,), generator=chance)
        self._order = torch.randperm(32)
        self._at = 0

    def next(self):
        if self._at == len(self._order):
            self._order, self._at = torch.randperm(32), 0
        chosen = self._order[self._at : self._at + 8]
        self._at += 8
        return self._inputs[chosen], self._classes[chosen]

    def state_dict(self):
        return {"order": self._order, "at": self._at}

    def load_state_dict(self, state):
        self._order, self._at = state["order"], state["at"]


def digest_of(nest):
    """Give a digest of every bit of a nest."""
    found = hashlib.blake2b(digest_size=8)
    stack = [nest]
    while stack:
        node = stack.pop()
        if isinstance(node, torch.Tensor):
            found.update(f"{node.dtype} {tuple(node.shape)}".encode())
            found.update(node.detach().contiguous().reshape(-1).view(torch.uint8).numpy())
        elif isinstance(node, Mapping):
            found.update(repr(list(node)).encode())
            stack.extend(node.values())
        elif isinstance(node, (list, tuple)):
            found.update(b"%d" % len(node))
            stack.extend(node)
        else:
            found.update(repr(node).encode())
    return found.hexdigest()


class Events:
    """Appends lines to a file: each is there whole or not, whatever happens to this process."""

    def __init__(self, path):
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)

    def say(self, event, **fields):
        os.write(self._fd, json.dumps({"event": event, **fields}).encode() + b"\n")

    def close(self):
        os.close(self._fd)


class Run:
    """One process of a training.

    Args:
        script: Key of SCRIPTS.
        root: Of the Checkpointer.
        events: File to append to.
        store: URL, or None.
    """

    def __init__(self, script, root, events, store=None):
        self._script = SCRIPTS[script]
        self._root = Path(root)
        self._store = store
        self._events = Events(events)
        self._op = 0
        self.trainer = Trainer()
        self.checkpointer = self._open()

    def go(self):
        """Say what is there, go on from the newest step, and follow the script to its end."""
        self.begin()
        ops = self._script.ops
        for n in range(self.trainer.extra["op"] + 1, len(ops)):
            self._op = n
            ops[n].do(self)
        self.end()

    def begin(self):
        """Say what is there, and load the newest step."""
        self.look("opened")
        if self.checkpointer.latest() is not None:
            self.checkpointer.load(into=self.trainer.state)
            digest = self.trainer.digest()
            self._events.say("loaded", digest=digest, save=self.trainer.extra["save"])

    def end(self):
        """Say what is there in the end, and after a restart."""
        self.checkpointer.wait()
        self.look("over", digest=self.trainer.digest())
        self.checkpointer.close()
        # What the first recovery has set aside as torn goes with the second.
        self.checkpointer = self._open()
        self.look("clean", tree=tree(self._root))
        self.close()

    def save(self, op):
        extra = self.trainer.extra
        extra["op"] = self._op
        extra["save"] = num_saves(self._script.ops[: self._op + 1])
        step, number = extra["step"], extra["save"]
        self._events.say("begun", save=number, step=step, digest=self.trainer.digest())
        if op.mode == "save":
            self.checkpointer.save(step, self.trainer.state, overwrite=op.overwrite)
            self._events.say("committed", save=number)
            return None
        handle = self.checkpointer.async_save(
            step,
            self.trainer.state,
            self.trainer.optimizer if op.mode == "fence" else None,
            op.mode,
            overwrite=op.overwrite,
        )
        handle.committed.add_done_callback(lambda done: self._reached("committed", number, done))
        if self._store is not None:
            handle.uploaded.add_done_callback(lambda done: self._reached("uploaded", number, done))
        return handle

    def close(self):
        self.checkpointer.close()
        self._events.close()

    def _open(self):
        return Checkpointer(
            self._root, store=self._store, keep_local=self._script.keep_local, config=CONFIG
        )

    def _reached(self, event, number, done):
        if done.exception() is None:
            self._events.say(event, save=number)

    def look(self, event, **fields):
        """Say what is there: every step is read, verified, and told by the save that it is of."""
        stored = {} if self._store is None else RemoteSteps(self._store, Config()).manifests()
        urls = [f"{self._store}/{roots.step_directory('', step).name}" for step in stored]
        local = sorted(str(path) for path in self._root.iterdir() if roots.step_of(path.name))
        self._events.say(
            event,
            found=[str(each) for each in self.checkpointer.recovered],
            steps=self.checkpointer.steps(),
            local=[content_of(path) for path in local],
            stored=[content_of(url) for url in urls],
            **fields,
        )


def content_of(place):
    """Load a step, verified, and give its step, the number of its save, and its digest."""
    state = gdsckpt.load(place)
    if gdsckpt.verify(place).ok is not True:
        raise AssertionError(f"{place} was loaded, but is not as it was saved")
    return [state["extra"]["step"], state["extra"]["save"], digest_of(state)]


def warm():
    """Do what is slow at its first time, for children to come; no thread is started."""
    Trainer().train()
    for name in ("gdsckpt.verifying", "gdsckpt.store.local", "torch.utils.serialization.config"):
        importlib.import_module(name)


def num_saves(ops):
    """Count the saves among operations."""
    return sum(isinstance(op, Save) for op in ops)


def fail(root, events, mode, arm, disarm):
    """Make a save that fails in a root that has some steps, then two that do not.

    Args:
        root: Of the Checkpointer.
        events: File to append to.
        mode: Of the save that fails.
        arm: Called before that save.
        disarm: Called when it has ended.

    Returns:
        What it failed with, or None.
    """
    run = Run("steady", root, events)
    run.begin()
    run.trainer.train()
    failure = None
    arm()
    try:
        handle = run.save(Save(mode))
        # A failed save has let the tensors go: no step waits for it, and none raises.
        run.trainer.train()
        failure = None if handle is None else handle.committed.exception()
    except GdsckptError as error:
        failure = error
        run.trainer.train()
    run.checkpointer.wait()
    disarm()
    run.look("failed")
    run.save(Save("host"))
    run.checkpointer.wait()
    run.trainer.train()
    run.save(Save("save"))
    run.end()
    return failure
