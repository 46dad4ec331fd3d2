"""How many bytes a checkpoint has: parameters times the parts that are kept of each.

Sources: AdamW, Loshchilov and Hutter, arXiv 1711.05101 (two moments); mixed precision with a
float32 master copy, Rajbhandari et al., "ZeRO", arXiv 1910.02054, section 3.1; Adafactor, Shazeer
and Stern, arXiv 1804.04235 (rows and columns in place of the second moment); Muon, K. Jordan 2024
(one momentum, of matrices only); 8-bit Adam, Dettmers et al., arXiv 2110.02861 (one byte a moment
and a float32 scale per block).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from gdsckpt.errors import ConfigError
from gdsckpt.planning.band import Band

PARAMETERS_MAX = 10**16
"""Above it a number of parameters is a mistake: a thousand times the largest known models."""

DTYPE_BYTES = {
    "float64": 8.0,
    "float32": 4.0,
    "bfloat16": 2.0,
    "float16": 2.0,
    "float8": 1.0,
    "int8": 1.0,
    "float4": 0.5,
}
"""Bytes of one element."""

DTYPE_ALIASES = {
    "fp64": "float64",
    "fp32": "float32",
    "bf16": "bfloat16",
    "fp16": "float16",
    "fp8": "float8",
    "fp4": "float4",
}

OPTIMIZERS = ("none", "sgd", "momentum", "adamw", "adamw8bit", "adafactor", "muon")

ROLES = ("weights", "optimizer", "other")


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the state that a checkpoint keeps of every parameter.

    Attributes:
        name: ``weights``, ``master copy``, ``first moment``, ``second moment``, ``momentum``, ...
        role: ``weights`` or ``optimizer``; ZeRO stages 1 and 2 shard only the second.
        bytes_per_parameter: Bytes of it per parameter, averaged over the model.
        why: Where the number comes from.
    """

    name: str
    role: str
    bytes_per_parameter: Band
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What a checkpoint keeps. Gradients are not saved: a save stands between two steps.

    Attributes:
        weights_dtype: Type of the weights that the forward pass uses, a key of ``DTYPE_BYTES``.
        optimizer: One of ``OPTIMIZERS``; ``none`` is a checkpoint of weights only.
        moments_dtype: Type of what the optimizer keeps.
        has_master_copy: Whether a float32 copy of the weights is kept; None for what is usual: with
            an optimizer and weights of less than 4 bytes.
        matrix_width: Typical smaller side of the weight matrices, for Adafactor.
        dense_share: Share of the parameters that are not in hidden matrices (embeddings, norms),
            for which Muon keeps AdamW's two moments, and 8-bit Adam float32 ones.

    Raises:
        ConfigError: A value is none of the allowed ones.
    """

    weights_dtype: str = "bfloat16"
    optimizer: str = "adamw"
    moments_dtype: str = "float32"
    has_master_copy: bool | None = None
    matrix_width: int = 8192
    dense_share: Band = Band(0.005, 0.03, 0.15)

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts, weights first."""
        return ()

    @property
    def bytes_per_parameter(self) -> Band:
        """Bytes of all parts together."""
        return Band.total(part.bytes_per_parameter for part in self.parts)


@dataclass(frozen=True, slots=True)
class PartSize:
    """The bytes that one part of the state has in a checkpoint."""

    name: str
    role: str
    nbytes: Band
    why: str


@dataclass(frozen=True, slots=True)
class CheckpointSize:
    """The bytes of one checkpoint, all ranks together, each byte once.

    Attributes:
        num_parameters: Parameters of the model.
        parts: The parts, weights first.
        source: Where it comes from: ``parameters``, ``model`` or ``reports``.
    """

    num_parameters: int
    parts: tuple[PartSize, ...]
    source: str = "parameters"

    @property
    def nbytes(self) -> Band:
        """Bytes of all parts together."""
        return Band.total(part.nbytes for part in self.parts)

    def role_nbytes(self, role: str) -> Band:
        """Bytes of the parts of one role."""
        return Band.total(part.nbytes for part in self.parts if part.role == role)

    def as_dict(self) -> dict[str, Any]:
        """Give all of it as values that JSON has."""
        return {**dataclasses.asdict(self), "nbytes": self.nbytes.as_dict()}


def size(num_parameters: int, recipe: Recipe, *, other_bytes: Band | float = 0.0) -> CheckpointSize:
    """Give the size of a checkpoint of so many parameters.

    Args:
        num_parameters: Parameters that are trained, 1 to ``PARAMETERS_MAX``.
        recipe: What is kept of each.
        other_bytes: What does not grow with them: the state of the data loader, random states.

    Raises:
        ConfigError: ``num_parameters`` is out of its bounds.
    """
    raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Published:
    """A size that was published, and which parts explain it.

    Attributes:
        name: What was saved, and who says so.
        published_bytes: What the text says, in bytes as it is meant: a "GB" that was counted in
            powers of 1024 is given in those.
        said: The figure as it is written.
        num_parameters: Parameters.
        counts: The parts that the figure counts, such as ``2 bytes weights``.
        bytes_per_parameter: Of those parts.
        source: Where it was read, with its date.
    """

    name: str
    said: str
    published_bytes: float
    num_parameters: int
    counts: tuple[str, ...]
    bytes_per_parameter: float
    source: str

    @property
    def computed_bytes(self) -> float:
        """What the parts give, in bytes."""
        return self.num_parameters * self.bytes_per_parameter

    @property
    def difference(self) -> float:
        """How far the published figure is above the computed one; 0.01 is 1 %."""
        return self.published_bytes / self.computed_bytes - 1


def published() -> tuple[Published, ...]:
    """Give the published sizes that people compare their own with."""
    raise NotImplementedError


def require_dtype(value: str, field: str) -> str:
    """Give the full name of a dtype.

    Raises:
        ConfigError: It is none that is known.
    """
    name = DTYPE_ALIASES.get(value, value)
    if name not in DTYPE_BYTES:
        known = ", ".join((*DTYPE_BYTES, *DTYPE_ALIASES))
        raise ConfigError(f"{field} is {value!r}. Allowed: {known}.", field=field)
    return name
