"""Run one transfer in a process of its own; see what it costs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from bench.remote_child import BEGIN, END
from bench.remote_clients.base import REGION, Command, Job, Method
from bench.remote_servers import REPOSITORY

TIMEOUT_S = 300.0
_INTERVAL_S = 0.005


class RunFailed(RuntimeError):
    """A client did not move the bytes; says why."""


@dataclass(frozen=True, slots=True)
class RemoteSample:
    """What one transfer took.

    Attributes:
        seconds: Wall time until the client was done.
        sync_s: Wall time until the file was on the drive after that; 0 for other transfers.
        user_s: Processor time of the client in user mode.
        system_s: In the kernel.
        private_bytes: Largest private memory (anonymous and shared without a file) while it ran.
        private_before_bytes: The same when it began: interpreter and imports; 0 for programs.
        rss_bytes: Largest resident memory, pages of mapped files included.
    """

    seconds: float
    sync_s: float
    user_s: float
    system_s: float
    private_bytes: int
    private_before_bytes: int
    rss_bytes: int

    @property
    def cpu_s(self) -> float:
        """Processor time of the client."""
        return self.user_s + self.system_s


class Memory(threading.Thread):
    """Watches the private memory of a process from outside, so that watching costs it nothing.

    Args:
        pid: The process.
        is_shmem_private: Count shared memory without a file, which ``mmap.mmap(-1, n)`` is; not
            where the files lie in memory too, since their pages could not be told from it.

    Source: proc(5), /proc/pid/status: RssAnon, RssShmem.
    """

    def __init__(self, pid: int, *, is_shmem_private: bool) -> None:
        super().__init__(daemon=True)
        self._path = Path(f"/proc/{pid}/status")
        self._keys = ("RssAnon:", "RssShmem:") if is_shmem_private else ("RssAnon:",)
        self._stopped = threading.Event()
        self.peak_bytes = 0
        self.before_bytes = 0

    def begin(self) -> None:
        """Forget what was before: the transfer begins."""
        self.before_bytes = self.peak_bytes = self._private_bytes()

    def stop(self) -> None:
        """End the watch, if it was begun."""
        self._stopped.set()
        if self.is_alive():
            self.join()

    def run(self) -> None:
        """Look until the process is gone."""
        while not self._stopped.wait(_INTERVAL_S):
            self.peak_bytes = max(self.peak_bytes, self._private_bytes())

    def _private_bytes(self) -> int:
        try:
            lines = self._path.read_text().splitlines()
        except OSError:
            return 0
        return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(self._keys))


def environment_of(job: Job, keys: Mapping[str, str]) -> dict[str, str]:
    """Give the environment of a client: no proxies, no configuration of the user's.

    Args:
        job: What it does.
        keys: Environment with the credentials.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.upper().endswith("_PROXY") and not name.startswith(("AWS_", "RCLONE_"))
    }
    trust = {"AWS_CA_BUNDLE": job.ca_file, "SSL_CERT_FILE": job.ca_file} if job.ca_file else {}
    return {
        **kept,
        **trust,
        **keys,
        "AWS_REGION": REGION,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
        # boto3 as `pip install boto3` gives it, although awscrt is here to be compared too.
        "BOTO_DISABLE_CRT": "true",
        "PYTHONPATH": str(REPOSITORY),
    }


def measure(
    method: Method, job: Job, keys: Mapping[str, str], *, is_shmem_private: bool
) -> RemoteSample:
    """Run a client once.

    Raises:
        RunFailed: It failed, or took longer than ``TIMEOUT_S``.
    """
    environ = environment_of(job, keys)
    if method.is_command:
        sample = _run_command(_command_of(job), environ, is_shmem_private)
    else:
        sample = _run_child(job, environ, is_shmem_private)
    return _synced(sample, Path(job.path)) if job.what == "download" else sample


def _command_of(job: Job) -> Command:
    module, _, function = job.target.partition(":")
    command = getattr(import_module(f"bench.remote_clients.{module}"), function)(job)
    assert isinstance(command, Command)
    return command


def _run_command(
    command: Command, environ: Mapping[str, str], is_shmem_private: bool
) -> RemoteSample:
    started = time.perf_counter()
    process = subprocess.Popen(
        command.argv,
        env={**environ, **command.env},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    memory = Memory(process.pid, is_shmem_private=is_shmem_private)
    memory.start()
    killer = threading.Timer(TIMEOUT_S, process.kill)
    killer.start()
    output: list[bytes] = []
    _drain(process, output)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    killer.cancel()
    process.returncode = os.waitstatus_to_exitcode(status)
    memory.stop()
    if process.returncode:
        raise RunFailed(_reason(process.returncode, output))
    return RemoteSample(
        seconds=seconds,
        sync_s=0.0,
        user_s=usage.ru_utime,
        system_s=usage.ru_stime,
        private_bytes=memory.peak_bytes,
        private_before_bytes=0,
        rss_bytes=usage.ru_maxrss * 1024,
    )


def _run_child(job: Job, environ: Mapping[str, str], is_shmem_private: bool) -> RemoteSample:
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.remote_child", job.to_json()],
        env=environ,
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    memory = Memory(process.pid, is_shmem_private=is_shmem_private)
    killer = threading.Timer(TIMEOUT_S, process.kill)
    killer.start()
    errors: list[bytes] = []
    reader = threading.Thread(target=_drain, args=(process, errors))
    reader.start()
    found: dict[str, Any] = {}
    there = 0
    for raw in process.stdout or ():
        line = raw.decode(errors="replace")
        if line.startswith(BEGIN):
            there = int(line.removeprefix(BEGIN))
            memory.begin()
            memory.start()
        elif line.startswith(END):
            memory.stop()
            found = json.loads(line.removeprefix(END))
    reader.join()
    status = process.wait()
    if process.stdout:
        process.stdout.close()
    killer.cancel()
    memory.stop()
    if status or not found:
        raise RunFailed(_reason(status, errors))
    return RemoteSample(
        seconds=found["seconds"],
        sync_s=0.0,
        user_s=found["user_s"],
        system_s=found["system_s"],
        private_bytes=memory.peak_bytes - there,
        private_before_bytes=memory.before_bytes - there,
        rss_bytes=found["rss_peak"] - there,
    )


def _synced(sample: RemoteSample, path: Path) -> RemoteSample:
    """Add what it takes to have the file on the drive, for those that leave that to others."""
    fd = os.open(path, os.O_RDONLY)
    try:
        before, started = time.thread_time(), time.perf_counter()
        os.fsync(fd)
        sync_s, cpu_s = time.perf_counter() - started, time.thread_time() - before
    finally:
        os.close(fd)
    return replace(sample, sync_s=sync_s, system_s=sample.system_s + cpu_s)


def _drain(process: subprocess.Popen[bytes], into: list[bytes]) -> None:
    if process.stderr:
        with process.stderr as stream:
            into.append(stream.read())


def _reason(status: int, output: list[bytes]) -> str:
    text = b"".join(output).decode(errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f"status {status}: {lines[-1][-300:]}" if lines else f"status {status}"
