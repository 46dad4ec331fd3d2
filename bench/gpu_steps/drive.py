"""The drive's own rates: direct I/O from several threads, without anything else."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

BLOCK_BYTES = 16 << 20
NUM_THREADS = 8


def write_rate(path: Path, nbytes: int) -> float:
    """Give GB/s of a new file written by direct I/O, fdatasync included."""
    started = time.perf_counter()
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_DIRECT, 0o600)
    try:
        os.posix_fallocate(fd, 0, nbytes)
        _in_threads(nbytes, lambda block, offset: os.pwrite(fd, block, offset))
        os.fdatasync(fd)
    finally:
        os.close(fd)
    return round(nbytes / (time.perf_counter() - started) / 1e9, 2)


def read_rate(path: Path) -> float:
    """Give GB/s of a file read by direct I/O; its size is a multiple of a block."""
    nbytes = path.stat().st_size // BLOCK_BYTES * BLOCK_BYTES
    started = time.perf_counter()
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        _in_threads(nbytes, lambda block, offset: os.preadv(fd, [block], offset))
    finally:
        os.close(fd)
    return round(nbytes / (time.perf_counter() - started) / 1e9, 2)


def _in_threads(nbytes: int, work: Callable[[mmap.mmap, int], int]) -> None:
    def lane(number: int) -> None:
        block = mmap.mmap(-1, BLOCK_BYTES)
        block.write(os.urandom(1 << 20) * (BLOCK_BYTES >> 20))
        for offset in range(number * BLOCK_BYTES, nbytes, NUM_THREADS * BLOCK_BYTES):
            if work(block, offset) != BLOCK_BYTES:
                raise OSError(f"short transfer at offset {offset}")

    with ThreadPoolExecutor(NUM_THREADS) as pool:
        list(pool.map(lane, range(NUM_THREADS)))
