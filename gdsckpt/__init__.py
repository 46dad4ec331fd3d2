"""Training checkpoints for PyTorch at the drive's speed, verified from end to end.

``import gdsckpt`` is quick and does not import torch; names are loaded when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gdsckpt._version import __version__

if TYPE_CHECKING:
    from gdsckpt import errors as errors
    from gdsckpt.checkpointer.checkpointer import Checkpointer as Checkpointer
    from gdsckpt.checkpointer.gathering import TrainingState as TrainingState
    from gdsckpt.config import Config as Config
    from gdsckpt.engine.probe import probe as probe
    from gdsckpt.handle import SaveHandle as SaveHandle
    from gdsckpt.loading import load as load
    from gdsckpt.remote.downloader import fetch as fetch
    from gdsckpt.remote.uploader import upload as upload
    from gdsckpt.report import FetchReport as FetchReport
    from gdsckpt.report import PreemptionReport as PreemptionReport
    from gdsckpt.report import SaveReport as SaveReport
    from gdsckpt.report import UploadReport as UploadReport
    from gdsckpt.report import VerifyReport as VerifyReport
    from gdsckpt.saving import save as save
    from gdsckpt.saving import save_checkpoint as save_checkpoint
    from gdsckpt.verifying import verify as verify

_HOME_OF = {
    "Checkpointer": "gdsckpt.checkpointer.checkpointer",
    "Config": "gdsckpt.config",
    "FetchReport": "gdsckpt.report",
    "PreemptionReport": "gdsckpt.report",
    "SaveHandle": "gdsckpt.handle",
    "SaveReport": "gdsckpt.report",
    "TrainingState": "gdsckpt.checkpointer.gathering",
    "UploadReport": "gdsckpt.report",
    "VerifyReport": "gdsckpt.report",
    "fetch": "gdsckpt.remote.downloader",
    "load": "gdsckpt.loading",
    "probe": "gdsckpt.engine.probe",
    "save": "gdsckpt.saving",
    "save_checkpoint": "gdsckpt.saving",
    "upload": "gdsckpt.remote.uploader",
    "verify": "gdsckpt.verifying",
}

__all__ = ["__version__", "errors", *_HOME_OF]  # noqa: PLE0604 - names, of strings


def __getattr__(name: str) -> Any:
    """Import a public name at its first use (PEP 562)."""
    if name == "errors":
        return import_module("gdsckpt.errors")
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'gdsckpt' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)
