"""CUDA's driver in this process: loaded when a tensor on a GPU is first met."""

from __future__ import annotations

import ctypes
import functools
import os
import warnings

from gdsckpt import native
from gdsckpt.config import Config
from gdsckpt.errors import ConfigError, FallbackWarning

_AT_SECURE = 23  # <elf.h>


def cuda_unusable() -> str:
    """Say why CUDA cannot be used here; empty if it can. Loads the driver at the first call."""
    return native.cuda_load(library_override("libcuda"))


@functools.cache
def library_override(name: str) -> str:
    """Give the library that the environment names in the place of the system's; usually empty.

    Read from the environment alone: the process has one driver, whatever a call's ``config`` says.

    Args:
        name: The setting, ``"libcuda"`` or ``"libcufile"``.

    Raises:
        ConfigError: It is no absolute path.
    """
    path: str = getattr(Config.resolve(None, os.environ), name)
    if not path:
        return ""
    if not os.path.isabs(path):  # noqa: PTH117 - a string that the loader gets as it is
        raise ConfigError(
            f"{name} is {path!r}. Give the absolute path of a library, or leave it empty.",
            field=name,
        )
    if _is_privileged():
        return ""
    warnings.warn(
        f"{path} is loaded in the place of the system's {name}, as the environment asks.",
        FallbackWarning,
        stacklevel=2,
    )
    return path


def _is_privileged() -> bool:
    """Tell whether the process has rights that whoever set its environment may not have."""
    return bool(ctypes.CDLL(None).getauxval(_AT_SECURE))
