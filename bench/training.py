"""A model that trains while it is saved, and how long its steps take."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn import functional
from torch.utils import _pytree as pytree

from bench.methods import SEED
from gdsckpt.demo.model import CONTEXT, VOCABULARY, Gpt, shape_for

BYTES_PER_PARAMETER = 12
"""float32, and the two moments of AdamW."""

TENSORS_PER_PARAMETER = 4
"""The same, and AdamW's count of steps."""


class Trained(Protocol):
    """What has a model and an optimizer.

    Attributes:
        optimizer: Changes all of the model.
    """

    optimizer: torch.optim.Optimizer

    def parts(self) -> dict[str, Any]:
        """Give the objects whose state is saved."""


@dataclass(frozen=True, slots=True)
class StepTimes:
    """One step of training.

    Attributes:
        forward_backward_s: Seconds until the gradients were there.
        wait_s: Seconds that the optimizer then waited for a save.
        optimizer_s: Seconds of the optimizer itself.
    """

    forward_backward_s: float
    wait_s: float
    optimizer_s: float

    @property
    def seconds(self) -> float:
        """All but the wait."""
        return self.forward_backward_s + self.optimizer_s


class Training:
    """A small GPT with AdamW on random tokens; it learns nothing, but all its values change.

    Args:
        state_bytes: Weights and moments, about.
        num_tokens: Length of the one sequence of each step, at most 128.

    Attributes:
        model: The model.
        optimizer: Fused AdamW; its state is there from the beginning.
    """

    def __init__(self, state_bytes: int, num_tokens: int) -> None:
        torch.manual_seed(SEED)
        self.model = Gpt(shape_for(state_bytes // BYTES_PER_PARAMETER))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5, fused=True)
        self._tokens = torch.randint(VOCABULARY, (1, min(num_tokens, CONTEXT - 1) + 1))
        self._went_on = 0.0
        # Torch calls the hooks of one optimizer after those of all, which is where saves wait.
        self.optimizer.register_step_pre_hook(self._note)
        self.step()

    def parts(self) -> dict[str, Any]:
        """Give the objects whose state is saved."""
        return {"model": self.model, "optimizer": self.optimizer}

    def nest(self) -> dict[str, Any]:
        """Give their states, with the live tensors."""
        return {name: part.state_dict() for name, part in self.parts().items()}

    def tensors(self) -> list[torch.Tensor]:
        """List the live tensors; the output layer shares its weight with the embedding."""
        return list({tensor.data_ptr(): tensor for tensor in tensors_of(self.nest())}.values())

    def step(self, before_optimizer: Callable[[], None] = lambda: None) -> StepTimes:
        """Train one step.

        Args:
            before_optimizer: Called when the gradients are there; its time is one of waiting.
        """
        started = time.perf_counter()
        self.optimizer.zero_grad(set_to_none=False)
        logits = self.model(self._tokens[:, :-1])
        functional.cross_entropy(logits.transpose(1, 2), self._tokens[:, 1:]).backward()
        have_gradients = time.perf_counter()
        before_optimizer()
        self.optimizer.step()
        ended = time.perf_counter()
        return StepTimes(
            have_gradients - started, self._went_on - have_gradients, ended - self._went_on
        )

    def _note(self, *_: object) -> None:
        self._went_on = time.perf_counter()


class Equal:
    """Parameters of one size, and AdamW, without a model that uses them.

    Args:
        num_parameters: How many.
        numel: Elements of each.

    Attributes:
        model: Holds the parameters.
        optimizer: Fused AdamW; its state is there from the beginning.
    """

    def __init__(self, num_parameters: int, numel: int) -> None:
        torch.manual_seed(SEED)
        self.model = nn.ParameterDict(
            {f"layer-{n}": nn.Parameter(torch.randn(numel)) for n in range(num_parameters)}
        )
        for parameter in self.model.parameters():
            parameter.grad = torch.ones_like(parameter)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), fused=True)
        self.step()

    def parts(self) -> dict[str, Any]:
        """Give the objects whose state is saved."""
        return {"model": self.model, "optimizer": self.optimizer}

    def step(self) -> None:
        """Change all values."""
        self.optimizer.step()


def tensors_of(nest: Any) -> list[torch.Tensor]:
    """List the tensors of a nest."""
    return [leaf for leaf in pytree.tree_leaves(nest) if isinstance(leaf, torch.Tensor)]


def checksums(nest: Any) -> list[int]:
    """Give the CRC-32 of the bytes of each tensor of a nest, by zlib."""
    return [
        zlib.crc32(tensor.detach().reshape(-1).view(torch.uint8).numpy())
        for tensor in tensors_of(nest)
    ]
