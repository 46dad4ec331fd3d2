"""What setup.py knows of the build: the same headers and flags for what tests compile."""

import runpy
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def load_build_script() -> dict[str, Any]:
    """Give the names of setup.py without running a build."""
    return runpy.run_path(str(ROOT / "setup.py"), run_name="build_script")


def foreign_flags() -> list[str]:
    """Give the compiler's flags for NVIDIA's headers, as the extension is built with."""
    build = load_build_script()
    return build["foreign_flags"](build["FOREIGN"])
