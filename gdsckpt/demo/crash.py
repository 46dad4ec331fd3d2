"""The part of the demo that kills a training in the middle of a save, and goes on from its root."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import gdsckpt
from gdsckpt.demo.checks import Claim
from gdsckpt.demo.resume import Order, ResumeError, read_order, run_in_child, run_module
from gdsckpt.demo.story import Story
from gdsckpt.demo.training import Training, deterministic
from gdsckpt.units import format_duration

ROOT_NAME = "run"


def show(story: Story, order: Order, losses: Sequence[float], final: str) -> None:
    """Kill a training that saves after each step, and let another process go on.

    Args:
        story: Told all of it.
        order: Where the training begins: at the file that was saved.
        losses: Of the run that was never interrupted, from there on.
        final: Fingerprint of its end.
    """
    story.head("Save behind the training after each step, and kill it in the middle of a save")
    done = run_module(__name__, order)
    saves = [json.loads(line) for line in done.stdout.splitlines()]
    was_killed = done.returncode == -signal.SIGKILL
    said = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
    story.claim(
        Claim(
            "killed",
            was_killed,
            f"SIGKILL in the middle of a save, after {len(saves)} that were committed"
            if was_killed
            else f"the process ended with status {done.returncode}: {said}",
        )
    )
    if not was_killed:
        return
    if saves:
        stalls = sorted(save["stall_s"] for save in saves)
        story.say(
            f"each kept the training for {format_duration(stalls[0])} to "
            f"{format_duration(stalls[-1])}, with nothing copied but what is small"
        )
    story.head("A new process finds the newest complete step and trains on")
    root = root_of(order)
    try:
        resumed = run_in_child(dataclasses.replace(order, checkpoint=root))
    except ResumeError as error:
        story.claim(Claim("crash_losses", False, str(error)))
        return
    num_done = order.options.num_steps - len(losses)
    rest = losses[max(0, resumed.first_step - num_done) :]
    story.compare_losses("crash_losses", rest, resumed, num_lines=0)
    story.compare_ends("crash_state", final, resumed)


def root_of(order: Order) -> Path:
    """Give the root that the killed training saves into."""
    return Path(order.checkpoint).with_name(ROOT_NAME)


def main() -> None:
    """Train on from the file, save after each step, and be killed while the last one is saved."""
    order = read_order()
    with deterministic(order.options.threads):
        training = Training(order.options, order.text.read_bytes())
        training.load_state_dict(gdsckpt.load(order.checkpoint, config=order.config))
        checkpointer = gdsckpt.Checkpointer(root_of(order), keep_local=2, config=order.config)
        last = max(training.num_done + 1, order.options.num_steps - 1)
        handle = _save(checkpointer, training)
        while training.num_done < last:
            training.train(1)
            report = handle.committed.result()
            sys.stdout.write(json.dumps({"step": report.step, "stall_s": report.stall_s}) + "\n")
            sys.stdout.flush()
            handle = _save(checkpointer, training)
        os.kill(os.getpid(), signal.SIGKILL)


def _save(checkpointer: gdsckpt.Checkpointer, training: Training) -> gdsckpt.SaveHandle:
    return checkpointer.async_save(training.num_done, training.state_dict(), training.optimizer)
