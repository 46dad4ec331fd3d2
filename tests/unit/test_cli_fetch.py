import json
import re

import pytest
from cli_runs import flip, run_here, save_small, small_state

import gdsckpt


@pytest.fixture
def store(tmp_path):
    """URL of a store in a directory."""
    return (tmp_path / "store").as_uri()


@pytest.fixture
def stored(tmp_path, store):
    """URL of an object."""
    gdsckpt.upload(save_small(tmp_path / "a.pt"), f"{store}/a.pt")
    return f"{store}/a.pt"


def test_fetch_says_what_it_did(capsys, tmp_path, stored):
    done = run_here(capsys, "fetch", stored, tmp_path / "b.pt")
    assert done.code == 0
    assert re.fullmatch(
        rf"fetched {stored} to {tmp_path}/b.pt: 242 kB in [^\n]+ \([^\n]+/s\), verified\n",
        done.out,
    )
    assert (tmp_path / "b.pt").read_bytes() == (tmp_path / "a.pt").read_bytes()


def test_fetch_json_is_the_report(capsys, tmp_path, stored):
    report = json.loads(run_here(capsys, "fetch", "--json", stored, tmp_path / "b.pt").out)
    assert set(report) == {
        "url",
        "path",
        "nbytes",
        "num_objects",
        "is_verified",
        "seconds",
        "direct_io",
        "crc32",
        "bytes_per_s",
    }
    assert (report["url"], report["path"]) == (stored, str(tmp_path / "b.pt"))
    assert report["is_verified"]


def test_fetch_of_a_checkpoint(capsys, tmp_path, store):
    gdsckpt.save_checkpoint(small_state(), f"{store}/step-7", step=7)
    assert run_here(capsys, "fetch", f"{store}/step-7", tmp_path / "step-7").code == 0
    assert gdsckpt.load(tmp_path / "step-7")["step"] == 7


@pytest.mark.filterwarnings("always::gdsckpt.errors.UnverifiedWarning")
def test_fetch_of_an_object_without_checksums_warns(capsys, tmp_path):
    (tmp_path / "plain").write_bytes(b"anything")
    done = run_here(capsys, "fetch", (tmp_path / "plain").as_uri(), tmp_path / "b")
    assert done.code == 0
    assert "not verifiable" in done.out
    assert done.err.startswith("gdsckpt: warning: ")


def test_fetch_of_a_damaged_object_fails_and_writes_nothing(capsys, tmp_path, stored):
    flip(tmp_path / "store" / "a.pt", 100_000)
    done = run_here(capsys, "fetch", stored, tmp_path / "b.pt")
    assert done.code == 4
    assert "does not match its checksum" in done.err
    assert not (tmp_path / "b.pt").exists()


@pytest.mark.parametrize(
    ("url", "dest", "message"),
    [
        ("STORE/missing.pt", "b.pt", "nothing at"),
        ("STORE/a.pt", "missing/b.pt", "No such file or directory"),
        ("gs://bucket/a.pt", "b.pt", "is no URL of an object store"),
        ("a.pt", "b.pt", "is no URL of an object store"),
    ],
)
def test_fetch_that_fails_is_one_line(capsys, tmp_path, store, stored, url, dest, message):
    done = run_here(capsys, "fetch", url.replace("STORE", store), tmp_path / dest)
    assert (done.code, done.out) == (4, "")
    assert done.err.startswith("gdsckpt: error: ")
    assert message in done.err
    assert done.err.count("\n") == 1


def test_fetch_wants_url_and_dest(capsys):
    assert run_here(capsys, "fetch", "s3://bucket/a.pt").code == 2
