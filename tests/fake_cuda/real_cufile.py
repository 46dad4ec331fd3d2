"""Runs a program that can use the real libcufile without a GPU: over the stand-in for libcuda.

libcufile 1.20 wants /proc/modules, and an entry of udev's for the drive of each file. What is
missing is provided to one process: by a library that is preloaded, and by a /run of its own, for
which it needs a mount namespace.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sysconfig
from collections.abc import Iterable, Sequence
from pathlib import Path

from fake_cuda.stand_ins import HERE, temporary_directory

_SCRIPT = """
set -e
entries=$1
shift
mount -t tmpfs none /run
mkdir -p /run/udev/data
for entry in $entries; do
    printf 'E:ID_FS_USAGE=filesystem\\nE:ID_FS_TYPE=ext4\\n' > /run/udev/data/$entry
done
exec "$@"
"""


class NotPossibleError(Exception):
    """This machine cannot run the real libcufile; the text says why."""


def library() -> Path:
    """Give the path of libcufile.

    Raises:
        FileNotFoundError: It is not installed, so the tests are not set up.
    """
    paths = sysconfig.get_paths()
    for key in ("purelib", "platlib"):
        for found in sorted(Path(paths[key]).glob("nvidia/*/lib/libcufile.so.0")):
            return found
    raise FileNotFoundError("libcufile.so.0 is not in site-packages/nvidia/*/lib. Install 'test'.")


def environment() -> dict[str, str]:
    """Give the variables that the program needs."""
    if Path("/proc/modules").exists():
        return {}
    return {"LD_PRELOAD": str(_preloaded())}


def command(program: Sequence[str], directories: Iterable[Path]) -> list[str]:
    """Give the command that runs a program which uses files in these directories.

    Raises:
        NotPossibleError: There is no entry of udev's for a drive, and no namespace to have one in.
    """
    devices = {directory.stat().st_dev for directory in directories}
    names = [f"b{os.major(device)}:{os.minor(device)}" for device in sorted(devices)]
    if all(Path("/run/udev/data", name).exists() for name in names):
        return list(program)
    return [*_namespace(), "sh", "-c", _SCRIPT, "sh", " ".join(names), *program]


@functools.cache
def _namespace() -> tuple[str, ...]:
    unshare = ("unshare", "--mount", *(() if os.geteuid() == 0 else ("--map-root-user",)))
    try:
        done = subprocess.run(
            [*unshare, "mount", "-t", "tmpfs", "none", "/run"], capture_output=True, text=True
        )
    except FileNotFoundError as error:
        raise NotPossibleError("there is no program 'unshare'") from error
    if done.returncode != 0:
        why = done.stderr.strip() or f"it ended with {done.returncode}"
        raise NotPossibleError(f"no mount namespace with a /run of its own: {why}")
    return unshare


@functools.cache
def _preloaded() -> Path:
    made = temporary_directory("proc-modules") / "proc_modules.so"
    build = ["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o", str(made)]
    subprocess.run([*build, str(HERE / "proc_modules.c"), "-ldl"], check=True)
    return made
