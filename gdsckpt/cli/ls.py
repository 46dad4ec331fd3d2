"""List checkpoints: files of gdsckpt and torch, checkpoint directories, leftovers of killed saves.

Of a directory, its files and the checkpoint directories in it are listed, nothing below those; of
the root of a Checkpointer also what was set aside, and who saves into it. An URL names an object,
or stands for the directory of all keys below it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from gdsckpt.cli import bucket_listing, listing, output, root_listing, urls
from gdsckpt.cli.exits import Exit, worst
from gdsckpt.cli.listing import Row
from gdsckpt.config import Config
from gdsckpt.errors import ConfigError, GdsckptError
from gdsckpt.staging import pruning
from gdsckpt.store import is_url
from gdsckpt.units import format_bytes, format_duration

_EXPLAINED = (
    listing.DAMAGED,
    listing.UNREADABLE,
    listing.NO_MANIFEST,
    listing.NO_CHECKPOINT,
    root_listing.SUPERSEDED,
    root_listing.SET_ASIDE,
)
"""States whose reason is printed; the others say it themselves."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "paths",
        nargs="*",
        default=["."],
        metavar="PATH",
        help="file or directory (default: .), or an URL",
    )
    urls.add_endpoint(parser)
    parser.add_argument(
        "--remove-leftovers",
        action="store_true",
        help="delete what saves left that were killed; never what a living process writes",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """List each path; one that cannot be looked at does not keep the others from it."""
    rows: list[Row] = []
    removed: list[Path] = []
    codes: list[Exit] = []
    for text in arguments.paths:
        try:
            if arguments.remove_leftovers:
                removed.extend(_remove_leftovers(text))
            rows.extend(_rows_of(text, arguments.config))
        except (GdsckptError, OSError) as exc:
            if arguments.debug:
                output.traceback(exc)
            output.error(output.error_text(exc))
            codes.append(Exit.FAILED)
    holders = _holders(arguments.paths)
    if arguments.json:
        output.json_document(
            {
                "entries": [row.as_dict() for row in rows],
                "removed": [str(path) for path in removed],
                "holders": holders,
            }
        )
        return worst(codes)
    for path in removed:
        output.line(f"removed {path}")
    if rows:
        _print(rows)
    elif not codes:
        output.note(f"no checkpoints in {', '.join(arguments.paths)}")
    for text, holder in holders.items():
        output.note(f"{text} is in use by {holder}")
    return worst(codes)


def _rows_of(text: str, config: Config) -> list[Row]:
    if is_url(text):
        return bucket_listing.rows_of(text, config)
    return root_listing.with_steps(Path(text), listing.rows_of(Path(text)))


def _holders(paths: list[str]) -> dict[str, str]:
    """Say who saves into which of the paths."""
    found = {text: root_listing.holder(Path(text)) for text in paths if not is_url(text)}
    return {text: holder for text, holder in found.items() if holder is not None}


def _remove_leftovers(text: str) -> list[Path]:
    if is_url(text):
        raise ConfigError(
            f"{text}: --remove-leftovers is for local directories only. Delete what is shown as "
            "leftover with the tools of the store.",
            field="remove_leftovers",
        )
    return [*listing.remove_leftovers(Path(text)), *pruning.delete_pruned(text)]


def _print(rows: list[Row]) -> None:
    output.table(
        ("name", "kind", "step", "ranks", "bytes", "tensors", "age", "engine", "state"),
        (
            (
                row.path,
                row.kind,
                _or_dash(row.step),
                _or_dash(row.num_ranks),
                "-" if row.nbytes is None else format_bytes(row.nbytes),
                _or_dash(row.num_tensors),
                "-" if row.age_s is None else format_duration(row.age_s),
                _or_dash(row.engine),
                row.state,
            )
            for row in rows
        ),
        right=(2, 3, 4, 5, 6),
    )
    for row in rows:
        if row.state in _EXPLAINED:
            output.line(f"{row.state}: {_reason(row)}")
    leftover = [row for row in rows if row.state == listing.LEFTOVER]
    if leftover:
        nbytes = sum(row.nbytes or 0 for row in leftover)
        output.note(
            f"{len(leftover)} leftovers of {format_bytes(nbytes)}; "
            "'gdsckpt ls --remove-leftovers' deletes them"
        )


def _reason(row: Row) -> str:
    """Give the reason of a row with its path, which that of a superseded step does not name."""
    return f"{row.path}: {row.reason}" if row.state == root_listing.SUPERSEDED else row.reason


def _or_dash(value: object) -> str:
    return "-" if value is None else str(value)
