import ast
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


# Torch costs 143 MB of private memory; commands that only look at files start without it.
MODULES_WITH_TORCH = {"checkpointer", "demo", "loading", "saving", "snapshot", "tensors"}
# In their functions, for what cannot be done without.
FILES_WITH_TORCH = {Path("planning/live_model.py")}


def imported_by(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def test_import_of_torch_is_only_where_tensors_are_handled():
    package = ROOT / "gdsckpt"
    importers = {
        path.relative_to(package).with_suffix("").parts[0]
        for path in package.rglob("*.py")
        if path.relative_to(package) not in FILES_WITH_TORCH
        and any(name.partition(".")[0] == "torch" for name in imported_by(path))
    }
    assert importers <= MODULES_WITH_TORCH
