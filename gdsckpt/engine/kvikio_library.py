"""KvikIO itself: whether it can be used here, found out without the risk of a hang."""

from __future__ import annotations

import ctypes
import functools
import importlib
import importlib.metadata
import importlib.util
import os
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from gdsckpt.engine import driver, probe_process
from gdsckpt.errors import EngineUnavailableError

TRIAL_TIMEOUT_S = 20.0
_MODULES = Path("/proc/modules")
_UDEV = Path("/run/udev")
# What KvikIO cuts a request into must keep it aligned, on kernels with 64 KiB pages too.
_TASK_STEP_BYTES = 64 * 1024

_INSTALL = "Install it with: pip install 'gdsckpt[kvikio]'."
_COMPAT = "Set KVIKIO_COMPAT_MODE=ON, so that KvikIO does without cuFile, or take engine=pinned."


@dataclass(frozen=True, slots=True)
class KvikioLibrary:
    """KvikIO, loaded and found to be usable.

    Attributes:
        open: Opens a file: ``kvikio.CuFile(path, flags)``.
        task_bytes: KvikIO's setting ``task_size``, rounded down to an aligned number.
        facts: What is to be known about it, a sentence.
    """

    open: Callable[[str, str], Any]
    task_bytes: int
    facts: str


_lock = threading.Lock()
_loaded: tuple[int, KvikioLibrary] | None = None


def load_library(*, needs_kernels: bool = True) -> KvikioLibrary:
    """Import KvikIO and see that it cannot hang; the work is done once for the process.

    Args:
        needs_kernels: Refuse also where ``gdsckpt.kernels`` cannot be used.

    Raises:
        EngineUnavailableError: It cannot be used; ``reasons`` say all that stands in its way.
    """
    global _loaded  # noqa: PLW0603 - what the process has
    with _lock:
        _require_packages(needs_kernels=needs_kernels)
        if _loaded is None:
            _loaded = os.getpid(), _load()
        pid, library = _loaded
    if pid != os.getpid():
        raise unavailable(
            ["its threads stayed in the process that this one was forked from"],
            "Take engine=pinned in the child process.",
        )
    return library


def unavailable(reasons: Sequence[str], mend: str) -> EngineUnavailableError:
    """Give the error that the engine cannot be used."""
    return EngineUnavailableError(
        f"the kvikio engine can't be used: {'; '.join(reasons)}. {mend}",
        engine="kvikio",
        reasons=reasons,
    )


def _require_packages(*, needs_kernels: bool) -> None:
    """See that what is needed is there; all that is not is told at once.

    Raises:
        EngineUnavailableError: Something is missing.
    """
    missing: list[tuple[str, str]] = []
    if importlib.util.find_spec("kvikio") is None:
        missing.append(("the package kvikio is not installed", _INSTALL))
    if needs_kernels and importlib.util.find_spec("numba_cuda") is None:
        missing.append(
            (
                "the package numba-cuda, which takes checksums on the GPU, is not installed",
                "Install it with: pip install 'gdsckpt[gpu]'.",
            )
        )
    if (why := driver.cuda_unusable()) != "":
        missing.append((f"CUDA cannot be used: {why}", "Without a GPU take engine=pinned."))
    if missing:
        raise unavailable([why for why, _ in missing], " ".join(mend for _, mend in missing))


def _load() -> KvikioLibrary:
    module, defaults = _import()
    mode = defaults.get("compat_mode").name
    if not (mode == "ON" or (mode == "AUTO" and not _UDEV.is_dir())):
        _require_harmless_cufile(mode)
    task_bytes = int(defaults.get("task_size")) // _TASK_STEP_BYTES * _TASK_STEP_BYTES
    return KvikioLibrary(
        open=module.CuFile,
        task_bytes=max(task_bytes, _TASK_STEP_BYTES),
        facts=_describe(defaults, mode),
    )


def _import() -> tuple[ModuleType, ModuleType]:
    """Import KvikIO, over the same libcuda and libcufile as ours where the environment names one.

    It asks the loader for them by name, and so gets what is loaded already.
    """
    try:
        if (libcufile := driver.library_override("libcufile")) != "":
            ctypes.CDLL(libcufile)
        return importlib.import_module("kvikio"), importlib.import_module("kvikio.defaults")
    except (ImportError, OSError) as error:
        raise unavailable([f"KvikIO cannot be loaded: {error}"], _INSTALL) from error


def _describe(defaults: ModuleType, mode: str) -> str:
    meanings = {
        "ON": "all goes through the host",
        "OFF": "all goes by cuFile",
        "AUTO": "each file by cuFile where that takes it",
    }
    meaning = meanings[mode]
    if mode == "AUTO" and not _UDEV.is_dir():
        meaning = f"all goes through the host, as {_UDEV} is missing"
    version = importlib.metadata.version(_distribution())
    num_threads = defaults.get("num_threads")
    threads = f"{num_threads} threads" if num_threads > 1 else "1 thread (KVIKIO_NTHREADS sets it)"
    return f"KvikIO {version} has {threads}; its compatibility mode is {mode}: {meaning}"


def _distribution() -> str:
    return importlib.metadata.packages_distributions().get("kvikio", ["kvikio"])[0]


def _require_harmless_cufile(mode: str) -> None:
    """See that cuFile's driver, which KvikIO opens by and by, does not take the process with it.

    Raises:
        EngineUnavailableError: It would, or it may.
    """
    if not _MODULES.exists():
        raise unavailable(
            [
                f"KvikIO would open cuFile's driver (compatibility mode {mode}), which never comes "
                f"back where {_MODULES} is missing"
            ],
            _COMPAT,
        )
    why = _trial(mode, TRIAL_TIMEOUT_S)
    if why != "":
        raise unavailable([f"KvikIO was tried out: {why}"], f"Run 'gdsckpt probe'. {_COMPAT}")


@functools.cache
def _trial(mode: str, timeout_s: float) -> str:
    """Have a child process open a file by KvikIO; gives what became of it, empty if it lived."""
    request = {
        "sys_path": sys.path,
        "libcuda": driver.library_override("libcuda"),
        "libcufile": driver.library_override("libcufile"),
        "compat_mode": mode,
    }
    return probe_process.run("kvikio", request, timeout_s=timeout_s).failure


def _forget_lock() -> None:
    """Have a free lock in a forked child, whatever its parent's threads did."""
    global _lock  # noqa: PLW0603
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_lock)
