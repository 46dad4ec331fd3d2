"""Which of NVIDIA's headers the build takes, and from where."""

import sys
from pathlib import Path

import pytest
from build_script import load_build_script

CUDA, CUFILE, NVTX = "cuda.h", "cufile.h", "nvtx3/nvToolsExt.h"


@pytest.fixture
def build():
    return load_build_script()


def put(build, directory, *headers, is_recent=True):
    for header in headers:
        path = directory / header
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(build["FOREIGN_HEADERS"][header] if is_recent else "#define OLD\n")
    return directory


def find(build, monkeypatch, *directories):
    monkeypatch.setitem(
        build["foreign_headers"].__globals__, "include_directories", lambda: directories
    )
    return build["foreign_headers"]()


def test_include_directories_wheels_come_before_the_toolkit_asked_for(build, monkeypatch, tmp_path):
    wheel = tmp_path / "site" / "nvidia" / "cu13" / "include"
    wheel.mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site")])
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "toolkit"))
    first, second, *_ = build["include_directories"]()
    assert [first, second] == [wheel, tmp_path / "toolkit" / "include"]


def test_version_of_orders_numbers_not_letters(build):
    toolkits = [Path("/x/cuda-9.2"), Path("/x/cuda-13.0"), Path("/x/cuda-12.10")]
    assert [path.name for path in sorted(toolkits, key=build["version_of"])] == [
        "cuda-9.2",
        "cuda-12.10",
        "cuda-13.0",
    ]


def test_foreign_headers_first_directory_of_each_wins(build, monkeypatch, tmp_path):
    first = put(build, tmp_path / "first", NVTX)
    second = put(build, tmp_path / "second", CUDA, CUFILE, NVTX)
    found = find(build, monkeypatch, first, second)
    assert found == {NVTX: first, CUDA: second, CUFILE: second}
    assert build["foreign_flags"](found) == [f"-isystem{first}", f"-isystem{second}"]


def test_foreign_headers_directory_with_an_old_one_is_passed_over(build, monkeypatch, tmp_path):
    old = put(build, tmp_path / "old", NVTX)
    put(build, old, CUDA, is_recent=False)
    new = put(build, tmp_path / "new", CUDA, CUFILE, NVTX)
    assert set(find(build, monkeypatch, old, new).values()) == {new}


@pytest.mark.parametrize("present", [(), (CUDA, NVTX), (CUFILE,)])
def test_foreign_flags_without_both_headers_declare_by_hand(build, monkeypatch, tmp_path, present):
    directory = put(build, tmp_path, *present)
    flags = build["foreign_flags"](find(build, monkeypatch, directory))
    assert "-DGDSCKPT_HAND_WRITTEN_ABI" in flags
    assert ("-DGDSCKPT_NO_NVTX" in flags) == (NVTX not in present)
