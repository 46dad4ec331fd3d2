import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# A finder that comes first and refuses torch, as on a machine that lacks it.
WITHOUT_TORCH = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ImportError(name + " is not to be imported")

sys.meta_path.insert(0, Refuse())
"""


def run(code):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60
    )


@pytest.mark.parametrize(
    "module", ["gdsckpt", "gdsckpt.errors", "gdsckpt.units", "gdsckpt.config", "gdsckpt.report"]
)
def test_import_light_module_needs_no_torch(module):
    done = run(f"{WITHOUT_TORCH}\nimport {module}")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("module", ["torch", "numpy"])
def test_import_gdsckpt_does_not_import(module):
    done = run(f"import sys, gdsckpt; sys.exit({module!r} in sys.modules)")
    assert done.returncode == 0, done.stderr
