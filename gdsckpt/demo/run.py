"""The demo, step by step, with the evidence of each step."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import gdsckpt
from gdsckpt.config import Config
from gdsckpt.demo import checks
from gdsckpt.demo.checks import Claim
from gdsckpt.demo.data import find_text
from gdsckpt.demo.model import Shape, shape_for
from gdsckpt.demo.resume import Order, Resumed, ResumeError, run_in_child
from gdsckpt.demo.speed import Timing, measure
from gdsckpt.demo.training import RunOptions, Training, deterministic, fingerprint
from gdsckpt.engine import mounts
from gdsckpt.errors import ConfigError, storage_error_from
from gdsckpt.report import SaveReport
from gdsckpt.units import format_bytes, format_duration, format_rate

DIRECTORY_PREFIX = "gdsckpt-demo-"
PARAMS_MIN = Shape(1, 32).num_parameters
STEPS_MIN = 2
_SEED = 1234
_LINES_OF_LOSS = 6

Say = Callable[[str], None]
"""Told each line, without its end."""


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """What to show.

    Attributes:
        num_parameters: Size of the model.
        num_steps: Steps of the whole run; the save comes after half of them.
        directory: Where the demo's own directory is made; None takes ``$TMPDIR`` or the current
            directory.
        keep: Leave the files.
        config: Settings of gdsckpt.
    """

    num_parameters: int
    num_steps: int
    directory: Path | None
    keep: bool
    config: Config


@dataclass(slots=True)
class DemoResult:
    """What was shown.

    Attributes:
        directory: Where the files were, and are if they were kept.
        num_parameters: Of the model.
        claims: Each with its evidence.
        save: Report of the save.
        losses: Of the steps after the save: those of the run that went on.
        resumed: Of the same steps in the new process; None where that failed.
        timings: The table.
    """

    directory: str
    num_parameters: int = 0
    claims: list[Claim] = field(default_factory=list)
    save: SaveReport | None = None
    losses: list[float] = field(default_factory=list)
    resumed: Resumed | None = None
    timings: list[Timing] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether every claim held."""
        return bool(self.claims) and all(claim.ok for claim in self.claims)

    def as_dict(self) -> dict[str, Any]:
        """Give all of it as values that JSON has; losses are hexadecimal, to keep every bit."""
        resumed = None if self.resumed is None else self.resumed.losses
        return {
            "ok": self.ok,
            "directory": self.directory,
            "num_parameters": self.num_parameters,
            "claims": [dataclasses.asdict(claim) for claim in self.claims],
            "save": self.save.as_dict() if self.save else None,
            "losses": [loss.hex() for loss in self.losses],
            "resumed_losses": None if resumed is None else [loss.hex() for loss in resumed],
            "timings": [
                {**dataclasses.asdict(timing), "bytes_per_s": timing.bytes_per_s}
                for timing in self.timings
            ],
        }


def run(options: DemoOptions, say: Say) -> DemoResult:
    """Run the demo.

    Args:
        options: What to show.
        say: Gets the story, line by line.

    Raises:
        ConfigError: The model would be too small, or there are too few steps.
        StorageError: A file could not be written.
    """
    if options.num_parameters < PARAMS_MIN:
        raise ConfigError(
            f"params is {options.num_parameters}, and the smallest model has {PARAMS_MIN} "
            "parameters. Give more, such as 10M.",
            field="params",
        )
    if options.num_steps < STEPS_MIN:
        raise ConfigError(
            f"steps is {options.num_steps}: give at least {STEPS_MIN}, half of them before the "
            "save and half after it.",
            field="steps",
        )
    with _directory(options) as directory:
        run_options = RunOptions(
            shape_for(options.num_parameters), options.num_steps, _SEED, torch.get_num_threads()
        )
        with deterministic(run_options.threads):
            return _Demo(options, run_options, directory, say).run()


@contextlib.contextmanager
def _directory(options: DemoOptions) -> Iterator[Path]:
    """Make the demo's own directory, and remove it afterwards unless it is to be kept."""
    parent = options.directory or Path(os.environ.get("TMPDIR") or Path.cwd())
    try:
        parent.mkdir(parents=True, exist_ok=True)
        directory = Path(tempfile.mkdtemp(prefix=DIRECTORY_PREFIX, dir=parent))
    except OSError as error:
        raise storage_error_from(error, op="mkdir", path=parent) from error
    try:
        yield directory
    finally:
        if not options.keep:
            shutil.rmtree(directory, ignore_errors=True)


