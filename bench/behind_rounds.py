"""What is measured of saves behind a training: its stall, its steps, and many small tensors."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from bench import behind, fio, measure
from bench.behind import Behind, Pending
from bench.fio import FioOptions, ThrottledWrite
from bench.training import TENSORS_PER_PARAMETER, Equal, Training, checksums

NOTHING = "nothing"
FIO = "fio at the rate of gdsckpt"

SMALL_NUMEL = 1024
NUM_FEW = 4


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure, and how large.

    Attributes:
        directory: Where the files go; only files of the benchmark are in it.
        state_bytes: Weights and moments, about.
        num_tokens: Length of the sequence of a training step.
        rounds: How often each way is measured.
        num_saves: Saves of each way in a round, while steps are timed.
        num_small: Number of small tensors.
        fio: How fio is asked.
    """

    directory: Path
    state_bytes: int
    num_tokens: int
    rounds: int
    num_saves: int
    num_small: int
    fio: FioOptions


@dataclass(frozen=True, slots=True)
class Stall:
    """One save.

    Attributes:
        call_s: Seconds for which the call kept the training.
        wait_s: Seconds that the next step of the optimizer waited.
    """

    call_s: float
    wait_s: float


@dataclass(slots=True)
class Beside:
    """The steps that began and ended beside something, in one round.

    Attributes:
        step_s: Seconds of each, without waits for the save.
        forward_backward_s: Seconds of the parts before the optimizer, whose own may have no end
            beside it.
        bytes_per_s: What was written meanwhile, in each run.
    """

    step_s: list[float] = field(default_factory=list)
    forward_backward_s: list[float] = field(default_factory=list)
    bytes_per_s: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class SmallSave:
    """Saves of one round: many small tensors, and the same bytes in a few large ones.

    Attributes:
        call_s: Seconds for which the call kept the caller, with many.
        many_s: Seconds from the call to the commit, with many.
        few_s: The same, with few.
    """

    call_s: float
    many_s: float
    few_s: float


class Running(Protocol):
    """Something that writes behind the training."""

    def is_over(self) -> bool:
        """Tell whether it has written all."""

    def before_optimizer(self) -> None:
        """Wait until the tensors may change."""


def measure_stall(training: Training, plan: Plan) -> dict[str, list[Stall]]:
    """Measure what a save costs the training that makes it, a step before and steps after it."""
    stalls: dict[str, list[Stall]] = {}
    with ExitStack() as stack:
        ours = stack.enter_context(behind.ours(training, plan.directory / "stall"))
        others = stack.enter_context(behind.others(training, plan.directory))
        ways = [*ours, behind.plain_copy(training), *others]
        for way in ways:  # what is made once, such as slots, is not timed
            _stall_of(way, training, plan.directory)
        for turn in range(plan.rounds):
            for way in measure.rotated(ways, turn):
                found = _stall_of(way, training, plan.directory, is_checked=turn == 0)
                stalls.setdefault(way.name, []).append(found)
                _tell(turn, plan, way.name, f"call {found.call_s:.4f} s, wait {found.wait_s:.4f} s")
        for way in ways:
            way.tidy()
    return stalls


def _stall_of(
    way: Behind, training: Training, directory: Path, *, is_checked: bool = False
) -> Stall:
    nbytes = sum(tensor.nbytes for tensor in training.tensors())
    way.tidy()
    measure.sync_directory(directory)
    gc.collect()
    measure.trim_heap()
    measure.settle_memory(nbytes)
    training.step()
    expected = checksums(training.nest()) if is_checked and way.load else None
    started = time.perf_counter()
    pending = way.start()
    call_s = time.perf_counter() - started
    first = training.step(pending.before_optimizer)
    while not pending.is_over():
        training.step()
    pending.finish()
    if expected is not None and way.load is not None and checksums(way.load()) != expected:
        raise RuntimeError(f"{way.name} saved other bytes than there were at the call")
    return Stall(call_s, first.wait_s)


def measure_beside(training: Training, plan: Plan) -> dict[str, list[Beside]]:
    """Measure steps of the training while something is written.

    Where fio is missing, there is nothing to compare with, and it is left out.
    """
    found: dict[str, list[Beside]] = {}
    with ExitStack() as stack:
        ours = stack.enter_context(behind.ours(training, plan.directory / "beside"))
        others = stack.enter_context(behind.others(training, plan.directory))
        ways = {way.name: way for way in (*ours, *others)}
        names = [behind.HOST, behind.FENCE, behind.DCP, NOTHING]
        if fio.version() is not None:
            names.insert(1, FIO)
        _beside_saves(ways[behind.HOST], training, plan)
        for turn in range(plan.rounds):
            for name in measure.rotated(names, turn):
                if name == NOTHING:
                    beside = _alone(training, plan.num_saves)
                elif name == FIO:
                    beside = _beside_fio(training, plan, _rate(found[behind.HOST]))
                else:
                    beside = _beside_saves(ways[name], training, plan)
                found.setdefault(name, []).append(beside)
                _tell(turn, plan, name, _shown(beside))
        for way in ways.values():
            way.tidy()
    return found


