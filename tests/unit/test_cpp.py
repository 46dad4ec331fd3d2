"""Builds and runs the tests of the native core, plainly and under the sanitizers."""

import fcntl
import os
import platform
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from build_script import foreign_flags

ROOT = Path(__file__).resolve().parents[2]
CSRC = ROOT / "csrc"
WARNINGS = ["-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Werror"]
VARIANTS = {
    "plain": ["-O1"],
    "asan": ["-O1", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    "tsan": ["-O1", "-g1", "-fsanitize=thread"],
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ to build the native tests"),
    pytest.mark.skipif(not CSRC.is_dir(), reason="no native sources beside the tests"),
]


def _sources() -> list[Path]:
    layers = [path for layer in ("core", "shim", "engine") for path in (CSRC / layer).glob("*.cpp")]
    # bench_* and abi_* are programs of their own.
    own = re.compile("bench_|abi_")
    tests = [path for path in (CSRC / "tests").glob("*.cpp") if not own.match(path.name)]
    return sorted(layers + tests)


def _compile(source: Path, target: Path, flags: list[str]) -> None:
    command = ["g++", "-std=c++17", *flags, *WARNINGS, f"-I{CSRC}", "-c", source, "-o", target]
    subprocess.run(command, check=True, capture_output=True, text=True)


def _build(variant: str) -> Path:
    """Compile what is older than its source or any header, and link; several runs may share it."""
    flags = VARIANTS[variant] + foreign_flags()
    build = ROOT / "build" / f"native_tests-{variant}-{platform.machine()}"
    build.mkdir(parents=True, exist_ok=True)
    newest_header = max(path.stat().st_mtime for path in CSRC.glob("*/*.hpp"))
    stale = []
    objects = []
    with (build / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for source in _sources():
            target = build / f"{source.parent.name}-{source.stem}.o"
            objects.append(target)
            newest = max(newest_header, source.stat().st_mtime)
            if not target.exists() or target.stat().st_mtime < newest:
                stale.append((source, target))
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(lambda pair: _compile(*pair, flags), stale))
        binary = build / "native_tests"
        if stale or not binary.exists():
            # Renamed into place: somebody else may be running the old one.
            linked = build / "linked"
            command = ["g++", *flags, "-pthread", *objects, "-ldl", "-o", linked]
            subprocess.run(command, check=True, capture_output=True, text=True)
            linked.replace(binary)
    return binary


@pytest.mark.parametrize("variant", VARIANTS)
def test_native_tests_hold(variant):
    try:
        binary = _build(variant)
    except subprocess.CalledProcessError as error:
        if "cannot find" in error.stderr and variant != "plain":
            pytest.skip(f"the compiler has no runtime library for {variant}")
        pytest.fail(error.stderr, pytrace=False)
    run = subprocess.run([binary], capture_output=True, text=True, timeout=240, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
