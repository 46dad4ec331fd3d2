"""Build the tests of the native core, which takes minutes: beside other tests where possible.

As a program, it builds those under the sanitizers, until they are ready or its input ends.
"""

import contextlib
import fcntl
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from build_script import foreign_flags

ROOT = Path(__file__).resolve().parents[1]
CSRC = ROOT / "csrc"
WARNINGS = ["-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Werror"]
VARIANTS = {
    "plain": ["-O1"],
    "asan": ["-O1", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    "tsan": ["-O1", "-g1", "-fsanitize=thread"],
}
SANITIZERS = ("asan", "tsan")


def can_build() -> bool:
    """Tell whether the sources and a compiler are there."""
    return CSRC.is_dir() and shutil.which("g++") is not None


def _sources() -> list[Path]:
    layers = [path for layer in ("core", "shim", "engine") for path in (CSRC / layer).glob("*.cpp")]
    # bench_* and abi_* are programs of their own.
    own = re.compile("bench_|abi_")
    tests = [path for path in (CSRC / "tests").glob("*.cpp") if not own.match(path.name)]
    return sorted(layers + tests)


def _run_compiler(target: Path, *arguments: object) -> None:
    # Renamed into place: somebody may be running the old program, and a compiler that was killed
    # leaves nothing that looks finished.
    made = target.with_name(f"{target.name}.made")
    command = ["g++", *map(str, arguments), "-o", str(made)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    made.replace(target)


def build(variant: str) -> Path:
    """Compile what is older than its source or any header, and link; several may ask at once.

    Raises:
        subprocess.CalledProcessError: The compiler refused; its complaint is in ``stderr``.
    """
    flags = VARIANTS[variant] + foreign_flags()
    made = ROOT / "build" / f"native_tests-{variant}-{platform.machine()}"
    made.mkdir(parents=True, exist_ok=True)
    compile_flags = ("-std=c++17", *flags, *WARNINGS, f"-I{CSRC}")
    stale = []
    objects = []
    with (made / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        newest_header = max(path.stat().st_mtime for path in CSRC.glob("*/*.hpp"))
        for source in _sources():
            target = made / f"{source.parent.name}-{source.stem}.o"
            objects.append(target)
            newest = max(newest_header, source.stat().st_mtime)
            if not target.exists() or target.stat().st_mtime < newest:
                stale.append((source, target))
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            jobs = [
                pool.submit(_run_compiler, target, *compile_flags, "-c", source)
                for source, target in stale
            ]
        for job in jobs:
            job.result()
        program = made / "native_tests"
        if stale or not program.exists():
            _run_compiler(program, *flags, "-pthread", *objects, "-ldl")
    return program


@contextlib.contextmanager
def built_in_the_background() -> Iterator[None]:
    """Build what the sanitizers need in processes that give way to all others.

    Who calls ``build`` meanwhile waits for them. What is not ready at the end of the ``with`` is
    given up, as it is when this process is killed.
    """
    process = subprocess.Popen(
        [sys.executable, __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        process_group=0,
    )
    try:
        yield
    finally:
        process.stdin.close()
        process.wait()


def _end_with_input() -> None:
    """End this process and the compilers that it has started when its standard input ends."""
    os.read(0, 1)
    os.killpg(0, signal.SIGTERM)


def main() -> None:
    """Build; a complaint of the compiler is left to the test, which gets it again."""
    os.nice(10)
    threading.Thread(target=_end_with_input, daemon=True).start()
    for variant in SANITIZERS:
        with contextlib.suppress(subprocess.CalledProcessError):
            build(variant)


if __name__ == "__main__":
    main()
