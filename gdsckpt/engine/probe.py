"""What a host and a directory's file system can do, tried out where trying is harmless."""

from __future__ import annotations

import contextlib
import os
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gdsckpt.config import Config
from gdsckpt.engine import probe_gpu, probe_host, probe_storage
from gdsckpt.engine.probe_step import ProbeStep
from gdsckpt.errors import storage_error_from

PROBE_PREFIX = ".gdsckpt-probe-"
_CRC_SAMPLE = bytes(range(256)) * 1021  # no multiple of any kernel's block


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """What was found.

    Attributes:
        directory: The directory as given.
        engine: The engine that a save would use, or None where none can be loaded.
        engine_reasons: Why that one.
        steps: In the order in which they were tried.
    """

    directory: str
    engine: str | None
    engine_reasons: tuple[str, ...]
    steps: tuple[ProbeStep, ...]

    @property
    def ok(self) -> bool:
        """Whether saves and loads work here: no step that they need failed."""
        return all(step.ok for step in self.steps if step.needed)

    def as_dict(self) -> dict[str, Any]:
        """Give all of it as values that JSON has."""
        return {"ok": self.ok, **asdict(self)}


def probe(directory: str | os.PathLike[str] = ".", *, config: Config | None = None) -> ProbeReport:
    """Find out what this host and the file system of a directory can do.

    Small files are made in the directory and removed again. Nothing of CUDA or cuFile is called in
    this process; a child process with a time limit tries whether the driver can be loaded.

    Args:
        directory: Where checkpoints are to be saved; must exist.
        config: Settings; None takes those of the environment.

    Raises:
        StorageError: ``directory`` is no directory that can be entered.
        ConfigError: A setting in the environment is wrong.
    """
    settings = Config.resolve(config, os.environ)
    where = Path(directory)
    try:
        with os.scandir(where):
            pass
    except OSError as error:
        raise storage_error_from(error, op="open", path=where) from error
    steps = [
        probe_host.platform_step(),
        probe_host.memory_step(settings.pinned_pool_bytes),
        *_extension_steps(),
        *probe_storage.file_system_steps(where),
        *_file_steps(where),
        *probe_gpu.steps(),
    ]
    engine, reasons = _engine(settings)
    return ProbeReport(os.fspath(directory), engine, reasons, tuple(steps))


def _engine(config: Config) -> tuple[str | None, tuple[str, ...]]:
    try:
        from gdsckpt.engine.registry import choose_engine
    except ImportError as error:
        return None, (f"the native extension cannot be loaded: {error}",)
    choice = choose_engine(config)
    return choice.engine.name, choice.reasons


def _extension_steps() -> list[ProbeStep]:
    try:
        from gdsckpt import native
    except ImportError as error:
        return [
            ProbeStep(
                "extension",
                ok=False,
                needed=True,
                reason=f"gdsckpt._C cannot be loaded: {error}",
                mend="Install gdsckpt for this Python: 'pip install .' needs g++.",
            )
        ]
    kernels = native.crc32_kernels()
    is_right = native.crc32(_CRC_SAMPLE) == zlib.crc32(_CRC_SAMPLE)
    checked = "agrees with zlib" if is_right else "gives other values than zlib"
    is_fast = kernels[0] != "table"
    return [
        ProbeStep("extension", ok=True, needed=True, reason="gdsckpt._C is loaded"),
        ProbeStep(
            "crc32",
            ok=is_right,
            needed=True,
            reason=f"kernel {kernels[0]} of {', '.join(kernels)}; it {checked}",
            mend=""
            if is_right and is_fast
            else "This processor has no CRC instructions: checksums limit the rate."
            if is_right
            else "Report this processor: checksums cannot be trusted on it.",
        ),
    ]


def _file_steps(where: Path) -> Iterator[ProbeStep]:
    """Try what a save does with files, on files of a block or two."""
    try:
        fd, name = tempfile.mkstemp(prefix=PROBE_PREFIX, dir=where)
    except OSError as error:
        yield ProbeStep(
            "write",
            ok=False,
            needed=True,
            reason=f"no file can be made: {os.strerror(error.errno or 0)}",
            mend="Give a directory that this user may write to, on a file system mounted writable.",
        )
        return
    path = Path(name)
    try:
        yield from probe_storage.open_file_steps(fd, path)
    finally:
        os.close(fd)
        for leftover in (path, path.with_name(f"{path.name}-renamed")):
            with contextlib.suppress(OSError):
                leftover.unlink()