class _Demo:
    """One run of the demo."""

    def __init__(
        self, options: DemoOptions, run_options: RunOptions, directory: Path, say: Say
    ) -> None:
        self._config = options.config
        self._keep = options.keep
        self._options = run_options
        self._directory = directory
        self._say = say
        self._checkpoint = directory / "checkpoint.pt"
        self._text = directory / "text"
        self._result = DemoResult(str(directory), run_options.shape.num_parameters)

    def run(self) -> DemoResult:
        """Go through all steps."""
        final = self._train_and_save()
        self._resume(final)
        self._flip()
        self._measure()
        failed = [claim.name for claim in self._result.claims if not claim.ok]
        self._say("")
        if failed:
            self._say(f"FAILED: {', '.join(failed)}")
        else:
            self._say(f"All {len(self._result.claims)} claims hold.")
        if self._keep:
            self._say(f"The files are in {self._directory}")
        return self._result

    def _train_and_save(self) -> str:
        """Do the run that is never interrupted; gives the fingerprint of its end."""
        text, shape = find_text(), self._options.shape
        self._text.write_bytes(text)
        self._head("Train a small GPT")
        self._say(
            f"{shape.num_parameters:,} parameters: {shape.num_layers} layers, width {shape.width}, "
            f"{shape.num_heads} heads, tied output layer, dropout; AdamW, warm-up and cosine"
        )
        self._say(
            f"{format_bytes(len(text))} of text, byte by byte; {self._options.threads} threads of "
            f"torch {torch.__version__}"
        )
        training = Training(self._options, text)
        num_before = self._options.num_steps // 2
        training.train(num_before, self._loss_line())
        self._head(f"Save after step {num_before}: model, optimizer, schedule, RNG, data position")
        state = training.state_dict()
        report = self._result.save = gdsckpt.save(state, self._checkpoint, config=self._config)
        self._say(f"{report}")
        _, file_system = mounts.file_system_name(self._directory)
        self._say(f"on {file_system}, durable: file and directory are synced")
        self._head("Open it without gdsckpt")
        self._claim(checks.stock_torch_opens(self._checkpoint, state))
        self._claim(checks.is_sound_zip(self._checkpoint))
        self._claim(checks.is_verified(self._checkpoint, self._config))
        self._head("Train on in this process: the run that is never interrupted")
        num_after = self._options.num_steps - num_before
        self._result.losses = training.train(num_after, self._loss_line())
        return fingerprint(training.state_dict())

    def _resume(self, final: str) -> None:
        """Train on in a new process, which has only the file, and compare."""
        self._head("Throw this state away; a new process loads the file and trains on")
        order = Order(self._checkpoint, self._text, self._options, self._config)
        try:
            resumed = self._result.resumed = run_in_child(order)
        except ResumeError as error:
            self._claim(Claim("resume", False, str(error)))
            return
        self._say(f"process {resumed.pid} began after step {resumed.first_step}")
        self._say(f"{'step':>6}  {'never interrupted':<22}  {'resumed':<22}")
        losses = self._result.losses
        pairs = list(zip(losses, resumed.losses, strict=False))
        for n, (a, b) in enumerate(pairs, start=resumed.first_step + 1):
            if a != b or n > self._options.num_steps - _LINES_OF_LOSS:
                mark = "=" if a == b else "DIFFERENT"
                self._say(f"{n:>6}  {a.hex():<22}  {b.hex():<22}  {mark}")
        same = sum(a.hex() == b.hex() for a, b in pairs)
        self._claim(
            Claim(
                "losses",
                tuple(losses) == resumed.losses,
                f"{same} of {len(losses)} losses are equal to the last bit",
            )
        )
        is_same_end = resumed.fingerprint == final
        how = "equal to the last bit" if is_same_end else "DIFFERENT"
        self._claim(
            Claim("final_state", is_same_end, f"model, optimizer and RNG at the end: {how}")
        )

    def _flip(self) -> None:
        self._head("Flip one bit in a copy")
        copy = self._directory / "flipped.pt"
        shutil.copyfile(self._checkpoint, copy)
        for claim in checks.flip_is_caught(copy, self._config):
            self._claim(claim)
        copy.unlink()

    def _measure(self) -> None:
        self._head("Time it beside torch: same state, same directory, median of 3, in turn")
        state = gdsckpt.load(self._checkpoint, config=self._config)
        self._result.timings = measure(state, self._directory, self._config)
        self._say(f"{'':<24}{'bytes':>14}  {'time':>9}  {'rate':>10}")
        for timing in self._result.timings:
            self._say(
                f"{timing.what:<24}{timing.nbytes:>14,}  {format_duration(timing.seconds):>9}  "
                f"{format_rate(timing.bytes_per_s):>10}"
            )
        self._say("saves end with the bytes on the drive; the page cache is dropped before loads")

    def _head(self, text: str) -> None:
        self._say("")
        self._say(f"== {text}")

    def _claim(self, claim: Claim) -> None:
        self._result.claims.append(claim)
        self._say(f"{'ok  ' if claim.ok else 'FAIL'}  {claim.evidence}")

    def _loss_line(self) -> Callable[[int, float], None]:
        """Say a loss now and then."""
        every = max(1, self._options.num_steps // 2 // _LINES_OF_LOSS)
        started = time.perf_counter()

        def on_step(num_done: int, loss: float) -> None:
            if num_done % every == 0:
                seconds = format_duration(time.perf_counter() - started)
                self._say(f"step {num_done:>5}  loss {loss:.4f}  {seconds}")

        return on_step
