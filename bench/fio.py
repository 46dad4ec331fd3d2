"""The limit: what the drive itself gives, by fio, or by a naive loop where fio is missing."""

from __future__ import annotations

import json
import mmap
import os
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from bench.measure import Method, OwnClock


@dataclass(frozen=True, slots=True)
class FioOptions:
    """How fio is asked.

    Attributes:
        ioengine: Name of its I/O engine.
        iodepth: Requests in flight.
        block_bytes: Bytes of one request.
    """

    ioengine: str = "libaio"
    iodepth: int = 4
    block_bytes: int = 16 << 20


def version() -> str | None:
    """Give the version of fio, or None where it is not installed."""
    if shutil.which("fio") is None:
        return None
    shown = subprocess.run(["fio", "--version"], capture_output=True, text=True, check=True)
    return shown.stdout.strip()


def limit_name(what: str) -> str:
    """Name the method that sets the limit, and say by what."""
    return f"fio direct {what}" if version() else f"naive direct {what} (no fio)"


def write_method(path: Path, nbytes: int, options: FioOptions) -> Method:
    """Give the method that writes a new file of ``nbytes`` and syncs it."""
    if version() is None:
        run = lambda: _loop_write(path, nbytes, options.block_bytes)  # noqa: E731 - two of a kind
    else:
        run = lambda: _fio("write", path, nbytes, options)  # noqa: E731
    return Method(limit_name("write"), run, path)


def read_method(path: Path, options: FioOptions) -> Method:
    """Give the method that reads the whole of an existing file."""
    if version() is None:
        run = lambda: _loop_read(path, options.block_bytes)  # noqa: E731
    else:
        run = lambda: _fio("read", path, path.stat().st_size, options)  # noqa: E731
    return Method(limit_name("read"), run, path)


def command(what: str, path: Path, nbytes: int, options: FioOptions) -> list[str]:
    """Build fio's command line; a request is no larger than the file."""
    block_bytes = min(options.block_bytes, max(4096, nbytes // 4096 * 4096))
    return [
        "fio",
        "--name=limit",
        f"--filename={path}",
        f"--size={nbytes}",
        f"--rw={what}",
        "--direct=1",
        f"--bs={block_bytes}",
        f"--ioengine={options.ioengine}",
        f"--iodepth={options.iodepth}",
        *(["--end_fsync=1"] if what == "write" else ["--readonly"]),
        "--output-format=json",
    ]


class ThrottledWrite:
    """fio, as it writes a new file at a rate that is not its own, in the background.

    Args:
        path: The file.
        nbytes: Its size.
        bytes_per_s: The rate.
        options: How fio is asked.
    """

    def __init__(self, path: Path, nbytes: int, bytes_per_s: float, options: FioOptions) -> None:
        path.unlink(missing_ok=True)
        self._nbytes = nbytes
        words = [*command("write", path, nbytes, options), f"--rate={int(bytes_per_s)}"]
        # By a thread, so that the process has the count of what was written.
        self._process = subprocess.Popen(
            [*words, "--thread"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._io = Path(f"/proc/{self._process.pid}/io")

    def wait_until_begun(self) -> None:
        """Wait for its first write: its start alone takes a third of a second."""
        while self._process.poll() is None and not self._written_bytes():
            time.sleep(0.001)

    def is_over(self) -> bool:
        """Tell whether it has written all; its end takes time, too."""
        return self._process.poll() is not None or self._written_bytes() >= self._nbytes

    def before_optimizer(self) -> None:
        """Let the training go on; fio reads nothing of it."""

    def finish(self) -> float:
        """Wait for it, and give the bytes per second that it reached."""
        out, error = self._process.communicate()
        if self._process.returncode:
            raise RuntimeError(f"fio failed: {error.strip() or out.strip()}")
        found = _of_job(out, "write")
        return found.nbytes / found.seconds

    def _written_bytes(self) -> int:
        try:
            lines = self._io.read_text().splitlines()
        except OSError:  # it has ended
            return self._nbytes
        counts = dict(line.split(": ") for line in lines)
        return int(counts.get("write_bytes", self._nbytes))


def _fio(what: str, path: Path, nbytes: int, options: FioOptions) -> OwnClock:
    done = subprocess.run(
        command(what, path, nbytes, options), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"fio failed: {done.stderr.strip() or done.stdout.strip()}")
    return _of_job(done.stdout, what)


def _of_job(out: str, what: str) -> OwnClock:
    job = json.loads(out[out.index("{") :])["jobs"][0]
    return OwnClock(seconds=job[what]["runtime"] / 1000, nbytes=job[what]["io_bytes"])


def _loop_write(path: Path, nbytes: int, block_bytes: int) -> OwnClock:
    """Write one block after the other; sizes are rounded up to whole pages."""
    block = mmap.mmap(-1, block_bytes)
    block.write(os.urandom(min(block_bytes, 1 << 20)))
    started = time.perf_counter()
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_DIRECT, 0o666)
    try:
        done = 0
        while done < nbytes:
            rest = min(block_bytes, nbytes - done)
            done += os.pwrite(fd, memoryview(block)[: -(-rest // 4096) * 4096], done)
        os.fsync(fd)
    finally:
        os.close(fd)
    return OwnClock(time.perf_counter() - started, done)


def _loop_read(path: Path, block_bytes: int) -> OwnClock:
    block = mmap.mmap(-1, block_bytes)
    started = time.perf_counter()
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        done = 0
        while got := os.preadv(fd, [block], done):
            done += got
            if got % 4096:  # the end of the file
                break
    finally:
        os.close(fd)
    return OwnClock(time.perf_counter() - started, done)