def _rate(rounds: Sequence[Beside]) -> float:
    """Give the bytes per second of our last saves: the first round begins with them."""
    return statistics.median(rounds[-1].bytes_per_s)


def _alone(training: Training, num_saves: int) -> Beside:
    beside = Beside()
    for _ in range(3 * num_saves):
        times = training.step()
        beside.step_s.append(times.seconds)
        beside.forward_backward_s.append(times.forward_backward_s)
    return beside


def _beside_saves(way: Behind, training: Training, plan: Plan) -> Beside:
    beside = Beside()
    nbytes = sum(tensor.nbytes for tensor in training.tensors())
    for _ in range(plan.num_saves):
        way.tidy()
        measure.sync_directory(plan.directory)
        training.step()
        pending: Pending = way.start()
        began = time.perf_counter()
        _train_beside(pending, training, beside)
        pending.finish()
        beside.bytes_per_s.append(nbytes / (pending.ended_at - began))
    return beside


def _beside_fio(training: Training, plan: Plan, bytes_per_s: float) -> Beside:
    beside = Beside()
    path = plan.directory / "fio"
    nbytes = sum(tensor.nbytes for tensor in training.tensors())
    for _ in range(plan.num_saves):
        path.unlink(missing_ok=True)
        measure.sync_directory(plan.directory)
        training.step()
        writing = ThrottledWrite(path, nbytes // 4096 * 4096, bytes_per_s, plan.fio)
        writing.wait_until_begun()
        _train_beside(writing, training, beside)
        beside.bytes_per_s.append(writing.finish())
    path.unlink(missing_ok=True)
    return beside


def _train_beside(running: Running, training: Training, beside: Beside) -> None:
    """Train until it is over; steps count that it was there for from their beginning to the end."""
    is_there_until_optimizer = False

    def before_optimizer() -> None:
        nonlocal is_there_until_optimizer
        is_there_until_optimizer = not running.is_over()
        running.before_optimizer()

    while not running.is_over():
        times = training.step(before_optimizer)
        if is_there_until_optimizer:
            beside.forward_backward_s.append(times.forward_backward_s)
        if not running.is_over():
            beside.step_s.append(times.seconds)


def measure_small(plan: Plan) -> dict[str, list[SmallSave]]:
    """Measure saves of weights and moments in many small tensors, and in a few large ones.

    What the many cost more is what does not go by bytes: planning, guard, manifest, and extents.
    """
    num_parameters = plan.num_small // TENSORS_PER_PARAMETER
    many = Equal(num_parameters, SMALL_NUMEL)
    few = Equal(NUM_FEW, num_parameters * SMALL_NUMEL // NUM_FEW)
    saves: dict[str, list[SmallSave]] = {}
    with ExitStack() as stack:
        ways_of_many = stack.enter_context(behind.ours(many, plan.directory / "many"))
        ways_of_few = stack.enter_context(behind.ours(few, plan.directory / "few"))
        pairs = list(zip(ways_of_many, ways_of_few, strict=True))
        for pair in pairs:
            many.step()
            few.step()
            for way in pair:
                _commit_of(way, plan.directory)
        for turn in range(plan.rounds):
            for pair in measure.rotated(pairs, turn):
                many.step()
                few.step()
                call_s, many_s = _commit_of(pair[0], plan.directory)
                found = SmallSave(call_s, many_s, _commit_of(pair[1], plan.directory)[1])
                saves.setdefault(pair[0].name, []).append(found)
                shown = f"call {call_s:.3f} s, commit {many_s:.3f} s, few {found.few_s:.3f} s"
                _tell(turn, plan, pair[0].name, shown)
    return saves


def _commit_of(way: Behind, directory: Path) -> tuple[float, float]:
    """Save, and give the seconds of the call and those until the step was durable."""
    way.tidy()
    measure.sync_directory(directory)
    gc.collect()
    started = time.perf_counter()
    pending = way.start()
    call_s = time.perf_counter() - started
    pending.finish()
    return call_s, pending.ended_at - started


def _tell(turn: int, plan: Plan, name: str, shown: str) -> None:
    print(f"  round {turn + 1}/{plan.rounds}  {name:<40} {shown}", flush=True)


def _shown(beside: Beside) -> str:
    if not beside.step_s:
        return "no whole step"
    return f"{len(beside.step_s)} steps, median {statistics.median(beside.step_s):.4f} s"
