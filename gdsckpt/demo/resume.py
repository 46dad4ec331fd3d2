"""The second process of the demo: it has nothing but a file or an object, and trains on from it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import gdsckpt
from gdsckpt.config import Config
from gdsckpt.demo.model import Shape
from gdsckpt.demo.training import RunOptions, Training, deterministic, fingerprint

# The package of the parent is taken, wherever the parent found it; nothing else changes.
_START = """
import sys
sys.path.insert(0, sys.argv[1])
import gdsckpt
del sys.path[0]
from gdsckpt.demo.resume import main
main()
"""


@dataclass(frozen=True, slots=True)
class Order:
    """What the second process is told.

    Attributes:
        checkpoint: The saved file, or the URL of the object.
        text: File with the text to train on.
        options: Of the run.
        config: Settings.
    """

    checkpoint: Path | str
    text: Path
    options: RunOptions
    config: Config


@dataclass(frozen=True, slots=True)
class Resumed:
    """What the second process reports.

    Attributes:
        pid: Its process id.
        first_step: Steps that were saved.
        losses: Of the steps after.
        fingerprint: Of the state at the end.
    """

    pid: int
    first_step: int
    losses: tuple[float, ...]
    fingerprint: str


class ResumeError(RuntimeError):
    """The second process failed; the text says how."""


def run_in_child(order: Order) -> Resumed:
    """Start a new process that loads the checkpoint and trains on to the end of the run.

    Raises:
        ResumeError: It failed.
    """
    document = {
        "checkpoint": str(order.checkpoint),
        "text": str(order.text),
        "options": asdict(order.options),
        "config": asdict(order.config),
    }
    root = Path(gdsckpt.__file__).resolve().parents[1]
    done = subprocess.run(
        [sys.executable, "-c", _START, str(root)],
        input=json.dumps(document),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise ResumeError(f"the new process ended with status {done.returncode}: {last}")
    result: dict[str, Any] = json.loads(done.stdout)
    losses = tuple(float.fromhex(text) for text in result["losses"])
    return Resumed(result["pid"], result["first_step"], losses, result["fingerprint"])


def main() -> None:
    """Read the order from stdin, train on, report to stdout."""
    document = json.load(sys.stdin)
    shape = Shape(**document["options"].pop("shape"))
    options = RunOptions(shape, **document["options"])
    config = Config(**document["config"])
    with deterministic(options.threads):
        training = Training(options, Path(document["text"]).read_bytes())
        training.load_state_dict(gdsckpt.load(document["checkpoint"], config=config))
        first_step = training.num_done
        losses = training.train(options.num_steps - first_step)
        json.dump(
            {
                "pid": os.getpid(),
                "first_step": first_step,
                "losses": [loss.hex() for loss in losses],
                "fingerprint": fingerprint(training.state_dict()),
            },
            sys.stdout,
        )
