"""A log of the saves and uploads of a root, one JSON object a line, for those who plan."""

from __future__ import annotations

import datetime
import io
import json
import logging
import os
import threading
from pathlib import Path
from typing import Literal

from gdsckpt.report import SaveReport, UploadReport
from gdsckpt.staging import root as roots

logger = logging.getLogger(__name__)

LOG_NAME = "reports.jsonl"

LOG_MAX_BYTES = 4 << 20
"""Some thousand saves; then the older half goes."""

_lock = threading.Lock()


def append(root: Path, kind: Literal["save", "upload"], report: SaveReport | UploadReport) -> None:
    """Add a line; never raises: no save fails for its log.

    Lines are not synced, and a crash may leave half of one; readers skip what is no JSON.

    Args:
        root: The root, locked.
        kind: What it reports.
        report: What it says.
    """
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    line = json.dumps({"kind": kind, "time": now, "report": report.as_dict()}) + "\n"
    path = roots.private_directory(root) / LOG_NAME
    try:
        with _lock:
            _halve(path)
            with path.open("ab+", buffering=0) as file:
                begin = "" if _ends_a_line(file) else "\n"
                file.write((begin + line).encode())
    except OSError as error:
        logger.debug("no line in the log of reports: %s", error)


def _ends_a_line(file: io.FileIO) -> bool:
    """Tell whether the next line can follow; half a line that a crash left is ended first."""
    nbytes = os.fstat(file.fileno()).st_size
    return not nbytes or os.pread(file.fileno(), 1, nbytes - 1) == b"\n"


def _halve(path: Path) -> None:
    """Drop the older half of a log that has grown too large."""
    try:
        if path.stat().st_size < LOG_MAX_BYTES:
            return
    except FileNotFoundError:
        return
    lines = path.read_bytes().splitlines(keepends=True)
    new = path.with_suffix(".new")
    new.write_bytes(b"".join(lines[len(lines) // 2 :]))
    os.replace(new, path)  # noqa: PTH105 - as elsewhere, by one rename


def _start_in_child() -> None:
    """Have a lock of our own: another thread of the parent may have held it at the fork."""
    global _lock  # noqa: PLW0603 - the log is one for the process, too
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_start_in_child)
