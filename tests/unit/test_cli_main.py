import subprocess
import sys

import pytest

from gdsckpt.cli.main import COMMANDS, main


@pytest.fixture
def run(capsys):
    """Run a command in this process; gives its exit code, stdout and stderr."""

    def call(*arguments):
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as exc:  # how argparse ends
            code = exc.code or 0
        captured = capsys.readouterr()
        return int(code), captured.out, captured.err

    return call


def is_one_error_line(stderr):
    return stderr.startswith("gdsckpt: error: ") and stderr.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("nonsense",),
        ("ls", "--nonsense"),
        ("verify",),
        ("inspect",),
        ("diff", "one.pt"),
        ("--set", "ls"),
        ("--set", "io_threads", "ls"),
        ("--set", "io_thread=4", "ls"),
        ("--set", "io_threads=none", "ls"),
        ("ls", "--set", "chunk_bytes=1"),
    ],
)
def test_wrong_usage_is_code_2_and_one_line(run, arguments):
    code, out, err = run(*arguments)
    assert code == 2
    assert out == ""
    assert is_one_error_line(err)


@pytest.mark.parametrize("command", ["ls", "inspect", "verify"])
def test_missing_path_is_code_4_and_one_line(run, command, tmp_path):
    code, _, err = run(command, tmp_path / "absent\n.pt")
    assert code == 4
    assert is_one_error_line(err)
    assert "absent\\n.pt" in err


@pytest.mark.parametrize("way", ["raise KeyboardInterrupt", "exec('raise KeyboardInterrupt')"])
def test_interrupted_anywhere_is_code_130(way, tmp_path):
    (tmp_path / "program.py").write_text(f"""
import sys
from gdsckpt.cli import ls, main
def run(arguments):
    {way}
ls.run = run
sys.exit(main.main(["ls"]))
""")
    words = [sys.executable, "-m", "program"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (130, "gdsckpt: interrupted\n")


def test_unknown_setting_has_a_hint(run):
    _, _, err = run("--set", "io_thread=4", "ls")
    assert "Did you mean io_threads?" in err


def test_settings_of_both_places_add_up(run, tmp_path):
    code, _, err = run(
        "--set", "chunk_bytes=64MiB", "verify", "--set", "pinned_pool_bytes=1GiB", tmp_path / "a"
    )
    assert code == 4  # there is no file; the settings, which need each other, were taken
    assert "no checkpoint" in err


def test_wrong_environment_is_named(run, monkeypatch):
    monkeypatch.setenv("GDSCKPT_IO_THREADS", "0")
    code, _, err = run("ls")
    assert code == 2
    assert "GDSCKPT_IO_THREADS" in err


def test_debug_shows_the_traceback(run, tmp_path):
    code, _, err = run("inspect", "--debug", tmp_path / "absent")
    assert code == 4
    assert "Traceback (most recent call last)" in err
    assert err.splitlines()[-1].startswith("gdsckpt: error: ")


def test_version(run):
    import gdsckpt

    assert run("--version") == (0, f"gdsckpt {gdsckpt.__version__}\n", "")


def test_help_lists_commands_and_exit_codes(run):
    code, out, _ = run("--help")
    assert code == 0
    assert all(command in out for command in COMMANDS)
    assert "130  interrupted" in out


@pytest.mark.parametrize("command", list(COMMANDS))
def test_help_of_a_command(run, command):
    code, out, err = run(command, "--help")
    assert (code, err) == (0, "")
    assert "--set NAME=VALUE" in out


def test_bench_passes_its_arguments_on(run):
    code, out, _ = run("bench", "--", "--help")
    assert code == 0
    assert "--rounds" in out  # an option of bench/run.py


def test_bench_outside_the_repository_says_where_it_is(run, monkeypatch, tmp_path):
    import gdsckpt

    monkeypatch.setattr(gdsckpt, "__file__", str(tmp_path / "gdsckpt" / "__init__.py"))
    code, _, err = run("bench")
    assert code == 4
    assert is_one_error_line(err)
    assert "Clone the repository" in err
