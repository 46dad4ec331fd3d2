"""Builds the native extension; name, version and the rest of the metadata are in pyproject.toml."""

import os
import re
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path

import pybind11
from pybind11.setup_helpers import ParallelCompile, Pybind11Extension, build_ext
from setuptools import setup

CSRC = Path("csrc")
LAYERS = ("core", "shim", "engine", "bindings")
SOURCES = sorted(str(path) for layer in LAYERS for path in CSRC.glob(f"{layer}/*.cpp"))
HEADERS = sorted(str(path) for layer in LAYERS for path in CSRC.glob(f"{layer}/*.hpp"))


# Optional headers, with a name that those lack which are too old: before CUDA 12.3, cuFile 1.15.
FOREIGN_HEADERS = {
    "cuda.h": "CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID",
    "cufile.h": "cuFileGetStatsL3",
    "nvtx3/nvToolsExt.h": "nvtxDomainRangePushEx",
}


def version_of(toolkit: Path) -> tuple[int, ...]:
    """Give the version that ends the directory's name, so that 13.0 comes after 9.2."""
    return tuple(int(number) for number in re.findall(r"\d+", toolkit.name))


def include_directories() -> Iterator[Path]:
    """List where NVIDIA's headers may lie: wheels, then the toolkit asked for, then the newest."""
    for entry in sys.path:
        # Wheels of CUDA 13 share nvidia/cu13; older ones have a directory per library.
        yield from sorted(Path(entry or ".").glob("nvidia/*/include"))
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if toolkit := os.environ.get(variable):
            yield Path(toolkit, "include")
    toolkits = sorted(Path("/usr/local").glob("cuda-*"), key=version_of, reverse=True)
    yield from (toolkit / "include" for toolkit in (*toolkits, Path("/usr/local/cuda")))


def foreign_headers() -> dict[str, Path]:
    """Find the optional headers.

    Returns:
        Header, as it is included, to the directory that holds it, in the order in which the
        compiler has to search these directories. A header that was not found is left out; so is
        a directory where one is too old, which would hide a newer one.
    """
    found: dict[str, Path] = {}
    for directory in include_directories():
        paths = {header: directory / header for header in FOREIGN_HEADERS}
        present = {header: path for header, path in paths.items() if path.is_file()}
        if all(FOREIGN_HEADERS[header] in path.read_text() for header, path in present.items()):
            found |= dict.fromkeys(present.keys() - found.keys(), directory)
    return found


def foreign_flags(headers: Mapping[str, Path]) -> list[str]:
    """Give the compiler's flags for the headers found, and only for them."""
    missing = FOREIGN_HEADERS.keys() - headers.keys()
    # As system headers, so that the warnings are about our own code.
    flags = [f"-isystem{directory}" for directory in dict.fromkeys(headers.values())]
    # cufile.h is written against a cuda.h of its own time: both, or none.
    if missing & {"cuda.h", "cufile.h"}:
        flags.append("-DGDSCKPT_HAND_WRITTEN_ABI")
    if "nvtx3/nvToolsExt.h" in missing:
        flags.append("-DGDSCKPT_NO_NVTX")
    return flags


def needs_recompile(object_path: str, source_path: str) -> bool:
    """Tell whether a source, or any header, is newer than the object made of it."""
    compiled = Path(object_path)
    if not compiled.exists():
        return True
    newest = max(Path(path).stat().st_mtime for path in (source_path, *DEPENDS))
    return newest > compiled.stat().st_mtime


WARNINGS = ["-Wall", "-Wextra", "-Wshadow", "-Wconversion"]
FOREIGN = foreign_headers()
# A header that has come since the last build counts as a changed one.
DEPENDS = [*HEADERS, *(str(directory / header) for header, directory in FOREIGN.items())]
# As system headers too, which wins over -I.
SYSTEM_DIRECTORIES = [pybind11.get_include(), sysconfig.get_paths()["include"]]

# No -march: what a processor can do is found out at run time, so one build runs everywhere.
compile_args = ["-O2", "-pthread", *WARNINGS]
compile_args += [f"-isystem{directory}" for directory in SYSTEM_DIRECTORIES]
compile_args += foreign_flags(FOREIGN)
if os.environ.get("GDSCKPT_WERROR") == "1":
    compile_args.append("-Werror")

# Tests load this file by another name, to compile with the same headers.
if __name__ == "__main__":
    ParallelCompile(
        "GDSCKPT_BUILD_JOBS", default=os.cpu_count() or 1, needs_recompile=needs_recompile
    ).install()
    setup(
        ext_modules=[
            Pybind11Extension(
                "gdsckpt._C",
                SOURCES,
                include_dirs=[str(CSRC)],
                depends=DEPENDS,
                cxx_std=17,
                extra_compile_args=compile_args,
                extra_link_args=["-pthread", "-ldl"],
            )
        ],
        cmdclass={"build_ext": build_ext},
    )
