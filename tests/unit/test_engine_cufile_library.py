import subprocess
import sys

import pytest
from fake_cuda import stand_ins

from gdsckpt.engine import cufile_library


def library(path):
    path.mkdir(parents=True)
    (path / cufile_library.SONAME).touch()
    return str(path / cufile_library.SONAME)


def test_candidates_come_in_order(tmp_path):
    old = library(tmp_path / "site/nvidia/cufile/lib")
    new = library(tmp_path / "site/nvidia/cu13/lib")
    toolkit_old = library(tmp_path / "root/usr/local/cuda-12.9/lib64")
    toolkit_new = library(tmp_path / "root/usr/local/cuda-13.0/lib64")
    maps = f"7f00-7f01 r-xp 00000000 fe:00 123    {old}\n7f01-7f02 r--p 0 fe:00 1    {old}\n"
    (tmp_path / "root/proc/self").mkdir(parents=True)
    (tmp_path / "root/proc/self/maps").write_text(maps)
    found = cufile_library.candidates(
        folders=["relative", str(tmp_path / "site")], root=tmp_path / "root"
    )
    assert found == (old, new, "libcufile.so.0", toolkit_new, toolkit_old)


def test_candidates_without_any_is_what_the_loader_finds(tmp_path):
    assert cufile_library.candidates(folders=[], root=tmp_path) == ("libcufile.so.0",)


def test_override_is_the_only_candidate(tmp_path):
    library(tmp_path / "nvidia/cu13/lib")
    found = cufile_library.candidates("/mine.so", folders=[str(tmp_path)], root=tmp_path)
    assert found == ("/mine.so",)


def test_loaded_finds_a_library_of_this_process(tmp_path):
    path = tmp_path / "libcufile.so.0"
    path.write_bytes(stand_ins.build("cufile").read_bytes())
    code = f"import ctypes; ctypes.CDLL({str(path)!r})\n"
    code += "from gdsckpt.engine import cufile_library; print(cufile_library.loaded())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"[{str(path)!r}]"


@pytest.mark.parametrize("change", ["content", "search path"])
def test_identity_changes_with(tmp_path, monkeypatch, change):
    path = library(tmp_path / "lib")
    before = cufile_library.identity([path, "libcufile.so.0"])
    assert cufile_library.identity([path, "libcufile.so.0"]) == before
    if change == "content":
        (tmp_path / "lib" / cufile_library.SONAME).write_text("newer")
    else:
        monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    assert cufile_library.identity([path, "libcufile.so.0"]) != before
