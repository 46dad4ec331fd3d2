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

# Elements that share one float32 scale: bitsandbytes from 0.45 on, and before.
_QUANTIZED_BLOCK, _QUANTIZED_BLOCK_MAX = 256, 2048
_QUANTIZED = "1 byte and a float32 scale per 256 elements; embeddings perhaps float32"
# How much longer the longer side of a weight matrix is: feed-forward layers have 2.7 to 4.
_LONGER_SIDE = 3.0
_FACTORED = "float32 row and column sums of each matrix, no first moment"
_MUON = "AdamW's two moments for embeddings and norms"


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

    def __post_init__(self) -> None:
        """Check the values."""
        require_dtype(self.weights_dtype, "weights_dtype")
        require_dtype(self.moments_dtype, "moments_dtype")
        if self.optimizer not in OPTIMIZERS:
            raise ConfigError(
                f"optimizer is {self.optimizer!r}. Allowed: {', '.join(OPTIMIZERS)}.",
                field="optimizer",
            )
        if self.matrix_width < 1:
            raise ConfigError(
                f"matrix_width is {self.matrix_width}: give at least 1.", field="matrix_width"
            )
        if not (self.dense_share.low >= 0 and self.dense_share.high <= 1):
            raise ConfigError(
                f"dense_share is {self.dense_share}: give shares from 0 to 1.", field="dense_share"
            )
        if self.has_master_copy and (self.optimizer == "none" or self._weights_bytes >= 4):
            raise ConfigError(
                "has_master_copy is true, but a float32 copy belongs to an optimizer and to "
                f"weights of less than 4 bytes; these are {self.weights_dtype} with optimizer "
                f"{self.optimizer}.",
                field="has_master_copy",
            )

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts, weights first."""
        weights = Part(
            "weights",
            "weights",
            Band.exactly(self._weights_bytes),
            require_dtype(self.weights_dtype, "weights_dtype"),
        )
        is_usual = self.optimizer != "none" and self._weights_bytes < 4
        has_master = is_usual if self.has_master_copy is None else self.has_master_copy
        master = Part("master copy", "optimizer", Band.exactly(4.0), "float32 weights")
        return (weights, *((master,) if has_master else ()), *self._optimizer_parts())

    @property
    def _weights_bytes(self) -> float:
        return DTYPE_BYTES[require_dtype(self.weights_dtype, "weights_dtype")]

    def _optimizer_parts(self) -> tuple[Part, ...]:
        dtype = require_dtype(self.moments_dtype, "moments_dtype")
        moment = DTYPE_BYTES[dtype]
        if self.optimizer == "momentum":
            return (Part("momentum", "optimizer", Band.exactly(moment), dtype),)
        if self.optimizer == "adamw":
            return tuple(
                Part(name, "optimizer", Band.exactly(moment), dtype)
                for name in ("first moment", "second moment")
            )
        if self.optimizer == "adamw8bit":
            return tuple(
                Part(name, "optimizer", self._quantized_moment(moment), _QUANTIZED)
                for name in ("first moment", "second moment")
            )
        if self.optimizer == "adafactor":
            return (Part("rows and columns", "optimizer", self._factored_moment(), _FACTORED),)
        if self.optimizer == "muon":
            # (1 - dense) * 1 + dense * 2, which rises with the share.
            both = self.dense_share.map(lambda dense: moment * (1 + dense))
            return (Part("momentum", "optimizer", both, f"{dtype}; {_MUON}"),)
        return ()

    def _quantized_moment(self, dense_bytes: float) -> Band:
        """Give one byte and a scale; at most, embeddings are kept as they are."""
        low, mid = 1 + 4 / _QUANTIZED_BLOCK_MAX, 1 + 4 / _QUANTIZED_BLOCK
        dense = self.dense_share.high
        return Band(low, mid, max(mid, (1 - dense) * mid + dense * dense_bytes))

    def _factored_moment(self) -> Band:
        """Give (rows + columns) / (rows * columns) float32; width is the smaller of the two."""
        one = 4 / self.matrix_width
        return Band(one, one * (1 + 1 / _LONGER_SIDE), 2 * one)

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


def size(
    num_parameters: int,
    recipe: Recipe,
    *,
    num_trainable: int | None = None,
    other_bytes: Band | float = 0.0,
) -> CheckpointSize:
    """Give the size of a checkpoint of so many parameters.

    Args:
        num_parameters: Parameters, 1 to ``PARAMETERS_MAX``.
        recipe: What is kept of each.
        num_trainable: Those that the optimizer changes; None for all. Of others only the weights
            are kept.
        other_bytes: What does not grow with them: the state of the data loader, random states.

    Raises:
        ConfigError: A number is out of its bounds.
    """
    trainable = num_parameters if num_trainable is None else num_trainable
    _require_count("num_parameters", num_parameters, 1, PARAMETERS_MAX)
    _require_count("num_trainable", trainable, 0, num_parameters)
    other = Band.of(other_bytes)
    if other.low < 0:
        raise ConfigError(f"other_bytes is {other.low}: give at least 0.", field="other_bytes")
    parts = [
        PartSize(
            part.name,
            part.role,
            part.bytes_per_parameter * (num_parameters if part.role == "weights" else trainable),
            part.why,
        )
        for part in recipe.parts
    ]
    if other.high > 0:
        parts.append(PartSize("other", "other", other, "data loader, random states, buffers"))
    return CheckpointSize(num_parameters, tuple(parts))


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


def _require_count(field: str, value: object, least: int, most: int) -> None:
    if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
        return
    raise ConfigError(
        f"{field} is {value!r}: give a whole number from {least} to {most}.", field=field
    )
