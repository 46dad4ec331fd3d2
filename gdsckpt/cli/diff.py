"""Compare two checkpoints: which tensors were added, removed or changed, and by how much.

Tensors are equal when all their bits are. Two files of gdsckpt are compared by length and CRC-32 of
each tensor first, and only what differs is read; --full reads all. Checkpoints of several ranks are
compared rank by rank. Exit code: 0 same, 1 different.
"""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from gdsckpt.cli import output
from gdsckpt.cli.exits import Exit
from gdsckpt.cli.steps import steps_in
from gdsckpt.errors import ConfigError
from gdsckpt.staging import manifests

if TYPE_CHECKING:
    from gdsckpt.loading.comparing import CompareOptions, Comparison


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("a", metavar="A", help="file or checkpoint directory")
    parser.add_argument("b", metavar="B", help="the one to compare it with")
    parser.add_argument(
        "--full", action="store_true", help="read also tensors whose length and CRC-32 agree"
    )
    parser.add_argument(
        "--run-pickles",
        action="store_true",
        help="load objects of any class, which runs code of the files: only for those you trust",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """Compare and print."""
    from gdsckpt.loading.comparing import CompareOptions, compare

    options = CompareOptions(
        arguments.config, weights_only=not arguments.run_pickles, full=arguments.full
    )
    with contextlib.ExitStack() as stack:
        a, b = (_shards_of(text, stack) for text in (arguments.a, arguments.b))
        if a is not None and b is not None and max(len(a), len(b)) > 1:
            return _run_by_rank(arguments, options, (a, b))
        with output.progress_bar(f"diff {arguments.a} {arguments.b}") as progress:
            found = compare(arguments.a, arguments.b, options, progress=progress)
    if arguments.json:
        output.json_document(found.as_dict())
    else:
        _print(found)
    return Exit.OK if found.same else Exit.FINDING


def _shards_of(text: str, stack: contextlib.ExitStack) -> list[str] | None:
    """Give the shards of a checkpoint directory by rank; None for a file.

    Args:
        text: A path.
        stack: Keeps it from being pruned while it is open.

    Raises:
        CheckpointNotFoundError: It is a directory without a checkpoint.
        ConfigError: It is a root of steps.
    """
    if not Path(text).is_dir():
        return None
    steps = steps_in(text)
    if steps:
        raise ConfigError(
            f"{text} is a root of {len(steps)} steps. Name one, such as {steps[-1].path}.",
            field="path",
        )
    raw = stack.enter_context(manifests.being_read(text))
    shards = manifests.decode_manifest(text, raw).shards
    return [str(Path(text) / shard.name) for shard in shards]


def _run_by_rank(
    arguments: argparse.Namespace, options: CompareOptions, sides: tuple[list[str], list[str]]
) -> int:
    """Compare shards of the same rank; ranks that only one side has are named."""
    from gdsckpt.loading.comparing import compare

    found: list[Comparison] = []
    for rank, (a, b) in enumerate(zip(*sides, strict=False)):
        with output.progress_bar(f"diff rank {rank}") as progress:
            found.append(compare(a, b, options, progress=progress))
    num_ranks = tuple(map(len, sides))
    removed, added = (list(range(len(found), num)) for num in num_ranks)
    same = num_ranks[0] == num_ranks[1] and all(each.same for each in found)
    if arguments.json:
        compared = [{"rank": rank, **each.as_dict()} for rank, each in enumerate(found)]
        document = {"same": same, "a": arguments.a, "b": arguments.b, "ranks": compared}
        output.json_document({**document, "removed_ranks": removed, "added_ranks": added})
        return Exit.OK if same else Exit.FINDING
    for rank, each in enumerate(found):
        output.line(f"rank {rank}")
        _print(each)
    for text, side, ranks in (("removed", arguments.a, removed), ("added", arguments.b, added)):
        if ranks:
            output.line(f"{text} ranks {ranks[0]} to {ranks[-1]}: only {side} has them")
    return Exit.OK if same else Exit.FINDING


def _print(found: Comparison) -> None:
    for name in found.removed:
        output.line(f"removed   {name}")
    for name in found.added:
        output.line(f"added     {name}")
    for tensor in found.reshaped:
        output.line(f"reshaped  {tensor.name}: {tensor.a} -> {tensor.b}")
    for value in found.others:
        output.line(f"value     {value.name}: {_or_absent(value.a)} -> {_or_absent(value.b)}")
    if found.changed:
        output.table(
            ("changed tensor", "elements", "differ", "max abs", "rel L2", "not finite"),
            (
                (
                    change.name,
                    _number(change.numel),
                    _number(change.num_differing),
                    _number(change.max_abs),
                    _number(change.relative_l2),
                    str(change.num_not_finite),
                )
                for change in found.changed
            ),
            right=(1, 2, 3, 4, 5),
        )
    not_read = f" ({found.num_skipped} by length and CRC-32)" if found.num_skipped else ""
    output.line(
        f"{'same' if found.same else 'different'}: {found.num_equal} tensors equal{not_read}, "
        f"{len(found.changed)} changed, {len(found.reshaped)} reshaped, {len(found.added)} added, "
        f"{len(found.removed)} removed; {len(found.others)} other values differ"
    )


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return str(value) if isinstance(value, int) else f"{value:.3g}"


def _or_absent(text: str | None) -> str:
    return "absent" if text is None else text
