"""The trial of cuFile on one GPU and one file system: the only proof that there is."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from gdsckpt._version import __version__
from gdsckpt.engine import cufile_library, probe_process
from gdsckpt.engine.probe_cuda import Gpu
from gdsckpt.engine.probe_step import Finding
from gdsckpt.engine.probe_tree import HostTree
from gdsckpt.engine.trial_cache import TrialCache

PROBE_PREFIX = ".gdsckpt-probe-"

TIMEOUT_S = 10.0
RACE_S = 1.0
FAILURE_AGE_MAX_S = 3600.0
"""So long a failure is believed by other processes; a success until the machine starts anew."""

_RACE_MARGIN = 0.95
"""cuFile loses the race below this share of the rate of pinned. At the same rate it is better: it
leaves processors and host memory alone."""


@dataclass(frozen=True, slots=True)
class TrialSettings:
    """How a trial is made.

    Attributes:
        libcuda: The setting; empty for the system's library.
        libcufile: Likewise.
        io_threads: Threads of the race.
        timeout_s: Limit of the whole trial.
        race_s: How long the race takes; 0 for none.
        modules_path: What cuFile waits for in an endless loop; another one for tests.
    """

    libcuda: str = ""
    libcufile: str = ""
    io_threads: int = 8
    timeout_s: float = TIMEOUT_S
    race_s: float = RACE_S
    modules_path: str = "/proc/modules"


@dataclass(frozen=True, slots=True)
class Trial:
    """How a trial came out.

    Attributes:
        failure: Why cuFile cannot be used, a sentence without a full stop; empty if it was proven.
        mend: What can be done about it.
        is_passing: The failure may be gone a little later.
        way: ``p2pdma`` or ``nvidia-fs``; empty where it was not proven.
        library: Path of the libcufile that was tried.
        version: Its version: 1000 * major + 10 * minor.
        cufile_bytes_per_s: Rate of writes; 0 where there was no race, or not to the end.
        pinned_bytes_per_s: Of pinned, in turn with the other.
        race_failure: Why the race came to no end.
    """

    failure: str = ""
    mend: str = ""
    is_passing: bool = False
    way: str = ""
    library: str = ""
    version: int = 0
    cufile_bytes_per_s: float = 0.0
    pinned_bytes_per_s: float = 0.0
    race_failure: str = ""

    @property
    def is_proven(self) -> bool:
        """Whether bytes went to the drive and back by a direct path, and were the same."""
        return not self.failure

    @property
    def has_won(self) -> bool:
        """Whether it is proven, and not slower than pinned."""
        is_raced = self.is_proven and self.pinned_bytes_per_s > 0
        return is_raced and self.cufile_bytes_per_s >= _RACE_MARGIN * self.pinned_bytes_per_s


def trial_from(document: object) -> Trial | None:
    """Read a trial out of what a cache kept; None if it is not one."""
    if not isinstance(document, dict) or set(document) != {field.name for field in fields(Trial)}:
        return None
    for field in fields(Trial):
        value = document[field.name]
        wanted = type(field.default)
        if type(value) is not wanted and not (wanted is float and type(value) is int):
            return None
    return Trial(**document)


def trial_key(
    where: Path, gpu: Gpu, findings: Sequence[Finding], settings: TrialSettings, tree: HostTree
) -> dict[str, Any] | None:
    """Name all that the outcome of a trial depends on; None where that cannot be told.

    Args:
        where: The directory.
        gpu: The GPU.
        findings: What the cheap steps found: when one of them changes, the trial is made again.
        settings: As for the trial.
        tree: The host.
    """
    boot_id = tree.text("proc/sys/kernel/random/boot_id")
    try:
        device = where.stat().st_dev
    except OSError:
        return None
    if not boot_id or not gpu.uuid:
        return None
    return {
        "gdsckpt": __version__,
        "boot_id": boot_id,
        "st_dev": device,
        "gpu": gpu.uuid,
        "cuda_version": gpu.cuda_version,
        "nvidia": tree.text("proc/driver/nvidia/version") or "",
        "libcuda": settings.libcuda,
        "libraries": cufile_library.identity(cufile_library.candidates(settings.libcufile)),
        "findings": [[found.step.name, found.step.ok, found.step.reason] for found in findings],
    }


def cached_trial(cache: TrialCache, key: Mapping[str, Any] | None) -> Trial | None:
    """Give what an earlier trial found, if it still counts."""
    if key is None:
        return None
    trial = trial_from(cache.load(key))
    if trial is None or (trial.is_proven and not trial.race_failure):
        return trial
    return trial_from(cache.load(key, max_age_s=FAILURE_AGE_MAX_S))


def keep_trial(cache: TrialCache, key: Mapping[str, Any] | None, trial: Trial) -> None:
    """Remember a trial, unless it tells nothing about the next one."""
    if key is not None and not trial.is_passing:
        cache.store(key, asdict(trial))


def run_trial(where: Path, uuid: str, settings: TrialSettings) -> Trial:
    """Try cuFile out, on a temporary file in the directory, in a child process.

    Returns within about a second after ``settings.timeout_s``, whatever happens.
    """
    try:
        fd, name = tempfile.mkstemp(prefix=PROBE_PREFIX, dir=where)
    except OSError as error:
        why = os.strerror(error.errno or errno.EIO)
        return Trial(failure=f"no file to try it on can be made in {where}: {why}", is_passing=True)
    os.close(fd)
    try:
        outcome = probe_process.run(
            "trial",
            {
                "libcuda": settings.libcuda,
                "candidates": cufile_library.candidates(settings.libcufile),
                "uuid": uuid,
                "path": name,
                "io_threads": settings.io_threads,
                "race_s": settings.race_s,
                "modules_path": settings.modules_path,
            },
            timeout_s=settings.timeout_s,
        )
    finally:
        with contextlib.suppress(OSError):
            Path(name).unlink()
    # The file is gone, and its name would make each failure another one.
    return _judge(outcome, lambda text: text.replace(name, str(where)))


def _judge(outcome: probe_process.Outcome, anonymous: Callable[[str], str]) -> Trial:
    facts = outcome.facts
    is_only_slow = outcome.is_late and bool(facts.get("way")) and outcome.doing == "the race"
    failure = "" if is_only_slow else outcome.failure
    if not failure and not facts.get("way"):
        failure = "the process did not say which way the bytes went"
    trial = Trial(library=str(facts.get("library", "")), version=int(facts.get("version", 0)))
    if failure:
        return replace(
            trial, failure=anonymous(failure), mend=outcome.mend, is_passing=outcome.is_passing
        )
    race_failure = outcome.failure or str(facts.get("race_failure", ""))
    return replace(
        trial,
        way=str(facts["way"]),
        cufile_bytes_per_s=float(facts.get("cufile_bytes_per_s", 0.0)),
        pinned_bytes_per_s=float(facts.get("pinned_bytes_per_s", 0.0)),
        race_failure=anonymous(race_failure),
    )
