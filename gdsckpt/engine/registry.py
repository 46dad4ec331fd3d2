"""The one place that picks the engine."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gdsckpt import kernels, native
from gdsckpt.config import Config
from gdsckpt.engine import cufile_library, probe_cuda, probe_cufile
from gdsckpt.engine.base import Engine
from gdsckpt.engine.driver import library_override
from gdsckpt.engine.fallback import warn_once
from gdsckpt.engine.pinned import shared_engine
from gdsckpt.engine.probe_cuda import Gpu
from gdsckpt.engine.probe_cufile import CuFileProbe, Verdict
from gdsckpt.engine.probe_gpu import GpuReport
from gdsckpt.engine.probe_trial import TrialSettings
from gdsckpt.engine.trial_cache import TrialCache, cache_directory
from gdsckpt.errors import CudaError, EngineUnavailableError


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """An engine and why it was taken.

    Attributes:
        engine: Ready for use.
        reasons: Sentences for reports and manifests; never empty.
    """

    engine: Engine
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Decision:
    """What follows from what is known, before anything is opened in this process.

    Attributes:
        name: Of the engine; empty where the one asked for cannot be used.
        reasons: Sentences.
        warning: What the user has to be told; empty where it is nothing.
    """

    name: str
    reasons: tuple[str, ...]
    warning: str = ""


def choose_engine(
    config: Config,
    *,
    slab_bytes: int | None = None,
    directory: Path | None = None,
    devices: Iterable[int] = (),
) -> EngineChoice:
    """Pick the engine that ``config.engine`` asks for, or that suits best.

    Host memory always goes by ``pinned``, and nothing is probed for it. The first call with a GPU
    and a file system may take seconds (see :class:`gdsckpt.engine.probe_cufile.CuFileProbe`).

    Args:
        config: Settings.
        slab_bytes: See :func:`gdsckpt.engine.pinned.shared_engine`.
        directory: Where the file is; None for one that has no place of its own.
        devices: CUDA's numbers of the GPUs whose memory is to be moved, by a process that uses
            them; ``native.HOST`` among them counts for nothing.

    Raises:
        EngineUnavailableError: The engine that was demanded cannot be used; has all reasons.
    """
    numbers = sorted(set(devices) - {native.HOST})
    if config.engine == "auto":
        if not numbers:
            return _pinned(config, slab_bytes, "auto: nothing of it is in GPU memory")
        if directory is None or config.direct_io == "off":
            why = "the file has no place of its own" if directory is None else "direct_io=off"
            return _pinned(config, slab_bytes, f"auto: not cufile: {why}")
        return _automatic(config, slab_bytes, directory, numbers)
    asked = f"asked for by the setting engine={config.engine}"
    if config.engine == "cufile" and directory is not None:
        if config.direct_io == "off":
            raise _unavailable(directory, [("direct_io=off, and cuFile is direct I/O", "")])
        return _demanded_cufile(config, slab_bytes, directory, numbers)
    if config.engine == "kvikio":
        from gdsckpt.engine import kvikio

        engine = kvikio.shared_engine(config, slab_bytes)
        return EngineChoice(engine, (asked, *engine.reasons))
    if config.engine == "cufile":
        asked += ", but the file has no place that cuFile could reach"
    return _pinned(config, slab_bytes, asked)


def decide(gpus: Sequence[Gpu], verdict: Verdict | None) -> Decision:
    """Decide what ``auto`` takes for memory of some GPUs.

    Args:
        gpus: The GPUs; none means host memory only.
        verdict: What is known of cuFile; None where it was not looked at, as for coherent memory.
    """
    coherent = [f"cuda:{gpu.number}" for gpu in gpus if gpu.is_coherent_with_host]
    if not gpus:
        return Decision("pinned", ("auto: nothing of it is in GPU memory",))
    if coherent:
        return Decision(
            "pinned",
            (
                f"auto: the memory of {', '.join(coherent)} is coherent with the host's: the way "
                "through the host is faster than drives, and is done with the GPU sooner",
            ),
        )
    if verdict is None or not verdict.is_proven:
        obstacles = verdict.obstacles if verdict else []
        reasons = tuple(f"auto: not cufile: {reason}" for reason, _ in obstacles)
        warning = _warning(obstacles) if verdict and verdict.is_worth_a_warning else ""
        return Decision("pinned", reasons or ("auto: cufile was not proven",), warning)
    ways = ", ".join(sorted({trial.way for _, trial in verdict.trials}))
    races = tuple(
        f"cuda:{gpu.number}: {probe_cufile.race_text(trial)}" for gpu, trial in verdict.trials
    )
    if all(trial.has_won for _, trial in verdict.trials):
        return Decision("cufile", (f"auto: cufile was proven to go by {ways}", *races))
    return Decision("pinned", ("auto: cufile works, but was not as fast as pinned", *races))


def foresee(config: Config, found: GpuReport) -> Decision:
    """Say what a save would take, after a probe. Nothing is opened in this process.

    Args:
        config: Settings.
        found: What the probe found; all its GPUs are taken to be used.
    """
    asked = f"asked for by the setting engine={config.engine}"
    if config.engine == "auto":
        return decide(found.gpus, found.verdict)
    if config.engine == "kvikio":
        step = next(step for step in found.steps if step.name == "kvikio")
        return Decision("kvikio" if step.ok else "", (asked if step.ok else step.reason,))
    if config.engine == "cufile" and not found.verdict.is_proven:
        none = [found.why_none] if found.why_none else []
        obstacles = [reason for reason, _ in found.verdict.obstacles]
        return Decision("", (*none, *obstacles) or ("cufile was not proven",))
    return Decision(config.engine, (asked,))


def _warning(obstacles: Sequence[tuple[str, str]]) -> str:
    why = "; ".join(reason for reason, _ in obstacles)
    mends = " ".join(dict.fromkeys(mend for _, mend in obstacles if mend))
    return (
        "GPUDirect Storage is installed on this machine, but GPU memory goes through the host "
        f"(engine pinned): {why}. {mends} Or set engine=pinned to silence this; 'gdsckpt probe' "
        "says more."
    )


def cufile_probe(config: Config) -> CuFileProbe:
    """Give the process's probe of cuFile."""
    settings = TrialSettings(
        libcuda=library_override("libcuda"),
        libcufile=library_override("libcufile"),
        io_threads=config.io_threads,
    )
    return _shared_probe(settings)


