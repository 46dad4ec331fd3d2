"""A machine with stand-in GPUs on which cuFile may be chosen, for tests in their own processes."""

from __future__ import annotations

import os
import warnings
from dataclasses import replace
from pathlib import Path

from cufile_bench import MODULES, Checksums
from fake_cuda import stand_ins
from host_trees import EXT4, STATIC_BAR, p2pdma_host, put

from gdsckpt import kernels
from gdsckpt.engine import probe_trial, registry
from gdsckpt.engine.driver import cuda_unusable, library_override
from gdsckpt.engine.probe_cufile import CuFileProbe, Sources
from gdsckpt.engine.probe_step import Finding, ProbeStep
from gdsckpt.engine.probe_trial import Trial, TrialSettings
from gdsckpt.engine.trial_cache import TrialCache

CHECKSUMS = Finding(ProbeStep("device_checksums", ok=True, reason="there"))
WON = {"cufile_bytes_per_s": 3e9, "pinned_bytes_per_s": 1e9}
LOST = {"cufile_bytes_per_s": 1e9, "pinned_bytes_per_s": 3e9}


def expect_stand_ins() -> None:
    """Take the warning about libraries that the environment names for granted."""
    warnings.filterwarnings("ignore", message=".* in the place of the system's")
    for name in ("libcuda", "libcufile"):
        library_override(name)


class Machine:
    """What the choice sees: a machine that looks right, real trials over the stand-ins.

    Attributes:
        num_trials: So many were made.
        race: Rates of the race: it is not run, as the stand-ins tell nothing of speed.
        place: File system and mount of all directories.
        timeout_s: Limit of a trial, from the next start on.
    """

    def __init__(self, directory: Path, *, is_set_up: bool = False) -> None:
        self.tree = p2pdma_host(directory / "host")
        put(directory / "host", "proc/driver/nvidia/params", STATIC_BAR if is_set_up else "")
        self.directory = directory
        self.num_trials = 0
        self.race = WON
        self.timeout_s = 60.0
        self.place = ("ext4", EXT4)
        self.checksums = Checksums()
        expect_stand_ins()
        both = stand_ins.StandIns.loaded()
        self.cuda, self.cufile = both.cuda, both.cufile
        assert cuda_unusable() == ""
        kernels.crc32_pieces = self.checksums.crc32_pieces
        kernels.warm_up = lambda number: None
        self.start()

    def start(self) -> None:
        """Begin as a new process does."""
        settings = TrialSettings(
            libcuda=os.environ["GDSCKPT_LIBCUDA"],
            libcufile=os.environ["GDSCKPT_LIBCUFILE"],
            io_threads=2,
            timeout_s=self.timeout_s,
            race_s=0.0,
            modules_path=MODULES,
        )
        sources = Sources(
            tree=self.tree,
            locate=lambda where: self.place,
            checksums=lambda: CHECKSUMS,
            try_checksums=lambda libcuda: CHECKSUMS,
            run_trial=self._run_trial,
        )
        probe = CuFileProbe(settings, TrialCache(self.directory / "cache"), sources)
        registry.cufile_probe = lambda config: probe

    def _run_trial(self, where: Path, uuid: str, settings: TrialSettings) -> Trial:
        self.num_trials += 1
        trial = probe_trial.run_trial(where, uuid, settings)
        return replace(trial, **self.race) if trial.is_proven else trial
