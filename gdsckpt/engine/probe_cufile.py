"""Whether cuFile can be used for a directory and a GPU: cheap steps first, the trial last."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gdsckpt.engine import mounts, probe_cuda, probe_drive, probe_kernel, probe_trial
from gdsckpt.engine.mounts import Mount
from gdsckpt.engine.probe_cuda import Gpu, Look
from gdsckpt.engine.probe_step import Finding, ProbeStep
from gdsckpt.engine.probe_tree import HostTree
from gdsckpt.engine.probe_trial import Trial, TrialSettings
from gdsckpt.engine.trial_cache import TrialCache
from gdsckpt.units import format_rate


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is known of cuFile for a directory and some GPUs.

    Attributes:
        findings: The cheap steps.
        trials: GPU and outcome; empty where a finding rules cuFile out.
        looks_installed: Whether somebody has set this machine up for GPUDirect Storage.
    """

    findings: tuple[Finding, ...]
    trials: tuple[tuple[Gpu, Trial], ...]
    looks_installed: bool

    @property
    def is_proven(self) -> bool:
        """Whether cuFile works for all of the GPUs."""
        return bool(self.trials) and all(trial.is_proven for _, trial in self.trials)

    @property
    def obstacles(self) -> list[tuple[str, str]]:
        """Why cuFile does not work, and what can be done about it; empty if it is proven."""
        found = [(f.step.reason, f.step.mend) for f in self.findings if f.rules_out]
        found += [
            (f"cuda:{gpu.number}: {trial.failure}", trial.mend)
            for gpu, trial in self.trials
            if not trial.is_proven
        ]
        return found

    @property
    def is_worth_a_warning(self) -> bool:
        """Whether the user gets less than this machine was set up for, and may not know.

        Not where files go to a place that cuFile never reaches, such as NFS; an overlay is what a
        container has by accident.
        """
        is_elsewhere = any(
            found.rules_out and found.step.name in ("cufile_file_system", "cufile_drive")
            for found in self.findings
        )
        if not self.looks_installed or self.is_proven:
            return False
        return not is_elsewhere or probe_drive.is_overlay(list(self.findings))


