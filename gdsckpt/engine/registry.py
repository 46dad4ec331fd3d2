"""The one place that picks the engine."""

from __future__ import annotations

from dataclasses import dataclass

from gdsckpt.config import Config
from gdsckpt.engine.base import Engine
from gdsckpt.engine.pinned import shared_engine


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """An engine and why it was taken.

    Attributes:
        engine: Ready for use.
        reasons: Sentences for reports and manifests; never empty.
    """

    engine: Engine
    reasons: tuple[str, ...]


def choose_engine(config: Config, *, slab_bytes: int | None = None) -> EngineChoice:
    """Pick the engine that ``config.engine`` asks for.

    Args:
        config: Settings.
        slab_bytes: See :func:`gdsckpt.engine.pinned.shared_engine`.
    """
    if config.engine == "auto":
        reason = "auto: pinned is the only engine of this version"
    else:
        reason = f"asked for by the setting engine={config.engine}"
    return EngineChoice(shared_engine(config, slab_bytes), (reason,))
