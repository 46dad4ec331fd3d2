import io
import logging
import sys
import warnings
from pathlib import Path

import pytest

from gdsckpt.cli import output
from gdsckpt.cli.exits import MEANINGS, Exit, worst


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("model.0.weight", "model.0.weight"),
        ("mod\u00e8le", "mod\u00e8le"),
        ("a\nb", "a\\nb"),
        ("a\rb\tc", "a\\rb\\tc"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("\x9b31m", "\\x9b31m"),
        ("right\u202eleft", "right\\u202eleft"),
        ("\udcff.pt", "\\xff.pt"),
        ("", ""),
    ],
)
def test_escape_shows_what_is_not_printable(text, shown):
    assert output.escape(text) == shown


def test_table_sets_columns_and_escapes(capsys):
    output.table(("name", "bytes"), [("a\n", "7"), ("longer", "1234")], right=(1,))
    assert capsys.readouterr().out == "name    bytes\na\\n         7\nlonger   1234\n"


def test_error_is_one_line_on_stderr(capsys):
    output.error("open of a\nb failed")
    captured = capsys.readouterr()
    assert captured.err == "gdsckpt: error: open of a\\nb failed\n"
    assert captured.out == ""


def test_error_text_adds_notes():
    exc = ValueError("bad value.")
    exc.add_note("It was set by X.")
    assert output.error_text(exc) == "bad value. It was set by X."


def test_warnings_and_logs_become_lines(capsys):
    with output.redirected_warnings(debug=False):
        warnings.simplefilter("always")
        warnings.warn("less than asked for", UserWarning, stacklevel=1)
        logging.getLogger("gdsckpt.staging.files").warning("removed %s", "x\ny")
        logging.getLogger("gdsckpt.staging.files").info("not shown")
    assert capsys.readouterr().err == (
        "gdsckpt: warning: less than asked for\ngdsckpt: warning: removed x\\ny\n"
    )


def test_debug_shows_log_records_below_warnings(capsys):
    with output.redirected_warnings(debug=True):
        logging.getLogger("gdsckpt").debug("a transfer")
    assert capsys.readouterr().err == "debug: a transfer\n"


def test_progress_text_says_how_far_how_fast_how_long():
    text = output.progress_text("verify a.pt", 500_000_000, 2_000_000_000, 0.5)
    assert text == (
        "verify a.pt [######------------------]  25% 500 MB of 2 GB, 1 GB/s, 1.50 s left"
    )


def test_progress_text_of_nothing_done_has_no_rate():
    assert output.progress_text("x", 0, 10, 1.0).endswith("  0% 0 B of 10 B")


def test_progress_text_of_an_empty_file_is_done():
    assert "100%" in output.progress_text("x", 0, 0, 1.0)


def test_progress_bar_without_terminal_is_none(capsys):
    with output.progress_bar("x") as progress:
        assert progress is None
    assert capsys.readouterr().err == ""


def test_shorten_keeps_the_end():
    assert output._shorten("a long name [###] 12%", 12) == "...[###] 12%"


@pytest.mark.parametrize(
    ("codes", "code"),
    [
        ([], Exit.OK),
        ([Exit.OK, Exit.UNVERIFIABLE], Exit.UNVERIFIABLE),
        ([Exit.FINDING, Exit.UNVERIFIABLE, Exit.OK], Exit.FINDING),
        ([Exit.FAILED, Exit.FINDING], Exit.FAILED),
    ],
)
def test_worst_code_of_several(codes, code):
    assert worst(codes) is code


def test_every_exit_code_has_a_meaning():
    assert set(MEANINGS) == set(Exit)


def test_prepare_stdout_shows_what_the_encoding_lacks(tmp_path, monkeypatch):
    path = tmp_path / "out"
    with path.open("w", encoding="ascii") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        output.prepare_stdout()
        output.line("caf\u00e9")
    assert path.read_text() == "caf\\xe9\n"


def test_abandon_stdout_leaves_no_descriptor_where_stdout_is_no_file(monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    before = len(list(Path("/proc/self/fd").iterdir()))
    output.abandon_stdout()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