def locate(where: Path) -> tuple[str, Mount | None]:
    """Give the file system of a directory, by its magic, and its mount."""
    try:
        _, kind = mounts.file_system_name(where)
    except OSError as error:
        kind = f"unknown ({error.strerror})"
    return kind, mounts.mount_of(where)


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the facts come from; other ones for tests.

    Attributes:
        tree: What the kernel shows of itself.
        locate: What directories lie on.
        checksums: Whether checksums can be taken on GPUs, as far as that shows without trying.
        try_checksums: Takes one, by the libcuda of the settings.
        run_trial: See :func:`gdsckpt.engine.probe_trial.run_trial`.
        clock: Gives seconds.
    """

    tree: HostTree = field(default_factory=HostTree)
    locate: Callable[[Path], tuple[str, Mount | None]] = locate
    checksums: Callable[[], Finding] = probe_cuda.checksums_finding
    try_checksums: Callable[[str], Finding] = probe_cuda.tried_checksums_finding
    run_trial: Callable[[Path, str, TrialSettings], Trial] = probe_trial.run_trial
    clock: Callable[[], float] = time.monotonic


class CuFileProbe:
    """Finds out about cuFile, and remembers it. Any thread may call.

    Args:
        settings: How trials are made.
        cache: Where trials are remembered from process to process.
        sources: Where the facts come from.
    """

    def __init__(
        self, settings: TrialSettings, cache: TrialCache, sources: Sources | None = None
    ) -> None:
        self.settings = settings
        self._sources = sources or Sources()
        self._cache = cache
        self._lock = threading.Lock()
        self._verdicts: dict[tuple[int, tuple[str, ...]], tuple[Verdict, float]] = {}

    def findings(self, where: Path, gpus: Sequence[Gpu]) -> tuple[Finding, ...]:
        """Take the cheap steps: nothing is loaded and nothing is tried.

        Args:
            where: The directory.
            gpus: For which.
        """
        tree = self._sources.tree
        return (
            *probe_kernel.kernel_findings(tree, [gpu.pci_bus_id for gpu in gpus]),
            *probe_drive.drive_findings(tree, *self._sources.locate(where)),
            self._sources.checksums(),
        )

    def verdict(self, where: Path, gpus: Sequence[Gpu], *, retry: bool = False) -> Verdict:
        """Find out whether cuFile works between GPUs and a directory.

        The first call for a file system may take seconds: it makes trials, unless a cheap step
        shows that they are in vain or an earlier process has made them.

        Args:
            where: The directory.
            gpus: At least one.
            retry: Whatever has failed before is tried again.
        """
        known_as = (_device_of(where), tuple(gpu.uuid for gpu in gpus))
        with self._lock:  # so that several threads make one trial
            verdict, found_at_s = self._verdicts.get(known_as, (None, 0.0))
            now_s = self._sources.clock()
            # What failed for a while (a full GPU) is not believed for the life of a long job.
            is_old = now_s - found_at_s > probe_trial.FAILURE_AGE_MAX_S
            if verdict is None or ((retry or is_old) and not verdict.is_proven):
                verdict = self._find_out(where, gpus, retry=retry)
                self._verdicts[known_as] = verdict, now_s
        return verdict

    def verdict_anew(self, where: Path, gpus: Sequence[Gpu]) -> Verdict:
        """As ``verdict``, with all that can be tried, whatever is known; trials are remembered.

        Args:
            where: The directory.
            gpus: At least one.
        """
        cheap = self.cheap_verdict(where, gpus)
        if cheap.obstacles:
            return cheap
        checksums = self._sources.try_checksums(self.settings.libcuda)
        findings = (*cheap.findings[:-1], checksums)
        trials = []
        for gpu in gpus if not checksums.rules_out else ():
            trial = self._sources.run_trial(where, gpu.uuid, self.settings)
            probe_trial.keep_trial(self._cache, self._key(where, gpu), trial)
            trials.append((gpu, trial))
        return self._verdict(findings, trials)

    def cheap_verdict(self, where: Path, gpus: Sequence[Gpu]) -> Verdict:
        """As ``verdict_anew``, without any trial."""
        return self._verdict(self.findings(where, gpus), [])

    def _find_out(self, where: Path, gpus: Sequence[Gpu], *, retry: bool) -> Verdict:
        findings = self.findings(where, gpus)
        trials: list[tuple[Gpu, Trial]] = []
        if not any(finding.rules_out for finding in findings):
            for gpu in gpus:
                trials.append((gpu, self._trial(where, gpu, retry=retry)))
                if not trials[-1][1].is_proven:  # all or none
                    break
        return self._verdict(findings, trials)

    def _trial(self, where: Path, gpu: Gpu, *, retry: bool) -> Trial:
        key = self._key(where, gpu)
        trial = probe_trial.cached_trial(self._cache, key)
        if trial is None or (retry and not trial.is_proven):
            trial = self._sources.run_trial(where, gpu.uuid, self.settings)
            probe_trial.keep_trial(self._cache, key, trial)
        return trial

    def _key(self, where: Path, gpu: Gpu) -> dict[str, Any] | None:
        """Name a trial, the same for whoever asks: a rank with one GPU, or a probe of all."""
        findings = self.findings(where, [gpu])
        return probe_trial.trial_key(where, gpu, findings, self.settings, self._sources.tree)

    def _verdict(self, findings: Sequence[Finding], trials: list[tuple[Gpu, Trial]]) -> Verdict:
        is_installed = probe_kernel.looks_installed(self._sources.tree)
        return Verdict(tuple(findings), tuple(trials), is_installed)


def _device_of(where: Path) -> int:
    try:
        return os.stat(where).st_dev  # noqa: PTH116 - one call, where it is often made
    except OSError:
        return -1


def library_step(found: Look) -> ProbeStep:
    """Say which libcufile is there."""
    if found.cufile_missing:
        return ProbeStep(
            "cufile_library",
            ok=False,
            reason=found.cufile_missing,
            mend="pip install nvidia-cufile, or install CUDA 13.",
        )
    version = probe_cuda.version_text(found.cufile_version)
    return ProbeStep("cufile_library", ok=True, reason=f"cuFile {version}, {found.cufile_path}")


def trial_steps(found: Verdict, why_not: str) -> list[ProbeStep]:
    """Say how the trials and the races came out.

    Args:
        found: All that was found.
        why_not: Why no trial was made, if none was.
    """
    if not found.trials:
        return [ProbeStep("cufile_trial", ok=False, reason=f"not tried: {why_not}")]
    trials = ProbeStep(
        "cufile_trial",
        ok=found.is_proven,
        reason="; ".join(f"cuda:{gpu.number}: {_outcome(trial)}" for gpu, trial in found.trials),
        mend=" ".join(dict.fromkeys(trial.mend for _, trial in found.trials if trial.mend)),
    )
    raced = [(gpu, trial) for gpu, trial in found.trials if trial.is_proven]
    if not raced:
        return [trials]
    race = ProbeStep(
        "cufile_race",
        ok=all(trial.has_won for _, trial in raced),
        reason="; ".join(f"cuda:{gpu.number}: {race_text(trial)}" for gpu, trial in raced),
    )
    return [trials, race]


def race_text(trial: Trial) -> str:
    """Say how the race of a proven trial came out."""
    if trial.race_failure:
        return f"no end of the race: {trial.race_failure}"
    if trial.pinned_bytes_per_s <= 0:
        return "no race"
    rates = (format_rate(trial.cufile_bytes_per_s), format_rate(trial.pinned_bytes_per_s))
    return f"cufile wrote {rates[0]}, pinned {rates[1]}"


def _outcome(trial: Trial) -> str:
    if not trial.is_proven:
        return trial.failure
    return f"16 MiB written and read back by {trial.way}, the statistics agree"
