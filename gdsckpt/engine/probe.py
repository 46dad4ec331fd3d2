"""What a host and a directory's file system can do, tried out where trying is harmless."""

from __future__ import annotations

import contextlib
import os
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gdsckpt.config import Config
from gdsckpt.engine import probe_gpu, probe_host, probe_storage
from gdsckpt.engine.probe_cuda import Gpu
from gdsckpt.engine.probe_step import ProbeStep
from gdsckpt.engine.probe_trial import PROBE_PREFIX
from gdsckpt.errors import storage_error_from

if TYPE_CHECKING:
    from gdsckpt.engine.registry import Decision

_CRC_SAMPLE = bytes(range(256)) * 1021  # no multiple of any kernel's block


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """What was found.

    Attributes:
        directory: The directory as given.
        engine: The engine for what is in GPU memory, where there is a GPU, else for all of a state;
            host memory always goes by ``pinned``. None where the one asked for cannot be used.
        engine_reasons: Why that one, or why none.
        steps: In the order in which they were tried.
        gpus: The GPUs that this process sees.
    """

    directory: str
    engine: str | None
    engine_reasons: tuple[str, ...]
    steps: tuple[ProbeStep, ...]
    gpus: tuple[Gpu, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether saves and loads work here: no step that they need failed."""
        return all(step.ok for step in self.steps if step.needed)

    def as_dict(self) -> dict[str, Any]:
        """Give all of it as values that JSON has."""
        return {"ok": self.ok, **asdict(self)}


def probe(directory: str | os.PathLike[str] = ".", *, config: Config | None = None) -> ProbeReport:
    """Find out what this host and the file system of a directory can do.

    Files are made in the directory and removed again: of a block or two, and where cuFile may work
    one of 64 MiB. Nothing of CUDA or cuFile is called in this process: child processes with a time
    limit try them. How their trials came out is remembered for later saves.

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
    ]
    try:
        from gdsckpt.engine import registry
    except ImportError as error:
        why = f"the native extension cannot be loaded: {error}"
        return ProbeReport(os.fspath(directory), None, (why,), tuple(steps))
    found = probe_gpu.examine(where, registry.cufile_probe(settings))
    decision = registry.foresee(settings, found)
    steps += [*found.steps, _engine_step(settings, decision)]
    name = decision.name or None
    return ProbeReport(os.fspath(directory), name, decision.reasons, tuple(steps), found.gpus)


def _engine_step(config: Config, decision: Decision) -> ProbeStep:
    """Say whether the setting ``engine`` can be met: a demand that cannot makes saves fail."""
    reason = f"engine={config.engine}: {decision.name or 'cannot be used'}"
    mend = "" if decision.name else "Set engine=auto, or mend what is said below."
    return ProbeStep("engine", ok=bool(decision.name), needed=True, reason=reason, mend=mend)


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
