"""Builds the native extension; name, version and the rest of the metadata are in pyproject.toml."""

import os
import sysconfig
from pathlib import Path

import pybind11
from pybind11.setup_helpers import ParallelCompile, Pybind11Extension, build_ext
from setuptools import setup

CSRC = Path("csrc")
LAYERS = ("core", "engine", "bindings")
SOURCES = sorted(str(path) for layer in LAYERS for path in CSRC.glob(f"{layer}/*.cpp"))
HEADERS = sorted(str(path) for layer in LAYERS for path in CSRC.glob(f"{layer}/*.hpp"))


def needs_recompile(object_path: str, source_path: str) -> bool:
    """Tell whether a source, or any header, is newer than the object made of it."""
    compiled = Path(object_path)
    if not compiled.exists():
        return True
    newest = max(Path(path).stat().st_mtime for path in (source_path, *HEADERS))
    return newest > compiled.stat().st_mtime


ParallelCompile(
    "GDSCKPT_BUILD_JOBS", default=os.cpu_count() or 1, needs_recompile=needs_recompile
).install()

WARNINGS = ["-Wall", "-Wextra", "-Wshadow", "-Wconversion"]
# As system headers (which wins over -I), so that the warnings are about our own code.
FOREIGN_HEADERS = [pybind11.get_include(), sysconfig.get_paths()["include"]]

# No -march: what a processor can do is found out at run time, so one build runs everywhere.
compile_args = ["-O2", "-pthread", *WARNINGS]
compile_args += [f"-isystem{directory}" for directory in FOREIGN_HEADERS]
if os.environ.get("GDSCKPT_WERROR") == "1":
    compile_args.append("-Werror")

setup(
    ext_modules=[
        Pybind11Extension(
            "gdsckpt._C",
            SOURCES,
            include_dirs=[str(CSRC)],
            depends=HEADERS,
            cxx_std=17,
            extra_compile_args=compile_args,
            extra_link_args=["-pthread"],
        )
    ],
    cmdclass={"build_ext": build_ext},
)
