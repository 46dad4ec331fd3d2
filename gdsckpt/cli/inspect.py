"""Show what a file or checkpoint directory holds: its format and its tensors, no values.

Of the root of a Checkpointer, the newest complete step is shown.
"""

from __future__ import annotations

import argparse
from typing import Any

from gdsckpt.cli import output, urls
from gdsckpt.cli.exits import Exit
from gdsckpt.cli.facts import CheckpointFacts, FileFacts, read_facts
from gdsckpt.cli.steps import newest_in
from gdsckpt.units import format_binary_bytes, format_bytes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "path",
        metavar="PATH",
        help="file, checkpoint directory or root of steps; or an URL of the first two",
    )
    urls.add_endpoint(parser)
    parser.add_argument(
        "--tensors",
        metavar="PREFIX",
        default="",
        help="only tensors whose name begins with these components, such as model.layers.0",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """Print the facts."""
    newest = newest_in(arguments.path)
    path = arguments.path if newest is None else str(newest.path)
    if newest is not None:
        output.note(f"{arguments.path} is a root of steps; this is the newest that is complete")
    facts = read_facts(path, prefix=arguments.tensors, config=arguments.config)
    if arguments.json:
        output.json_document(facts.as_dict())
        return Exit.OK
    if facts.manifest is not None:
        _print_manifest(facts)
    for number, file in enumerate(facts.files):
        if number or facts.manifest is not None:
            output.line()
        _print_file(file)
    return Exit.OK


def _print_manifest(facts: CheckpointFacts) -> None:
    manifest: dict[str, Any] = facts.manifest or {}
    output.line(f"checkpoint  {facts.path}")
    for name in ("step", "attempt", "world_size", "created_by", "wall_time", "engine"):
        output.line(f"{name:<11} {manifest[name]}")
    if manifest["sequence"]:
        output.line(f"{'sequence':<11} {manifest['sequence']}")
    if manifest["metric"] is not None:
        output.line(f"{'metric':<11} {manifest['metric']}")
    for reason in manifest["engine_reasons"]:
        output.line(f"{'':<11} {reason}")


def _print_file(file: FileFacts) -> None:
    output.line(f"file        {file.path}")
    output.line(f"kind        {file.kind}")
    output.line(f"bytes       {file.nbytes} ({format_bytes(file.nbytes)})")
    if file.format_version is not None:
        output.line(f"format      {file.format_version}")
    if file.chunk_bytes is not None:
        output.line(f"chunks      {file.num_chunks} of {format_binary_bytes(file.chunk_bytes)}")
    if file.engine is not None:
        output.line(f"engine      {file.engine}")
    output.line(f"records     {len(file.records)}")
    for alignment, number in sorted(file.alignments.items(), reverse=True):
        output.line(f"alignment   {format_binary_bytes(alignment)}: {number} payloads")
    if file.tensors is None:
        rows = [(r.name, str(r.nbytes), str(r.file_offset), f"{r.crc32:08x}") for r in file.records]
        output.line()
        output.table(("record", "bytes", "offset", "crc32"), rows, right=(1, 2))
        return
    output.line(f"tensors     {len(file.tensors)}")
    output.line()
    output.table(
        ("tensor", "dtype", "shape", "bytes", "offset"),
        (
            (
                t.name,
                t.dtype,
                "x".join(map(str, t.shape)) or "scalar",
                "-" if t.nbytes is None else str(t.nbytes),
                "-" if t.file_offset is None else str(t.file_offset),
            )
            for t in file.tensors
        ),
        right=(3, 4),
    )
