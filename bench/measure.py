"""Time methods beside each other: rounds, order, clocks, page cache."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import mmap
import os
import resource
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

_T = TypeVar("_T")

_DROP_CACHES = Path("/proc/sys/vm/drop_caches")
_CLEAN_SHARE = 0.01


@dataclass(frozen=True, slots=True)
class OwnClock:
    """What a tool that times itself says: fio's job, without the start of its process.

    Attributes:
        seconds: Duration.
        nbytes: Bytes moved.
    """

    seconds: float
    nbytes: int


@dataclass(frozen=True, slots=True)
class Method:
    """One way to do what a scenario measures.

    Attributes:
        name: For tables.
        run: Does it; what it returns may be checked, and is dropped before the next one.
        files: What it writes or reads; removed before a save, dropped from the cache before a load.
    """

    name: str
    run: Callable[[], Any]
    files: Path


@dataclass(frozen=True, slots=True)
class Sample:
    """One timed run.

    Attributes:
        seconds: Wall time, or the tool's own clock.
        cpu_s: User and system time of this process and of the children that ended meanwhile.
        nbytes: Bytes moved.
        detail: More that is known of it.
    """

    seconds: float
    cpu_s: float
    nbytes: int
    detail: dict[str, Any] = field(default_factory=dict)


def rotated(items: Sequence[_T], turn: int) -> list[_T]:
    """Give the items in an order that begins with another one at each turn, and is reversed at odd.

    Reversing changes who runs after whom, which rotation alone leaves as it is.
    """
    shift = turn % len(items) if items else 0
    order = [*items[shift:], *items[:shift]]
    return order[::-1] if turn % 2 else order


def cpu_seconds() -> float:
    """Give the processor time of this process and of its children that have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def timed(method: Method, nbytes: int) -> tuple[Sample, Any]:
    """Run a method once.

    Args:
        method: What to run.
        nbytes: Bytes of payload that it moves, unless it says so itself.

    Returns:
        The sample, and what the method returned.
    """
    gc.collect()
    cpu_before = cpu_seconds()
    started = time.perf_counter()
    result = method.run()
    seconds = time.perf_counter() - started
    cpu_s = cpu_seconds() - cpu_before
    if isinstance(result, OwnClock):
        detail = {"process_wall_s": seconds}
        return Sample(result.seconds, cpu_s, result.nbytes, detail), None
    detail = stages_of(result)
    return Sample(seconds, cpu_s, nbytes, detail), result


def stages_of(result: Any) -> dict[str, Any]:
    """Give the seconds of each stage where the result is a save report."""
    names = ("plan_s", "write_s", "sync_s", "commit_s")
    return {name: getattr(result, name) for name in names if hasattr(result, name)}


@dataclass(frozen=True, slots=True)
class Rounds:
    """How often something is measured, and how much it moves.

    Attributes:
        num_rounds: How often each method runs.
        nbytes: Payload of one run.
        memory_bytes: Memory that the hungriest method takes, page cache included, for
            :func:`settle_memory`.
    """

    num_rounds: int
    nbytes: int
    memory_bytes: int


def run_rounds(
    methods: Sequence[Method],
    rounds: Rounds,
    *,
    prepare: Callable[[Method], None],
    check: Callable[[Method, Any], None] | None = None,
) -> dict[str, list[Sample]]:
    """Run every method in every round, each time in another order.

    Args:
        methods: What to compare.
        rounds: How often, and how much.
        prepare: Called before each run, untimed.
        check: Called with the first result of each method, untimed.

    Returns:
        Samples of each method, in the order of the rounds.
    """
    samples: dict[str, list[Sample]] = {method.name: [] for method in methods}
    for turn in range(rounds.num_rounds):
        for method in rotated(methods, turn):
            prepare(method)
            settle_memory(rounds.memory_bytes)
            sample, result = timed(method, rounds.nbytes)
            if turn == 0 and check is not None:
                check(method, result)
            del result
            samples[method.name].append(sample)
            shown = f"round {turn + 1}/{rounds.num_rounds}  {method.name:<28}"
            print(f"  {shown} {sample.seconds:8.3f} s", flush=True)
    return samples


def settle_memory(nbytes: int) -> None:
    """Touch and free memory, so that no method pays for what the hypervisor took back before it.

    A virtual machine with free page reporting returns free memory to its host after about two
    seconds; touching it again then costs up to eight times as much. Without this, whoever runs
    after a pause pays for all.
    """
    if not nbytes:
        return
    with mmap.mmap(-1, nbytes) as memory:
        memory.madvise(mmap.MADV_HUGEPAGE)
        first = ctypes.c_char.from_buffer(memory)
        ctypes.memset(ctypes.addressof(first), 1, nbytes)
        del first


def trim_heap() -> None:
    """Give memory that was freed back to the system, as far as glibc lets it go.

    Between two saves of a training lies an hour, in which others use what the first one has freed;
    here it is a second. Whether the heap then still holds it for the next one depends on what else
    was allocated: it changes from run to run.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:  # other C libraries have none
        trim(0)


def remove(path: Path) -> None:
    """Remove a file or a directory, if it is there, and let the drive come to rest.

    Freed blocks are discarded in the next journal commit; without the sync, that would be charged
    to whoever syncs next.
    """
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    os.sync()


def sync_directory(path: Path) -> None:
    """Make the entries of a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_file(path: Path) -> None:
    """Make a file and its name durable, as somebody would after ``torch.save``."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
    sync_directory(path.parent)


def regular_files(path: Path) -> list[Path]:
    """List a file, or the files below a directory."""
    return sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]


def evict(path: Path) -> None:
    """Drop a file, or all files of a directory, from the page cache.

    Raises:
        RuntimeError: More than 1 % of it stayed.
    """
    for file in regular_files(path):
        with _descriptor(file) as fd:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        if resident_share(file) > _CLEAN_SHARE:
            with contextlib.suppress(OSError):  # root only
                _DROP_CACHES.write_text("1")
        left = resident_share(file)
        if left > _CLEAN_SHARE:
            raise RuntimeError(
                f"{left:.0%} of {file.name} stays in the page cache, so a cold load can't be "
                "measured. Use a disk and not tmpfs (--dir), or run as root."
            )


def warm(path: Path) -> None:
    """Read a file, or all files of a directory, into the page cache."""
    for file in regular_files(path):
        with file.open("rb", buffering=0) as source:
            while source.read(16 << 20):
                pass


def resident_share(path: Path) -> float:
    """Give the share of a file's pages that are in the page cache."""
    nbytes = path.stat().st_size
    if not nbytes:
        return 0.0
    with (
        _descriptor(path) as fd,
        mmap.mmap(
            fd, nbytes, prot=mmap.PROT_READ | mmap.PROT_WRITE, flags=mmap.MAP_PRIVATE
        ) as mapped,
    ):
        num_pages = -(-nbytes // mmap.PAGESIZE)
        pages = (ctypes.c_ubyte * num_pages)()
        first = ctypes.c_char.from_buffer(mapped)
        address = ctypes.c_void_p(ctypes.addressof(first))
        failed = ctypes.CDLL(None, use_errno=True).mincore(address, ctypes.c_size_t(nbytes), pages)
        del first
        if failed:
            raise OSError(ctypes.get_errno(), "mincore failed")
        return sum(page & 1 for page in bytes(pages)) / num_pages


@contextlib.contextmanager
def _descriptor(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY)
    try:
        yield fd
    finally:
        os.close(fd)
