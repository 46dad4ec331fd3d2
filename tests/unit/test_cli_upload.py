import json
import os
import pty
import re
import subprocess
import sys

import pytest
import torch
from cli_runs import flip, run_here, save_small, small_state

import gdsckpt


@pytest.fixture
def store(tmp_path):
    """URL of a store in a directory."""
    return (tmp_path / "store").as_uri()


def test_upload_says_what_it_did(capsys, tmp_path, store):
    path = save_small(tmp_path / "a.pt")
    done = run_here(capsys, "upload", path, f"{store}/a.pt")
    assert done.code == 0
    assert re.fullmatch(
        rf"uploaded {path} to {store}/a.pt: 242 kB in [^\n]+ \([^\n]+/s\)\n", done.out
    )
    assert done.err == ""
    again = run_here(capsys, "upload", path, f"{store}/a.pt")
    assert again.out == f"{store}/a.pt: there already, 242 kB, nothing was sent\n"


def test_upload_json_is_the_report(capsys, tmp_path, store):
    path = save_small(tmp_path / "a.pt")
    done = run_here(capsys, "upload", "--json", path, f"{store}/a.pt")
    report = json.loads(done.out)
    assert set(report) == {
        "path",
        "url",
        "nbytes",
        "sent_bytes",
        "num_objects",
        "num_parts",
        "seconds",
        "crc32",
        "bytes_per_s",
    }
    assert (report["path"], report["url"]) == (str(path), f"{store}/a.pt")
    assert report["sent_bytes"] == report["nbytes"] == path.stat().st_size


def test_upload_of_a_checkpoint_directory(capsys, tmp_path, store):
    gdsckpt.save_checkpoint(small_state(), tmp_path / "step-7", step=7)
    assert run_here(capsys, "upload", tmp_path / "step-7", f"{store}/step-7").code == 0
    assert gdsckpt.load(f"{store}/step-7")["step"] == 7


@pytest.mark.parametrize(
    ("source", "url", "message"),
    [
        ("missing.pt", "STORE/a.pt", "nothing at"),
        ("a.pt", "STORE/dir/", "names no object"),
        ("a.pt", "gs://bucket/a.pt", "is no URL of an object store"),
        ("a.pt", "elsewhere/a.pt", "is no URL of an object store"),
        ("empty", "STORE/step", "no checkpoint at"),
    ],
)
def test_upload_that_fails_is_one_line(capsys, tmp_path, store, source, url, message):
    save_small(tmp_path / "a.pt")
    (tmp_path / "empty").mkdir()
    done = run_here(capsys, "upload", tmp_path / source, url.replace("STORE", store))
    assert (done.code, done.out) == (4, "")
    assert done.err.startswith("gdsckpt: error: ")
    assert message in done.err
    assert done.err.count("\n") == 1


def test_upload_of_damaged_bytes_fails(capsys, tmp_path, store):
    path = save_small(tmp_path / "a.pt")
    flip(path, 100_000)
    done = run_here(capsys, "upload", path, f"{store}/a.pt")
    assert done.code == 4
    assert "is damaged" in done.err
    assert "gdsckpt verify" in done.err


def test_upload_wants_source_and_url(capsys):
    assert run_here(capsys, "upload", "a.pt").code == 2


def test_endpoint_url_is_the_setting(capsys, tmp_path):
    path = save_small(tmp_path / "a.pt")
    done = run_here(
        capsys, "upload", path, "s3://bucket/a.pt", "--endpoint-url", "ftp://host:1/nowhere"
    )
    assert done.code == 2
    assert "endpoint_url" in done.err


def test_progress_is_drawn_on_a_terminal(tmp_path, store, capsys):
    path = tmp_path / "a.pt"
    gdsckpt.save({"w": torch.zeros(3_000_000)}, path)
    leader, follower = pty.openpty()
    code = "import sys; from gdsckpt.cli.main import main; sys.exit(main())"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "upload", path, f"{store}/a.pt"],
        stdout=subprocess.PIPE,
        stderr=follower,
        env={**os.environ, "TERM": "xterm"},
    )
    os.close(follower)
    process.communicate(timeout=120)
    shown = os.read(leader, 1 << 16).decode()
    os.close(leader)
    assert process.returncode == 0
    assert "a.pt [####" in shown
    assert "12.1 MB of 12.1 MB" in shown
    assert "left" in shown