@functools.cache
def _shared_probe(settings: TrialSettings) -> CuFileProbe:
    return CuFileProbe(settings, TrialCache(cache_directory(os.environ)))


@functools.cache
def _gpus() -> tuple[Gpu, ...]:
    return probe_cuda.gpus_here()


def _pinned(config: Config, slab_bytes: int | None, *reasons: str) -> EngineChoice:
    return EngineChoice(shared_engine(config, slab_bytes), reasons)


def _automatic(
    config: Config, slab_bytes: int | None, directory: Path, numbers: Sequence[int]
) -> EngineChoice:
    gpus = [gpu for gpu in _gpus() if gpu.number in numbers]
    verdict = None
    if not any(gpu.is_coherent_with_host for gpu in gpus):
        verdict = cufile_probe(config).verdict(directory, gpus)
    decision = decide(gpus, verdict)
    if decision.warning:
        warn_once("; ".join(decision.reasons), decision.warning, stacklevel=4)
    if decision.name == "cufile" and verdict is not None:
        why = _open_here(verdict, cufile_probe(config).settings)
        if not why:
            from gdsckpt.engine import cufile

            return EngineChoice(cufile.shared_engine(config, slab_bytes), decision.reasons)
        reason = f"auto: cufile works in a process of its own, but not in this one: {why}"
        warn_once(reason, f"GPU memory goes through the host: {reason}.", stacklevel=4)
        return _pinned(config, slab_bytes, reason)
    return _pinned(config, slab_bytes, *decision.reasons)


def _demanded_cufile(
    config: Config, slab_bytes: int | None, directory: Path, numbers: Sequence[int]
) -> EngineChoice:
    """Take cuFile or nothing, also for host memory: what cannot be had is not to go unnoticed."""
    prober = cufile_probe(config)
    gpus = [gpu for gpu in _gpus() if gpu.number in numbers] if numbers else []
    if not numbers:
        why, gpus = _first_gpu(prober.settings)
        if why:
            findings = prober.cheap_verdict(directory, ()).obstacles
            raise _unavailable(directory, [(why, ""), *findings])
    verdict = prober.verdict(directory, gpus, retry=True)
    if not verdict.is_proven:
        raise _unavailable(directory, verdict.obstacles)
    why = _open_here(verdict, prober.settings)
    if why:
        raise _unavailable(directory, [(why, "")])
    from gdsckpt.engine import cufile

    ways = ", ".join(sorted({trial.way for _, trial in verdict.trials}))
    reason = f"asked for by the setting engine=cufile, and proven to go by {ways}"
    return EngineChoice(cufile.shared_engine(config, slab_bytes), (reason,))


def _first_gpu(settings: TrialSettings) -> tuple[str, list[Gpu]]:
    """Find a GPU for a demand that has none in it; a child process looks first.

    Returns:
        Why there is none, or an empty text; the GPU.
    """
    found = probe_cuda.look(settings.libcuda, cufile_library.candidates(settings.libcufile))
    why = found.cuda_missing or native.cuda_load(settings.libcuda)
    return why, list(found.gpus[:1])


def _unavailable(directory: Path, obstacles: Sequence[tuple[str, str]]) -> EngineUnavailableError:
    lines = [f"{reason}. {mend}".rstrip(". ") for reason, mend in obstacles]
    why = lines[0] if len(lines) == 1 else " ".join(f"({n}) {x}." for n, x in enumerate(lines, 1))
    return EngineUnavailableError(
        f"engine='cufile' cannot be used for {directory}: {why.rstrip('.')}. Or take "
        "engine='auto', which falls back to the way through the host; 'gdsckpt probe' says more.",
        engine="cufile",
        reasons=[reason for reason, _ in obstacles],
    )


def _open_here(verdict: Verdict, settings: TrialSettings) -> str:
    """Open cuFile in this process, after a child has survived it; says why it cannot be used."""
    trial = verdict.trials[0][1]
    numbers = tuple(gpu.number for gpu, _ in verdict.trials)
    return _opened(trial.library, trial.version, numbers, settings)


@functools.cache
def _opened(library: str, version: int, numbers: tuple[int, ...], settings: TrialSettings) -> str:
    why = native.cufile_load(cufile_library.candidates(settings.libcufile))
    if why:
        return why
    facts = native.cufile_facts()
    if (facts["path"], facts["version"]) != (library, version):
        return (
            f"it has loaded {facts['path']} ({probe_cuda.version_text(facts['version'])}), and "
            f"{library} ({probe_cuda.version_text(version)}) was tried"
        )
    try:
        for number in numbers:
            kernels.warm_up(number)
        native.cufile_open(modules_path=settings.modules_path)
    except (EngineUnavailableError, CudaError) as error:
        return "; ".join(getattr(error, "reasons", ())) or str(error)
    if native.cufile_facts()["allows_compat_mode"]:
        return "something else has opened cuFile with its compatibility mode"
    return ""


def _forget() -> None:
    """Start afresh in a forked child: its parent's threads may have held the locks."""
    _shared_probe.cache_clear()
    _opened.cache_clear()


os.register_at_fork(after_in_child=_forget)
