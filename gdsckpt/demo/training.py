"""A training run: everything that has to be saved for it to go on as if nothing had happened."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from gdsckpt.demo.data import BatchReader
from gdsckpt.demo.model import Gpt, Shape
from gdsckpt.tensors.naming import name_of, walk

_LEARNING_RATE = 1e-3
_WARM_UP_SHARE = 0.2
_FINAL_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What makes two runs the same run.

    Attributes:
        shape: Of the model.
        num_steps: Of the whole run; the learning rate's schedule ends there.
        seed: Of everything random.
        threads: Threads of torch. Sums in another order have other last bits.
    """

    shape: Shape
    num_steps: int
    seed: int
    threads: int


class Training:
    """Model, optimizer, schedule, data and random numbers of one run.

    Attributes:
        model: The model.
        num_done: Steps done.
    """

    def __init__(self, options: RunOptions, text: bytes) -> None:
        random.seed(options.seed)
        torch.manual_seed(options.seed)
        self._options = options
        self.num_done = 0
        self.model = Gpt(options.shape)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=_LEARNING_RATE, weight_decay=0.1
        )
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, self._rate_at)
        self.reader = BatchReader(text, options.seed)

    def train(
        self, num_steps: int, on_step: Callable[[int, float], None] | None = None
    ) -> list[float]:
        """Train on; gives the loss of each step.

        Args:
            num_steps: Steps to do.
            on_step: Called with (steps done, loss) after each step.
        """
        self.model.train()
        losses = []
        for _ in range(num_steps):
            losses.append(self._step())
            if on_step is not None:
                on_step(self.num_done, losses[-1])
        return losses

    def state_dict(self) -> dict[str, Any]:
        """Give all of the state. Its tensors are those of the run, not copies."""
        return {
            "step": self.num_done,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "random": {"torch": torch.get_rng_state(), "python": random.getstate()},
            "data": self.reader.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a state that :meth:`state_dict` gave."""
        self.num_done = state["step"]
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        self.reader.load_state_dict(state["data"])
        random.setstate(state["random"]["python"])
        torch.set_rng_state(state["random"]["torch"])

    def _step(self) -> float:
        tokens, targets = self.reader.next_batch()
        logits = self.model(tokens)
        loss = functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.scheduler.step()
        self.num_done += 1
        return float(loss.detach())

    def _rate_at(self, step: int) -> float:
        """Give the factor of the learning rate: linear warm-up, then half a cosine."""
        warm_up = max(1, round(self._options.num_steps * _WARM_UP_SHARE))
        if step < warm_up:
            return (step + 1) / warm_up
        progress = min(1.0, (step - warm_up) / max(1, self._options.num_steps - warm_up))
        return _FINAL_SHARE + (1 - _FINAL_SHARE) * 0.5 * (1 + math.cos(math.pi * progress))


@contextlib.contextmanager
def deterministic(threads: int) -> Iterator[None]:
    """Make torch compute the same bits each time, while the block lasts."""
    before = torch.are_deterministic_algorithms_enabled(), torch.get_num_threads()
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0])
        torch.set_num_threads(before[1])


def fingerprint(state: Any) -> str:
    """Give a SHA-256 of all names, tensors and other values of a state, bit by bit."""
    digest = hashlib.sha256()
    for path, leaf in walk(state):
        digest.update(name_of(path).encode())
        if isinstance(leaf, torch.Tensor):
            digest.update(f"{leaf.dtype}{tuple(leaf.shape)}".encode())
            plain = leaf.detach().contiguous().reshape(-1).view(torch.uint8)
            digest.update((ctypes.c_char * plain.numel()).from_address(plain.data_ptr()))
        else:
            digest.update(repr(leaf).encode())
    return digest.hexdigest()
