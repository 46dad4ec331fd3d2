"""The only place that prints: results to stdout; progress, warnings and errors to stderr."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from gdsckpt.units import format_bytes, format_duration, format_rate

PROGRAM = "gdsckpt"
_LOW_SURROGATES = range(0xDC80, 0xDD00)
"""How Python shows bytes of a file name that are not UTF-8 (PEP 383)."""

_REDRAW_S = 0.1
_BAR_CELLS = 24


def escape(text: str) -> str:
    """Make text safe for a terminal: what is not printable is shown as Python would write it.

    File and tensor names come from others and may hold line ends and escape codes.
    """
    if text.isprintable():
        return text
    return "".join(map(_escape_character, text))


def _escape_character(character: str) -> str:
    if character.isprintable():
        return character
    code = ord(character)
    if code in _LOW_SURROGATES:
        return f"\\x{code - 0xDC00:02x}"
    return character.encode("unicode_escape").decode()


def line(text: str = "") -> None:
    """Print one line of a result, escaped."""
    print(escape(text))


def live_line(text: str) -> None:
    """Print one line of a result at once, for work that takes its time."""
    print(escape(text), flush=True)


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, right: Iterable[int] = ()) -> None:
    """Print columns with a heading.

    Args:
        head: Headings.
        rows: One text per column; escaped here.
        right: Columns that are set flush right.
    """
    cells = [list(head), *([escape(cell) for cell in row] for row in rows)]
    widths = [max(len(row[n]) for row in cells) for n in range(len(head))]
    is_right = frozenset(right)
    for row in cells:
        padded = [
            cell.rjust(width) if n in is_right else cell.ljust(width)
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(padded).rstrip())


def json_document(document: Any) -> None:
    """Print one JSON document, the only thing that ``--json`` puts on stdout."""
    print(json.dumps(document, indent=1))


def note(text: str) -> None:
    """Print a line to stderr: neither a result nor a warning."""
    _to_stderr(escape(text))


def warning(text: str) -> None:
    """Print a warning as one line to stderr."""
    _to_stderr(f"{PROGRAM}: warning: {escape(text)}")


def error(text: str) -> None:
    """Print an error as one line to stderr."""
    _to_stderr(f"{PROGRAM}: error: {escape(text)}")


def traceback(exc: BaseException) -> None:
    """Print a traceback to stderr, for ``--debug``."""
    import traceback as tracebacks

    _to_stderr("".join(tracebacks.format_exception(exc)).rstrip())


def error_text(exc: BaseException) -> str:
    """Give the text of an error with its notes, on one line."""
    parts = [str(exc) or type(exc).__name__, *getattr(exc, "__notes__", ())]
    return " ".join(part.strip() for part in parts)


def _to_stderr(text: str) -> None:
    with contextlib.suppress(OSError):  # a closed stderr must not hide the result
        print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def redirected_warnings(*, debug: bool) -> Iterator[None]:
    """Print Python warnings and log records of gdsckpt as lines of ours, while the block lasts."""

    def show(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
        del category
        warning(str(message))

    logger = logging.getLogger("gdsckpt")
    handler = _LineHandler()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG if debug else logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = show
            yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


class _LineHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING:
            warning(record.getMessage())
        else:
            note(f"{record.levelname.lower()}: {record.getMessage()}")


def prepare_stdout() -> None:
    """Let stdout show characters that its encoding lacks, instead of failing."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def flush_stdout() -> None:
    """Write out what was printed, so that a failure is seen while it can be reported.

    Raises:
        BrokenPipeError: Nobody reads any more.
        OSError: It cannot be written.
    """
    sys.stdout.flush()


def abandon_stdout() -> None:
    """Send the rest of the output nowhere: the interpreter's last flush would fail again."""
    with contextlib.suppress(OSError, ValueError), Path(os.devnull).open("wb") as null:
        os.dup2(null.fileno(), sys.stdout.fileno())


@contextlib.contextmanager
def progress_bar(label: str) -> Iterator[Callable[[int, int], None] | None]:
    """Show progress on stderr while the block lasts, if that is a terminal.

    Args:
        label: What is done, such as ``verify a.pt``.

    Yields:
        To be called with (bytes done, bytes in all), or None where there is no terminal.
    """
    stream = sys.stderr
    if not stream.isatty() or os.environ.get("TERM") == "dumb":
        yield None
        return
    bar = _Bar(stream, escape(label))
    try:
        yield bar.show
    finally:
        bar.clear()


class _Bar:
    """One line that is drawn again and again."""

    def __init__(self, stream: TextIO, label: str) -> None:
        self._stream = stream
        self._label = label
        self._started = time.monotonic()
        self._drawn_s = 0.0

    def show(self, done_bytes: int, total_bytes: int) -> None:
        """Draw, unless it was drawn a moment ago."""
        now = time.monotonic()
        if now - self._drawn_s < _REDRAW_S and done_bytes < total_bytes:
            return
        self._drawn_s = now
        elapsed_s = now - self._started
        text = progress_text(self._label, done_bytes, total_bytes, elapsed_s)
        self._write(f"\r\x1b[2K{_shorten(text, _columns(self._stream) - 1)}")

    def clear(self) -> None:
        """Leave an empty line, and the cursor at its beginning."""
        self._write("\r\x1b[2K")

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):  # the terminal went away
            self._stream.write(text)
            self._stream.flush()


def progress_text(label: str, done_bytes: int, total_bytes: int, elapsed_s: float) -> str:
    """Give the line of a progress bar: how far, how fast, how much longer."""
    share = done_bytes / total_bytes if total_bytes else 1.0
    filled = min(_BAR_CELLS, int(share * _BAR_CELLS))
    text = (
        f"{label} [{'#' * filled}{'-' * (_BAR_CELLS - filled)}] {share:4.0%} "
        f"{format_bytes(done_bytes)} of {format_bytes(total_bytes)}"
    )
    if elapsed_s <= 0 or not done_bytes:
        return text
    rate = done_bytes / elapsed_s
    left_s = max(0, total_bytes - done_bytes) / rate
    return f"{text}, {format_rate(rate)}, {format_duration(left_s)} left"


def _columns(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def _shorten(text: str, columns: int) -> str:
    """Cut a line from the left, where the name is, so that it stays one line."""
    if len(text) <= columns:
        return text
    return "..." + text[len(text) - max(0, columns - 3) :]
