"""Delete steps of the root of a Checkpointer that the rules given do not keep.

A step stays when any rule keeps it; the newest complete one, and one that is being read, always
stay. The root must not be in use. Steps of branches that training left are set aside first.
"""

from __future__ import annotations

import argparse
from collections.abc import Container, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gdsckpt import retention
from gdsckpt.cli import output
from gdsckpt.cli.exits import Exit
from gdsckpt.errors import CheckpointNotFoundError, ConfigError
from gdsckpt.retention import BEST, Policy
from gdsckpt.staging import pruning, quarantine
from gdsckpt.staging import root as roots
from gdsckpt.staging.root import StepEntry
from gdsckpt.staging.root_lock import RootLock
from gdsckpt.units import format_bytes

_DONE = {"delete": "deleted", "set aside": "set aside", "keep": "kept"}


@dataclass(frozen=True, slots=True)
class Action:
    """What becomes of one step.

    Attributes:
        path: The step, or what is set aside.
        step: The step.
        action: ``keep``, ``delete`` or ``set aside``.
        why: Why.
        nbytes: Bytes of its files.
    """

    path: str
    step: int
    action: str
    why: str
    nbytes: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("root", metavar="ROOT", help="directory of steps")
    parser.add_argument(
        "--keep-local", type=int, metavar="N", help="keep the N newest steps, at least 1"
    )
    parser.add_argument(
        "--keep-every", type=int, metavar="K", help="keep the steps that are multiples of K"
    )
    parser.add_argument(
        "--keep-best", type=int, metavar="N", default=0, help="keep the N with the best metric"
    )
    parser.add_argument(
        "--metric", choices=BEST, default=BEST[0], help="which metric is the best (default: min)"
    )
    parser.add_argument(
        "--quarantine",
        action="store_true",
        help="delete what was set aside too: torn, damaged and superseded steps",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="change nothing, print what would be done and why"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """Decide, do it unless it is a dry run, and print."""
    root = Path(arguments.root)
    try:
        policy = _policy(arguments)
    except ConfigError as exc:
        output.error(output.error_text(exc))
        return Exit.USAGE
    _require_root(root)
    if arguments.dry_run:
        done = _planned(root, policy, is_quarantine=arguments.quarantine)
    else:
        with RootLock.acquire(root):
            done = _carried_out(root, policy, is_quarantine=arguments.quarantine)
    if arguments.json:
        output.json_document(_document(done, is_dry_run=arguments.dry_run))
    else:
        _print(done, is_dry_run=arguments.dry_run)
    return Exit.OK


def _policy(arguments: argparse.Namespace) -> Policy | None:
    """Give the rules; None where only what is set aside goes.

    Raises:
        ConfigError: No rule was given, or one is out of its bounds.
    """
    others = arguments.keep_every is not None or arguments.keep_best
    if arguments.keep_local is None and (others or not arguments.quarantine):
        raise ConfigError(
            "nothing says which steps stay. Give --keep-local N, the number of newest ones.",
            field="keep_local",
        )
    if arguments.keep_local is None:
        return None
    return Policy(
        keep_local=arguments.keep_local,
        keep_every=arguments.keep_every,
        keep_best=arguments.keep_best,
        best=arguments.metric,
    )


def _require_root(root: Path) -> None:
    """Refuse a directory that no Checkpointer saved into: taking the lock would change it.

    Raises:
        CheckpointNotFoundError: It has neither steps nor the private directory of a root.
    """
    if not roots.scan(root) and not roots.private_directory(root).is_dir():
        raise CheckpointNotFoundError(
            f"no steps in {root}: it is no root of a Checkpointer. Check the path.", path=root
        )


def _planned(root: Path, policy: Policy | None, *, is_quarantine: bool) -> list[Action]:
    entries = roots.scan(root)
    planned = []
    for entry in entries:
        if policy is not None and entry.state == roots.SUPERSEDED:
            planned.append(_action(entry, "set aside", entry.reason))
        elif entry.state != roots.COMPLETE:
            planned.append(_action(entry, "keep", f"{entry.state}: {entry.reason}"))
    planned.extend(_decided(entries, policy))
    if is_quarantine:
        planned.extend(_of_quarantine(root))
    return sorted(planned, key=lambda each: each.step)


def _decided(entries: Sequence[StepEntry], policy: Policy | None) -> list[Action]:
    """Decide on the complete steps."""
    complete = {entry.step: entry for entry in roots.complete(entries)}
    if policy is None:
        return [_action(entry, "keep", "no rule was given") for entry in complete.values()]
    return [
        _action(complete[each.step], "keep" if each.is_kept else "delete", each.why)
        for each in retention.decide(retention.metrics_of(entries), policy)
    ]


def _of_quarantine(root: Path) -> list[Action]:
    return [
        Action(str(entry.path), entry.step, "delete", f"set aside as {entry.kind}", entry.nbytes)
        for entry in quarantine.entries(root)
    ]


def _carried_out(root: Path, policy: Policy | None, *, is_quarantine: bool) -> list[Action]:
    """Do what is planned; gives what was done, which may be less where steps are being read."""
    pruning.delete_pruned(root)
    planned = _planned(root, policy, is_quarantine=is_quarantine)
    if policy is not None:
        # Before their successors go, without which they would count as complete.
        quarantine.set_aside_superseded(root)
    needed = retention.superseding(roots.scan(root))
    return [_done(root, each, needed) for each in planned]


def _done(root: Path, planned: Action, needed: Container[int]) -> Action:
    path = Path(planned.path)
    if planned.action == "keep":
        return planned
    if path.parent == root and planned.action == "delete" and planned.step in needed:
        why = "a superseded step after it is in use"
        return Action(planned.path, planned.step, "keep", why, planned.nbytes)
    if planned.action == "set aside" or not path.exists():
        is_done = not path.exists()
    elif path.parent == root:
        is_done = pruning.prune(root, path)
    else:
        pruning.discard(root, path)
        is_done = True
    if is_done:
        return planned
    return Action(planned.path, planned.step, "keep", "it is in use", planned.nbytes)


def _action(entry: StepEntry, action: str, why: str) -> Action:
    return Action(str(entry.path), entry.step, action, why, entry.nbytes)


def _document(actions: list[Action], *, is_dry_run: bool) -> dict[str, Any]:
    return {
        "dry_run": is_dry_run,
        "freed_bytes": _freed_bytes(actions),
        "steps": [asdict(each) for each in actions],
    }


def _freed_bytes(actions: list[Action]) -> int:
    return sum(each.nbytes for each in actions if each.action == "delete")


def _print(actions: list[Action], *, is_dry_run: bool) -> None:
    output.table(
        ("step", "bytes", "action", "why", "path"),
        (
            (
                str(each.step),
                format_bytes(each.nbytes),
                each.action if is_dry_run else _DONE[each.action],
                each.why,
                each.path,
            )
            for each in actions
        ),
        right=(0, 1),
    )
    verb = "would be freed" if is_dry_run else "freed"
    output.line(f"{format_bytes(_freed_bytes(actions))} {verb}")
