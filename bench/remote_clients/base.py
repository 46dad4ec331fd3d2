"""What a client is given to do, and how a run of it is described."""

from __future__ import annotations

import dataclasses
import json
import mmap
import os
import shutil
import sys
import zlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

REGION = "us-east-1"

Range = tuple[int, int]
"""First byte and the one after the last."""


@dataclass(frozen=True, slots=True)
class Job:
    """One transfer.

    Attributes:
        target: ``module:function`` that prepares it.
        what: ``upload``, ``download`` to a file, or ``memory``: download into memory that is there.
        endpoint: URL of the server.
        bucket: Bucket.
        key: Object to write, or to read.
        path: File to send, or to write; for ``memory`` the file that holds the same bytes.
        nbytes: Size of the object.
        part_bytes: Part size for clients that can be told.
        streams: Concurrency for clients that can be told.
        ca_file: Certificate to trust; empty for plain HTTP.
    """

    target: str
    what: str
    endpoint: str
    bucket: str
    key: str
    path: str
    nbytes: int
    part_bytes: int
    streams: int
    ca_file: str = ""

    @property
    def url(self) -> str:
        """The object as ``s3://bucket/key``."""
        return f"s3://{self.bucket}/{self.key}"

    @property
    def is_tls(self) -> bool:
        """Whether the server speaks TLS."""
        return self.endpoint.startswith("https:")

    @property
    def host(self) -> str:
        """Host and port of the server."""
        return self.endpoint.partition("://")[2]

    @property
    def port(self) -> int:
        """Port of the server."""
        return int(self.host.rpartition(":")[2])

    def ranges(self) -> list[Range]:
        """Cut the object into parts."""
        starts = range(0, self.nbytes, self.part_bytes)
        return [(begin, min(begin + self.part_bytes, self.nbytes)) for begin in starts]

    def to_json(self) -> str:
        """Write it as one line."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Job:
        """Read what ``to_json`` wrote."""
        return cls(**json.loads(text))


@dataclass(frozen=True, slots=True)
class Command:
    """A client that is a program: its whole process is measured, with its start.

    Attributes:
        argv: Program and arguments.
        env: Added to the environment.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Transfer:
    """A client that is a library: ``run`` is measured, in a process of its own, imports excluded.

    Attributes:
        run: Moves the bytes, once.
        destination_bytes: Memory that is there for the result: no cost of the client.
        check: Raises where the bytes that came are not those of the object.
    """

    run: Callable[[], object]
    destination_bytes: int = 0
    check: Callable[[], None] | None = None


@dataclass(frozen=True, slots=True)
class Method:
    """One row of a table.

    Attributes:
        name: For the table.
        target: ``module:function`` in this package; takes a Job, gives a Transfer or a Command.
        package: Distribution that has to be installed; empty for none.
        what: ``upload``, ``download`` or ``memory``.
        settings: What differs from the client's defaults, in words.
        is_command: It gives a Command.
        is_floor: No client at all, but what the kernel asks for: a limit, and no peer.
    """

    name: str
    target: str
    package: str
    what: str
    settings: str
    is_command: bool = False
    is_floor: bool = False

    @property
    def is_peer(self) -> bool:
        """Whether it is somebody else's client."""
        return not self.is_floor and not self.target.startswith("ours:")


def in_threads(job: Job, move: Callable[[Range], object]) -> None:
    """Call ``move`` for all parts, ``job.streams`` at a time, and raise what it raised."""
    with ThreadPoolExecutor(job.streams) as pool:
        for _ in pool.map(move, job.ranges()):
            pass


def touched_memory(nbytes: int) -> memoryview:
    """Give private memory whose pages are all there, in huge pages where the kernel gives them."""
    mapped = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    mapped.madvise(mmap.MADV_HUGEPAGE)
    memory = memoryview(mapped)
    for offset in range(0, nbytes, mmap.PAGESIZE):
        memory[offset] = 1
    return memory


def into_memory(job: Job, destination: memoryview, run: Callable[[], object]) -> Transfer:
    """Describe a transfer of the whole object into ``destination``."""

    def check() -> None:
        expected = 0
        with Path(job.path).open("rb") as file:
            while block := file.read(1 << 20):
                expected = zlib.crc32(block, expected)
        if zlib.crc32(destination) != expected:
            raise RuntimeError("the bytes that came are not those of the object")

    return Transfer(run, destination.nbytes, check)


def new_file(path: str, nbytes: int) -> int:
    """Open a new file of the given size for writing; gives the descriptor."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    os.truncate(fd, nbytes)
    return fd


def program(name: str) -> str:
    """Give the path of a program of this environment, or of the machine.

    Raises:
        FileNotFoundError: It is not installed.
    """
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if found is None:
        raise FileNotFoundError(f"there is no program {name}")
    return found
