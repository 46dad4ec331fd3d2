"""Text to train on, and a reader of it whose position can be saved."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch

import gdsckpt
from gdsckpt.demo.model import CONTEXT

BATCH = 2
_REPOSITORY_PATTERNS = ("README.md", "CONTRIBUTING.md", "LICENSE", "docs/*.md")


def find_text() -> bytes:
    """Join the repository's documents and Python sources, or those of the installed package."""
    package = Path(gdsckpt.__file__).resolve().parent
    root = package.parent
    paths: list[Path] = []
    if (root / "pyproject.toml").is_file():  # else the package lies among others, in site-packages
        for pattern in _REPOSITORY_PATTERNS:
            paths.extend(sorted(root.glob(pattern)))
    paths.extend(sorted(package.rglob("*.py")))
    return b"\n".join(path.read_bytes() for path in paths)


class BatchReader:
    """Reads the text in windows, in an order that is shuffled anew in each epoch.

    The shift of each batch comes from Python's own ``random``, so a run can be repeated only if the
    state of that generator is saved too.
    """

    def __init__(self, text: bytes, seed: int) -> None:
        self._text = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        self._seed = seed
        self._epoch = 0
        self._position = 0
        self._order = self._shuffled()

    def next_batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Give tokens and the ones that follow them: int64, shape (batch, context) both."""
        if self._position + BATCH > len(self._order):
            self._epoch, self._position = self._epoch + 1, 0
            self._order = self._shuffled()
        windows = self._order[self._position : self._position + BATCH]
        self._position += BATCH
        shift = random.randrange(CONTEXT)
        starts = [int(window) * CONTEXT + shift for window in windows]
        rows = torch.stack([self._text[start : start + CONTEXT + 1] for start in starts]).long()
        return rows[:, :-1], rows[:, 1:]

    def state_dict(self) -> dict[str, int]:
        """Give the position."""
        return {"seed": self._seed, "epoch": self._epoch, "position": self._position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to a position."""
        self._seed, self._epoch = state["seed"], state["epoch"]
        self._position = state["position"]
        self._order = self._shuffled()

    def _shuffled(self) -> torch.Tensor:
        generator = torch.Generator().manual_seed(self._seed + self._epoch)
        num_windows = (len(self._text) - 1) // CONTEXT - 1  # one is left for the shift
        return torch.randperm(num_windows, generator=generator)
