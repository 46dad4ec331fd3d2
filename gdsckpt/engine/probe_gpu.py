"""Probe steps about GPUs and cuFile. None is needed; what may hang is done by child processes."""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass
from pathlib import Path

from gdsckpt.engine import cufile_library, probe_cuda, probe_cufile
from gdsckpt.engine.probe_cuda import Gpu, Look
from gdsckpt.engine.probe_cufile import CuFileProbe, Verdict
from gdsckpt.engine.probe_step import ProbeStep


@dataclass(frozen=True, slots=True)
class GpuReport:
    """What was found out about the GPUs and their way to a directory.

    Attributes:
        steps: In the order in which they were tried.
        gpus: In CUDA's order.
        verdict: About cuFile.
        why_none: Why there is no GPU; empty where there is one.
    """

    steps: tuple[ProbeStep, ...]
    gpus: tuple[Gpu, ...]
    verdict: Verdict
    why_none: str


def examine(where: Path, prober: CuFileProbe) -> GpuReport:
    """Try everything that may lead from the GPUs to a directory, whatever is known already.

    Args:
        where: The directory.
        prober: Remembers the trials, for later choices.
    """
    settings = prober.settings
    found = probe_cuda.look(settings.libcuda, cufile_library.candidates(settings.libcufile))
    can_try = bool(found.gpus) and not found.cufile_missing
    verdict = (prober.verdict_anew if can_try else prober.cheap_verdict)(where, found.gpus)
    steps = (
        *probe_cuda.cuda_steps(found),
        *(finding.step for finding in verdict.findings),
        probe_cufile.library_step(found),
        *probe_cufile.trial_steps(verdict, _why_not(found, verdict)),
        _kvikio_step(),
    )
    return GpuReport(steps, found.gpus, verdict, found.cuda_missing)


def _why_not(found: Look, verdict: Verdict) -> str:
    """Say why no trial was made."""
    if not found.gpus:
        return "there is no GPU"
    ruled_out = [finding.step.name for finding in verdict.findings if finding.rules_out]
    ruled_out += ["cufile_library"] if found.cufile_missing else []
    return f"{', '.join(ruled_out)} rule it out"


def _kvikio_step() -> ProbeStep:
    for package in ("kvikio-cu13", "kvikio-cu12", "kvikio"):
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
        return ProbeStep("kvikio", ok=True, reason=f"{package} {version}")
    return ProbeStep(
        "kvikio",
        ok=False,
        reason="not installed; only engine=kvikio needs it",
        mend="For those who run RAPIDS: pip install 'gdsckpt[kvikio]'",
    )
