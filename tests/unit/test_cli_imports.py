import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

WITHOUT_TORCH = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "numpy"):
            raise ImportError(name + " is not to be imported")

sys.meta_path.insert(0, Refuse())
from gdsckpt.cli.main import main
sys.exit(main())
"""


def run(*arguments, code=WITHOUT_TORCH, cwd=None):
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=120,
    )


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    import torch

    import gdsckpt

    directory = tmp_path_factory.mktemp("saved")
    state = {"model": {"w": torch.arange(6.0).reshape(2, 3)}, "step": 4}
    gdsckpt.save(state, directory / "a.pt")
    gdsckpt.save_checkpoint(state, directory / "step-4", step=4)
    (directory / "root").mkdir()
    gdsckpt.save_checkpoint(state, directory / "root" / "step-00000004", step=4)
    return directory


@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("--version",),
        ("ls", "."),
        ("ls", "--remove-leftovers", "--json"),
        ("ls", "root"),
        ("verify", "root"),
        ("prune", "root", "--keep-local", "1", "--json"),
        ("inspect", "a.pt"),
        ("inspect", "step-4", "--json"),
        ("verify", "a.pt", "step-4"),
        ("verify", "--help"),
        ("probe", "."),
        ("probe", "--json"),
        ("upload", "a.pt", "memory://bucket/a.pt"),
        ("upload", "step-4", "memory://bucket/step-4", "--json"),
        ("fetch", "STORE/a.pt", "b.pt"),
        ("fetch", "STORE/step-4", "step-4-back", "--json"),
        ("ls", "STORE"),
        ("ls", "STORE/step-4"),
        ("inspect", "STORE/step-4"),
        ("verify", "STORE/a.pt", "STORE/step-4"),
        ("upload", "--help"),
        ("fetch", "--help"),
        ("plan", "--scenario", "small"),
        ("plan", "--scenario", "small", "--json"),
        ("plan", "--watch", "root", "--rounds", "1"),
        ("plan", "--references"),
        ("plan", "--help"),
        ("diff", "--help"),
        ("demo", "--help"),
    ],
)
def test_command_runs_without_torch(saved, arguments):
    store = saved.as_uri()
    done = run(*(argument.replace("STORE", store) for argument in arguments), cwd=saved)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


WITHOUT_EXTENSION = WITHOUT_TORCH.replace(
    'name.partition(".")[0] in ("torch", "numpy")', 'name == "gdsckpt._C"'
)


def test_probe_without_extension_says_so(tmp_path):
    done = run("probe", "--json", code=WITHOUT_EXTENSION, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (1, "")
    report = json.loads(done.stdout)
    assert report["engine"] is None
    (step,) = [step for step in report["steps"] if step["name"] == "extension"]
    assert not step["ok"]
    assert step["mend"]


def test_verify_without_extension_is_one_line(tmp_path):
    done = run("verify", "a.pt", code=WITHOUT_EXTENSION, cwd=tmp_path)
    assert done.returncode == 4
    assert done.stderr.startswith("gdsckpt: error: The native extension gdsckpt._C cannot be")
    assert done.stderr.count("\n") == 1
