"""A new process of the demo: it has a file, an object or a root, and trains on from that."""

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
import importlib, sys
sys.path.insert(0, sys.argv[1])
import gdsckpt
del sys.path[0]
importlib.import_module(sys.argv[2]).main()
"""


@dataclass(frozen=True, slots=True)
class Order:
    """What the second process is told.

    Attributes:
        checkpoint: The saved file, the URL of the object, or the root of a Checkpointer.
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
    done = run_module(__name__, order)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise ResumeError(f"the new process ended with status {done.returncode}: {last}")
    result: dict[str, Any] = json.loads(done.stdout)
    losses = tuple(float.fromhex(text) for text in result["losses"])
    return Resumed(result["pid"], result["first_step"], losses, result["fingerprint"])


def run_module(module: str, order: Order) -> subprocess.CompletedProcess[str]:
    """Run ``main`` of a module in a new process, with the order on its standard input."""
    document = {
        "checkpoint": str(order.checkpoint),
        "text": str(order.text),
        "options": asdict(order.options),
        "config": asdict(order.config),
    }
    root = Path(gdsckpt.__file__).resolve().parents[1]
    return subprocess.run(
        [sys.executable, "-c", _START, str(root), module],
        input=json.dumps(document),
        capture_output=True,
        text=True,
        check=False,
    )


def read_order() -> Order:
    """Read what :func:`run_module` wrote to this process."""
    document = json.load(sys.stdin)
    shape = Shape(**document["options"].pop("shape"))
    return Order(
        document["checkpoint"],
        Path(document["text"]),
        RunOptions(shape, **document["options"]),
        Config(**document["config"]),
    )


def _load(order: Order) -> Any:
    """Load a file or an object; of a root the newest step."""
    if not Path(order.checkpoint).is_dir():
        return gdsckpt.load(order.checkpoint, config=order.config)
    with gdsckpt.Checkpointer(order.checkpoint, config=order.config) as checkpointer:
        return checkpointer.load()


def main() -> None:
    """Read the order from stdin, train on, report to stdout."""
    order = read_order()
    with deterministic(order.options.threads):
        training = Training(order.options, order.text.read_bytes())
        training.load_state_dict(_load(order))
        first_step = training.num_done
        losses = training.train(order.options.num_steps - first_step)
        json.dump(
            {
                "pid": os.getpid(),
                "first_step": first_step,
                "losses": [loss.hex() for loss in losses],
                "fingerprint": fingerprint(training.state_dict()),
            },
            sys.stdout,
        )
