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
from gdsckpt.demo import bucket as buckets
from gdsckpt.demo import checks, crash
from gdsckpt.demo.bucket import Bucket
from gdsckpt.demo.checks import Claim
from gdsckpt.demo.data import find_text
from gdsckpt.demo.model import Shape, shape_for
from gdsckpt.demo.resume import Order, Resumed, ResumeError, run_in_child
from gdsckpt.demo.roundtrip import Roundtrip, RoundtripResult
from gdsckpt.demo.speed import Timing, measure, measure_bucket
from gdsckpt.demo.story import LINES_OF_LOSS, Say, Story
from gdsckpt.demo.training import RunOptions, Training, deterministic, fingerprint
from gdsckpt.engine import mounts
from gdsckpt.errors import ConfigError, storage_error_from
from gdsckpt.report import SaveReport
from gdsckpt.units import format_bytes, format_duration, format_rate

DIRECTORY_PREFIX = "gdsckpt-demo-"
PARAMS_MIN = Shape(1, 32).num_parameters
STEPS_MIN = 2
_SEED = 1234


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """What to show.

    Attributes:
        num_parameters: Size of the model.
        num_steps: Steps of the whole run; the save comes after half of them.
        directory: Where the demo's own directory is made; None takes ``$TMPDIR`` or the current
            directory.
        keep: Leave the files, and the objects in a bucket of the user's.
        config: Settings of gdsckpt.
        store: ``s3://BUCKET/PREFIX`` to go to and back; empty starts a server for that.
        use_store: Whether to go to a bucket at all.
    """

    num_parameters: int
    num_steps: int
    directory: Path | None
    keep: bool
    config: Config
    store: str = ""
    use_store: bool = True


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
        roundtrip: What came of the way to a bucket and back; None where it was left out.
        left_out: Why it was; empty where it was not.
    """

    directory: str
    num_parameters: int = 0
    claims: list[Claim] = field(default_factory=list)
    save: SaveReport | None = None
    losses: list[float] = field(default_factory=list)
    resumed: Resumed | None = None
    timings: list[Timing] = field(default_factory=list)
    roundtrip: RoundtripResult | None = None
    left_out: str = ""

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
            "store": self.roundtrip.as_dict() if self.roundtrip else None,
            "left_out": self.left_out,
        }


def run(options: DemoOptions, say: Say) -> DemoResult:
    """Run the demo.

    Args:
        options: What to show.
        say: Gets the story, line by line.

    Raises:
        ConfigError: The model would be too small, there are too few steps, or the bucket's URL is
            none.
        StorageError: A file could not be written.
        StoreError: The bucket failed.
        ServerError: No server could be started.
    """
    _check(options)
    with _directory(options) as directory:
        run_options = RunOptions(
            shape_for(options.num_parameters), options.num_steps, _SEED, torch.get_num_threads()
        )
        demo = _Demo(options, run_options, directory, say)
        with deterministic(run_options.threads), _bucket(options, directory, say) as bucket:
            demo.show(bucket)
        return demo.summed_up(bucket)


def _check(options: DemoOptions) -> None:
    """Refuse wrong options before anything is written."""
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
    if options.store:
        buckets.check_url(options.store)


def _bucket(
    options: DemoOptions, directory: Path, say: Say
) -> contextlib.AbstractContextManager[Bucket | None]:
    """Open the bucket before the training, so that one that fails does so at once."""
    if _why_left_out(options):
        return contextlib.nullcontext()
    if options.store:
        return buckets.given(options.store, options.config, keep=options.keep, say=say)
    return buckets.embedded(directory, options.config)


def _why_left_out(options: DemoOptions) -> str:
    if not options.use_store:
        return "--no-store was given."
    return "" if options.store else buckets.why_not_embedded()


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
        self._checkpoint = directory / "checkpoint.pt"
        self._text = directory / "text"
        self._result = DemoResult(
            str(directory), run_options.shape.num_parameters, left_out=_why_left_out(options)
        )
        self._story = Story(say, self._result.claims)

    def show(self, bucket: Bucket | None) -> None:
        """Go through all steps; those of the bucket only where there is one."""
        final = self._train_and_save()
        order = Order(self._checkpoint, self._text, self._options, self._config)
        self._resume(order, final)
        crash.show(self._story, order, self._result.losses, final)
        self._flip()
        if bucket is None:
            self._story.head("Left out: to a bucket and back")
            self._story.say(self._result.left_out)
        else:
            url = bucket.url_of(self._checkpoint.name)
            self._result.roundtrip = RoundtripResult(url, bucket.description)
            trip = Roundtrip(self._story, bucket, order, self._result.roundtrip)
            trip.run(self._result.losses, final)
        self._measure(bucket)

    def summed_up(self, bucket: Bucket | None) -> DemoResult:
        """Look what is left of the bucket, and say how many claims hold."""
        story, result = self._story, self._result
        story.say("")
        if bucket is not None and bucket.gone is not None:
            story.claim(bucket.gone())
        failed = [claim.name for claim in result.claims if not claim.ok]
        left_out = " Left out: the bucket." if bucket is None else ""
        if failed:
            story.say(f"FAILED: {', '.join(failed)}.{left_out}")
        else:
            story.say(f"All {len(result.claims)} claims hold.{left_out}")
        if self._keep:
            story.say(f"The files are in {self._directory}")
        if self._keep and bucket is not None and bucket.gone is None:
            story.say(f"The objects are below {bucket.url}/")
        return result

    def _train_and_save(self) -> str:
        """Do the run that is never interrupted; gives the fingerprint of its end."""
        text, shape = find_text(), self._options.shape
        self._text.write_bytes(text)
        self._story.head("Train a small GPT")
        self._story.say(
            f"{shape.num_parameters:,} parameters: {shape.num_layers} layers, width {shape.width}, "
            f"{shape.num_heads} heads, tied output layer, dropout; AdamW, warm-up and cosine"
        )
        self._story.say(
            f"{format_bytes(len(text))} of text, byte by byte; {self._options.threads} threads of "
            f"torch {torch.__version__}"
        )
        training = Training(self._options, text)
        num_before = self._options.num_steps // 2
        training.train(num_before, self._loss_line())
        self._story.head(
            f"Save after step {num_before}: model, optimizer, schedule, RNG, data position"
        )
        state = training.state_dict()
        report = self._result.save = gdsckpt.save(state, self._checkpoint, config=self._config)
        self._story.say(f"{report}")
        _, file_system = mounts.file_system_name(self._directory)
        self._story.say(f"on {file_system}, durable: file and directory are synced")
        self._story.head("Open it without gdsckpt")
        self._story.claim(checks.stock_torch_opens(self._checkpoint, state))
        self._story.claim(checks.is_sound_zip(self._checkpoint))
        self._story.claim(checks.is_verified(self._checkpoint, self._config))
        self._story.head("Train on in this process: the run that is never interrupted")
        num_after = self._options.num_steps - num_before
        self._result.losses = training.train(num_after, self._loss_line())
        return fingerprint(training.state_dict())

    def _resume(self, order: Order, final: str) -> None:
        """Train on in a new process, which has only the file, and compare."""
        self._story.head("Throw this state away; a new process loads the file and trains on")
        try:
            resumed = self._result.resumed = run_in_child(order)
        except ResumeError as error:
            self._story.claim(Claim("resume", False, str(error)))
            return
        self._story.compare_losses("losses", self._result.losses, resumed, num_lines=LINES_OF_LOSS)
        self._story.compare_ends("final_state", final, resumed)

    def _flip(self) -> None:
        self._story.head("Flip one bit in a copy")
        copy = self._directory / "flipped.pt"
        shutil.copyfile(self._checkpoint, copy)
        for claim in checks.damage_is_caught(copy, checks.flip(copy), self._config, "flip"):
            self._story.claim(claim)
        copy.unlink()

    def _measure(self, bucket: Bucket | None) -> None:
        story = self._story
        story.head("Time it beside torch: same state, same directory, median of 3, in turn")
        state = gdsckpt.load(self._checkpoint, config=self._config)
        self._result.timings = measure(state, self._directory, self._config)
        del state
        if bucket is not None:
            self._result.timings += measure_bucket(self._checkpoint, self._directory, bucket)
        story.say(f"{'':<24}{'bytes':>14}  {'time':>9}  {'rate':>10}")
        for timing in self._result.timings:
            story.say(
                f"{timing.what:<24}{timing.nbytes:>14,}  {format_duration(timing.seconds):>9}  "
                f"{format_rate(timing.bytes_per_s):>10}"
            )
        story.say(
            "saves and fetches end with the bytes on the drive; the page cache is dropped before"
        )
        story.say("loads and uploads")

    def _loss_line(self) -> Callable[[int, float], None]:
        """Say a loss now and then."""
        every = max(1, self._options.num_steps // 2 // LINES_OF_LOSS)
        started = time.perf_counter()

        def on_step(num_done: int, loss: float) -> None:
            if num_done % every == 0:
                seconds = format_duration(time.perf_counter() - started)
                self._story.say(f"step {num_done:>5}  loss {loss:.4f}  {seconds}")

        return on_step
