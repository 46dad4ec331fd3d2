"""A small GPT: a causal language model over bytes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

VOCABULARY = 256
"""Every byte is a token."""

CONTEXT = 128
"""Tokens that the model sees."""

DROPOUT = 0.1
_HEAD_WIDTH = 32
_LAYERS_MAX = 128
_WIDTH_MAX = 16384
_WIDTH_PER_LAYER = 64
"""Proportion of published GPT models of this size."""

_TOLERANCE = 0.02


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a model.

    Attributes:
        num_layers: Transformer blocks.
        width: Size of the embedding, a multiple of 32.
    """

    num_layers: int
    width: int

    @property
    def num_heads(self) -> int:
        """Attention heads, of 32 each."""
        return self.width // _HEAD_WIDTH

    @property
    def num_parameters(self) -> int:
        """Trained values; the output layer shares the embedding's."""
        block = 12 * self.width**2 + 13 * self.width
        return (VOCABULARY + CONTEXT + 2) * self.width + self.num_layers * block


def shape_for(num_parameters: int) -> Shape:
    """Choose width and depth for a number of parameters.

    Args:
        num_parameters: Wanted number, at least 20 000.

    Returns:
        Of the shapes within 2 % (or the nearest one) that whose width is nearest to 64 times its
        depth.
    """
    shapes = [
        shape
        for width in range(_HEAD_WIDTH, _WIDTH_MAX + 1, _HEAD_WIDTH)
        for shape in _nearest_depths(width, num_parameters)
    ]
    errors = [abs(shape.num_parameters / num_parameters - 1) for shape in shapes]
    limit = max(_TOLERANCE, min(errors))
    near = [shape for shape, error in zip(shapes, errors, strict=True) if error <= limit]
    return min(near, key=lambda s: abs(math.log(s.width / (_WIDTH_PER_LAYER * s.num_layers))))


def _nearest_depths(width: int, num_parameters: int) -> list[Shape]:
    fixed, one = Shape(0, width).num_parameters, Shape(1, width).num_parameters
    depth = (num_parameters - fixed) // (one - fixed)
    depths = {min(max(1, n), _LAYERS_MAX) for n in (depth, depth + 1)}
    return [Shape(num_layers, width) for num_layers in sorted(depths)]


class Block(nn.Module):
    """Causal attention and MLP, each after a LayerNorm and around a residual."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape.width
        self.num_heads = shape.num_heads
        self.norm_1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.norm_2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Transform activations: float32, shape (batch, tokens, width)."""
        batch, tokens, width = x.shape
        heads = self.qkv(self.norm_1(x)).view(batch, tokens, 3, self.num_heads, -1)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(
            query, key, value, dropout_p=DROPOUT if self.training else 0.0, is_causal=True
        )
        joined = attended.transpose(1, 2).reshape(batch, tokens, width)
        x = x + self.dropout(self.projection(joined))
        changed: torch.Tensor = x + self.dropout(self.mlp(self.norm_2(x)))
        return changed


class Gpt(nn.Module):
    """Token and position embeddings, blocks, and an output layer tied to the embedding."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, shape.width)
        self.positions = nn.Embedding(CONTEXT, shape.width)
        self.dropout = nn.Dropout(DROPOUT)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.num_layers))
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, VOCABULARY, bias=False)
        self.apply(_initialize)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Give logits: float32, shape (batch, tokens, 256).

        Args:
            tokens: int64, shape (batch, tokens), at most ``CONTEXT`` tokens.
        """
        positions = torch.arange(tokens.shape[1])
        x = self.dropout(self.tokens(tokens) + self.positions(positions))
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.head(self.norm(x))
        return logits


def _initialize(module: nn.Module) -> None:
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
