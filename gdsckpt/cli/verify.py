"""Check every byte of files and checkpoint directories against their checksums.

Of the root of a Checkpointer, all its steps are checked but those into which no save was completed.
Exit code: 0 when all are whole, 1 when one is damaged, 3 when one has no checksums of gdsckpt,
4 when one could not be read; the largest problem counts (4, then 1, then 3).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gdsckpt.cli import output, urls
from gdsckpt.cli.exits import Exit, worst
from gdsckpt.cli.steps import steps_in
from gdsckpt.errors import GdsckptError
from gdsckpt.report import Damage, VerifyReport
from gdsckpt.staging import root as roots
from gdsckpt.units import format_bytes, format_duration, format_rate
from gdsckpt.verifying import verify

_EXIT_OF = {True: Exit.OK, False: Exit.FINDING, None: Exit.UNVERIFIABLE}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "paths",
        nargs="+",
        metavar="PATH",
        help="file, checkpoint directory or root of steps; or an URL of the first two",
    )
    urls.add_endpoint(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """Verify each path; one that cannot be read does not keep the others from it."""
    codes: list[Exit] = []
    reports: list[dict[str, Any]] = []
    errors: list[dict[str, str]] = []
    skipped: list[dict[str, str]] = []
    for path in _expanded(arguments.paths, skipped):
        started = time.perf_counter()
        try:
            with output.progress_bar(f"verify {path}") as progress:
                report = verify(path, config=arguments.config, progress=progress)
        except (GdsckptError, OSError) as exc:
            if path not in arguments.paths and not Path(path).exists():
                skipped.append({"path": path, "reason": "it was pruned meanwhile"})
                continue
            if arguments.debug:
                output.traceback(exc)
            output.error(output.error_text(exc))
            codes.append(Exit.FAILED)
            errors.append({"path": path, "error": type(exc).__name__, "message": str(exc)})
            continue
        seconds = time.perf_counter() - started
        codes.append(_EXIT_OF[report.ok])
        reports.append({**report.as_dict(), "seconds": seconds})
        if not arguments.json:
            _print(report, seconds)
    if arguments.json:
        ok = {Exit.OK: True, Exit.UNVERIFIABLE: None}.get(worst(codes), False)
        output.json_document({"ok": ok, "reports": reports, "errors": errors, "skipped": skipped})
    else:
        for step in skipped:
            output.note(f"skipped {step['path']}: {step['reason']}")
    return worst(codes)


def _expanded(paths: list[str], skipped: list[dict[str, str]]) -> Iterator[str]:
    """Give the paths, and in the place of each root its steps; notes those that have no save.

    A root without any step that can be checked stays itself, for which there is an error.
    """
    for text in paths:
        try:
            steps = steps_in(text)
        except (GdsckptError, OSError):
            steps = ()  # as when it is verified
        left = [step for step in steps if step.state in (roots.TORN, roots.FOREIGN)]
        skipped.extend({"path": str(step.path), "reason": step.reason} for step in left)
        yield from [str(step.path) for step in steps if step not in left] or [text]


def _print(report: VerifyReport, seconds: float) -> None:
    if report.ok:
        rate = format_rate(report.checked_bytes / seconds) if seconds else "-"
        what = f"shards: {len(report.shards)}, " if report.shards else ""
        output.line(
            f"{report.path}: ok, {what}{format_bytes(report.checked_bytes)} in "
            f"{report.num_chunks} chunks checked in {format_duration(seconds)} ({rate})"
        )
        return
    if report.ok is None:
        output.line(f"{report.path}: not verifiable: {report.reason}")
        return
    places = "1 damaged place" if len(report.damaged) == 1 else f"{len(report.damaged)} places"
    output.line(f"{report.path}: DAMAGED, {places}. Use another copy.")
    for damage in report.damaged:
        output.line(f"  {_describe(damage, report)}")


def _describe(damage: Damage, report: VerifyReport) -> str:
    file = "" if damage.path == report.path else f"{damage.path}: "
    tensors = f", tensor {', '.join(damage.tensors)}" if damage.tensors else ""
    return f"{file}offset {damage.offset}, {damage.nbytes} bytes{tensors}: {damage.what}"
