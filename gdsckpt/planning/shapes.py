"""Parameters of a decoder-only transformer, from its shape or from a model's ``config.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gdsckpt.errors import ConfigError

_SIDE_MAX = 10**9

# Names of the same number in the configurations of different models (Hugging Face Transformers).
_NAMES_OF = {
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "ffn": ("intermediate_size", "ffn_hidden_size", "n_inner"),
    "layers": ("num_hidden_layers", "n_layer", "num_layers"),
    "heads": ("num_attention_heads", "n_head"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads"),
    "head_width": ("head_dim",),
    "vocabulary": ("vocab_size",),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts"),
    "expert_ffn": ("moe_intermediate_size",),
    "shared_experts": ("n_shared_experts",),
    "dense_layers": ("first_k_dense_replace",),
}
_REQUIRED = ("hidden", "layers", "heads", "vocabulary")
_MAY_BE_ZERO = ("experts", "shared_experts", "dense_layers")


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerShape:
    """The shape of a decoder-only transformer; sides of matrices are numbers of elements.

    Attributes:
        hidden: Width of the residual stream.
        ffn: Inner width of a feed-forward layer.
        layers: Transformer layers.
        heads: Attention heads.
        kv_heads: Heads of keys and values; fewer than ``heads`` with grouped queries.
        head_width: Width of one head.
        vocabulary: Tokens.
        is_gated: Whether the feed-forward layer has a gate (three matrices in place of two).
        has_tied_embeddings: Whether input and output embeddings are one matrix.
        experts: Routed experts of a layer; 0 for a dense model.
        expert_ffn: Inner width of one expert.
        shared_experts: Experts of a layer that every token passes.
        dense_layers: First layers without experts, in a model that has them.
    """

    hidden: int
    ffn: int
    layers: int
    heads: int
    kv_heads: int
    head_width: int
    vocabulary: int
    is_gated: bool = True
    has_tied_embeddings: bool = False
    experts: int = 0
    expert_ffn: int = 0
    shared_experts: int = 0
    dense_layers: int = 0

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the embeddings, in and out."""
        return self.vocabulary * self.hidden * (1 if self.has_tied_embeddings else 2)

    @property
    def expert_parameters(self) -> int:
        """Parameters of the routed experts, which expert parallelism distributes."""
        if not self.experts:
            return 0
        return self._expert_layers * self.experts * self._matrices(self.expert_ffn)

    @property
    def num_parameters(self) -> int:
        """All parameters."""
        width = self.heads * self.head_width
        attention = self.hidden * (2 * width + 2 * self.kv_heads * self.head_width)
        norms = 2 * self.hidden * self.layers + self.hidden
        dense = (self.layers - self._expert_layers) * self._matrices(self.ffn)
        shared = self._expert_layers * self.shared_experts * self._matrices(self.expert_ffn)
        routers = self._expert_layers * self.experts * self.hidden
        return (
            self.embedding_parameters
            + self.layers * attention
            + norms
            + dense
            + shared
            + routers
            + self.expert_parameters
        )

    @property
    def dense_share(self) -> float:
        """Share of the parameters that are in embeddings and norms, not in hidden matrices."""
        norms = 2 * self.hidden * self.layers + self.hidden
        return (self.embedding_parameters + norms) / self.num_parameters

    @property
    def expert_share(self) -> float:
        """Share of the parameters that are in routed experts."""
        return self.expert_parameters / self.num_parameters

    @property
    def _expert_layers(self) -> int:
        return max(0, self.layers - self.dense_layers) if self.experts else 0

    def _matrices(self, inner: int) -> int:
        return (3 if self.is_gated else 2) * self.hidden * inner


def read_config(path: Path) -> TransformerShape:
    """Read the shape from the ``config.json`` of a model (Hugging Face Transformers).

    Raises:
        ConfigError: The file is no such configuration; the field is ``model_config``.
    """
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as exc:
        raise _refused(f"{path} cannot be read: {exc.strerror or exc}.") from exc
    except (ValueError, RecursionError) as exc:
        raise _refused(f"{path} is no JSON: {exc}.") from exc
    if not isinstance(config, dict):
        raise _refused(f"{path} is no JSON object. Give the config.json of a model.")
    inner = config.get("text_config")
    return shape_of(inner if isinstance(inner, dict) else config)


def shape_of(config: Mapping[str, Any]) -> TransformerShape:
    """Give the shape that a model's configuration describes.

    What is not told follows the usual: as many heads of keys and values as heads, four times the
    width in the feed-forward layer, and a gate in it, but for the GPT-2 family.

    Raises:
        ConfigError: A number is missing, or is none; the field is ``model_config``.
    """
    found = {name: _number(config, name) for name in _NAMES_OF}
    missing = [name for name in _REQUIRED if found[name] is None]
    if missing:
        wanted = ", ".join(_NAMES_OF[name][0] for name in missing)
        raise _refused(f"the model's configuration lacks {wanted}.")
    hidden, heads = found["hidden"] or 1, found["heads"] or 1
    ffn = found["ffn"] or 4 * hidden
    return TransformerShape(
        hidden=hidden,
        ffn=ffn,
        layers=found["layers"] or 1,
        heads=heads,
        kv_heads=found["kv_heads"] or heads,
        head_width=found["head_width"] or max(1, hidden // heads),
        vocabulary=found["vocabulary"] or 1,
        is_gated="n_embd" not in config,
        has_tied_embeddings=_is_tied(config),
        experts=found["experts"] or 0,
        expert_ffn=found["expert_ffn"] or ffn,
        shared_experts=found["shared_experts"] or 0,
        dense_layers=found["dense_layers"] or 0,
    )


def _is_tied(config: Mapping[str, Any]) -> bool:
    tied = config.get("tie_word_embeddings", "n_embd" in config)
    if not isinstance(tied, bool):
        raise _refused(f"tie_word_embeddings is {tied!r}. Give true or false.")
    return tied


def _number(config: Mapping[str, Any], name: str) -> int | None:
    for key in _NAMES_OF[name]:
        value = config.get(key)
        if value is None:
            continue
        least = 0 if name in _MAY_BE_ZERO else 1
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if not is_whole or not least <= value <= _SIDE_MAX:
            raise _refused(f"{key} is {value!r}. Give a whole number from {least} to {_SIDE_MAX}.")
        return int(value)
    return None


def _refused(message: str) -> ConfigError:
    return ConfigError(message, field="model_config")
