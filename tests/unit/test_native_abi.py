"""Declarations written by hand against NVIDIA's headers; sources without any of these headers."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from build_script import load_build_script

ROOT = Path(__file__).resolve().parents[2]
CSRC = ROOT / "csrc"
HEADERS = [CSRC / "shim" / "cuda_abi.hpp", CSRC / "shim" / "cufile_abi.hpp"]
BY_HAND = ["-DGDSCKPT_HAND_WRITTEN_ABI", "-DGDSCKPT_NO_NVTX"]
COMPILE = ["g++", "-std=c++17", "-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Werror"]
# Stands for members that are not used; only its size matters.
PLACEHOLDERS = {("CUfileStatsLevel2_t", "counters")}

pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ to compile the check"),
    pytest.mark.skipif(not CSRC.is_dir(), reason="no native sources beside the tests"),
]


def declared_by_hand(header):
    """Give a SHOW_ line for each type, member and constant of the hand-written part."""
    part = header.read_text().split("\n#else\n")[1]
    yield from (f"SHOW_CONSTANT({name})" for name in re.findall(r"^  (CU\w+) = \d+,$", part, re.M))
    yield from (f"SHOW_CONSTANT({name})" for name in re.findall(r"^#define (CU_\w+) ", part, re.M))
    yield from (
        f"SHOW_TYPE({name})" for name in re.findall(r"^typedef [^{;]*[ *](\w+);$", part, re.M)
    )
    for body, name in re.findall(r"^typedef \w+ \w+ \{\n(.*?)^\} (\w+);$", part, re.M | re.S):
        yield f"SHOW_TYPE({name})"
        for member in members(body):
            if (name, member) not in PLACEHOLDERS:
                yield f"SHOW_FIELD({name}, {member})"


def members(body):
    """Give the members of a structure; those of a nested one as ``outer.inner``."""
    open_ones = [[]]
    for line in body.splitlines():
        if re.search(r"^ *(struct|union) \{$", line):
            open_ones.append([])
        elif nested := re.search(r"^ *\} (\w+);$", line):
            inner = open_ones.pop()
            open_ones[-1] += [f"{nested[1]}.{name}" for name in inner]
        elif member := re.search(r"(\w+)(\[\d+\])?;$", line):
            open_ones[-1].append(member[1])
    (names,) = open_ones
    return names


@pytest.fixture(scope="module")
def names():
    return [line for header in HEADERS for line in declared_by_hand(header)]


def shown(directory, names, flags):
    """Compile csrc/tests/abi_check.cpp with flags, and give the lines that it prints."""
    directory.mkdir()
    (directory / "abi_names.inc").write_text("\n".join(names) + "\n")
    program = directory / "abi_check"
    source = CSRC / "tests" / "abi_check.cpp"
    command = [*COMPILE, *flags, f"-I{CSRC}", f"-I{directory}", source, "-o", program]
    compiled = subprocess.run(command, capture_output=True, text=True, check=False)
    assert compiled.returncode == 0, compiled.stderr
    return subprocess.run([program], check=True, capture_output=True, text=True).stdout.splitlines()


def test_names_declared_by_hand_are_found(names):
    assert "SHOW_TYPE(CUresult)" in names
    assert "SHOW_TYPE(CUstream)" in names
    assert "SHOW_CONSTANT(CU_EVENT_BLOCKING_SYNC)" in names
    assert "SHOW_CONSTANT(CU_FILE_HANDLE_TYPE_OPAQUE_FD)" in names
    assert "SHOW_FIELD(CUfileDrvProps_t, nvfs.dcontrolflags)" in names
    assert "SHOW_FIELD(CUfileDescr_t, handle.fd)" in names


def test_declarations_by_hand_agree_with_the_real_headers(tmp_path, names):
    build = load_build_script()
    found = build["foreign_headers"]()
    assert {"cuda.h", "cufile.h"} <= found.keys(), "they are in the extra `test`"
    if "cuFileReadv" not in (found["cufile.h"] / "cufile.h").read_text():
        # Before 1.19 the statistics were smaller; what reads them goes by the library's version.
        names = [name for name in names if not re.search(r"CUfileStatsLevel[23]_t", name)]
    real = shown(tmp_path / "real", names, build["foreign_flags"](found))
    by_hand = shown(tmp_path / "by_hand", names, BY_HAND)
    assert by_hand == real


def test_sources_compile_without_foreign_headers(tmp_path):
    sources = [*(CSRC / "shim").glob("*.cpp"), CSRC / "core" / "nvtx.cpp"]
    assert sources
    command = [*COMPILE, *load_build_script()["foreign_flags"]({}), f"-I{CSRC}", "-fsyntax-only"]
    compiled = subprocess.run([*command, *sources], capture_output=True, text=True, check=False)
    assert compiled.returncode == 0, compiled.stderr
