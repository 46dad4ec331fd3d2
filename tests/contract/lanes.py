"""Lanes: an engine, and memory of the kind that it is tested with; used in the tests' processes."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import random
import zlib
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from fake_cuda.driver import Driver
from fake_cuda.stand_ins import FakeCuda, FakeCufile
from memories import FakeMemory, GpuMemory, HostMemory, read_gpu

from gdsckpt import native
from gdsckpt.engine import base
from gdsckpt.engine.base import Extent
from gdsckpt.engine.cufile import CuFileEngine
from gdsckpt.engine.kvikio import KvikioEngine
from gdsckpt.engine.kvikio_library import load_library
from gdsckpt.engine.pinned import PinnedEngine
from gdsckpt.errors import EngineUnavailableError

FAKE_LANES = ("pinned", "cufile", "real-cufile", "kvikio")
"""Lanes over the stand-in for libcuda."""

LEFTOVERS = (
    *(f"live.{name}" for name in ("streams", "events", "modules", "host_registrations")),
    *(f"live.{name}" for name in ("host_allocations", "handles", "buffers", "use_count")),
    *("unmapped_while_registered", "copies_of_unregistered_memory", "copies_in_wrong_context"),
    *("transfers_in_wrong_context", "handles_left_at_close", "buffers_left_at_close"),
    *("deregistered_twice", "deregistered_in_flight"),
)
"""What the stand-ins count that has to be 0 in the end."""

CUFILE_LANES = ("cufile", "real-cufile", "gpu-cufile")

KVIKIO_KEEPS = ("live.streams", "live.host_registrations", "live.host_allocations")
"""What of ``LEFTOVERS`` KvikIO keeps until the process ends.

It has a stream for each thread and context that it ever copied in, and pools of buffers that never
shrink: registered ones for direct I/O, allocated ones for the page cache.
"""

KiB = 1024
MiB = 1024 * KiB

_NOISE = random.Random(1).randbytes(8 * 1024 * 1024)


def pattern(nbytes: int, seed: int = 0) -> bytes:
    """Give bytes that differ from place to place and from seed to seed; at most 7 MiB."""
    begin = seed * 4099 % (1024 * 1024)
    return _NOISE[begin : begin + nbytes]


class HostChecksums:
    """What ``gdsckpt.kernels`` does on a GPU, by the host: kernels are tested elsewhere."""

    def __init__(self, read: Callable[[int, int, int], bytes]) -> None:
        self._read = read

    def crc32_pieces(
        self, pieces: array[int], device: int, *, stream: int | None = None
    ) -> array[int]:
        """Give the CRC-32 of each (address, nbytes), after the work of a stream."""
        if stream is not None:
            native.cuda_wait(array("Q", [device, stream]))
        rows = zip(pieces[::2], pieces[1::2], strict=True)
        return array("I", [zlib.crc32(self._read(device, address, n)) for address, n in rows])


@dataclass
class Lane:
    """What a test of the contract is given.

    Attributes:
        name: See ``conftest.py``.
        directory: For files.
        cuda: Libcuda's stand-in, or None.
        cufile: Libcufile's stand-in, or None.
    """

    name: str
    directory: Path
    cuda: FakeCuda | None = None
    cufile: FakeCufile | None = None
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _files: int = 0

    @property
    def is_on_device(self) -> bool:
        """Whether memory is a device's."""
        return self.name != "host"

    @property
    def chunk_bytes(self) -> int:
        """Bytes of a chunk; cuFile and KvikIO get nothing of small ones."""
        return 512 * KiB if self.name in (*CUFILE_LANES, "kvikio") else 64 * KiB

    @functools.cached_property
    def driver(self) -> Driver:
        """Libcuda as another user of CUDA in the process has it."""
        made = Driver(self.cuda)
        self._stack.callback(made.destroy)
        return made

    def engine(
        self, *, io_threads: int = 4, num_slabs: int = 4, slab_bytes: int | None = None
    ) -> base.Engine:
        """Make an engine of the lane's; it is closed with the lane."""
        if "GDSCKPT_LIBCUDA" in os.environ:
            native.cuda_load(os.environ["GDSCKPT_LIBCUDA"])
        sizes = {
            "io_threads": io_threads,
            "slab_bytes": slab_bytes or max(256 * KiB, self.chunk_bytes),
            "num_slabs": num_slabs,
        }
        if self.name in CUFILE_LANES:
            self.open_cufile()
            made = CuFileEngine(**sizes, checksums=HostChecksums(self.read_device))
        else:
            made = PinnedEngine(**sizes)
        if self.name == "kvikio":
            library = load_library(needs_kernels=False)
            made = KvikioEngine(made, library, HostChecksums(self.read_device))
        self._stack.callback(self.close_engine, made)
        return made

    def read_device(self, device: int, address: int, nbytes: int) -> bytes:
        """Give bytes of device memory."""
        if self.cuda is None:
            return read_gpu(device, address, nbytes)
        return self.cuda.peek(address, nbytes)

    def open_cufile(self) -> None:
        """Open libcufile's driver, as the choice of the engine would have done."""
        native.cufile_load([os.environ["GDSCKPT_LIBCUFILE"]])
        # The real one may be without a GPU, or without a way from it to the drive.
        try:
            native.cufile_open(allow_compat_mode=self.cufile is None, modules_path="/")
        except EngineUnavailableError as error:
            if self.name == "gpu-cufile":
                pytest.skip(f"libcufile does not open here: {error}")
            raise
        self._stack.callback(native.cufile_close)

    @staticmethod
    def close_engine(engine: base.Engine) -> None:
        """Close an engine as the end of the process does."""
        if isinstance(engine, KvikioEngine):
            engine.close()
            engine = engine.pinned
        engine._native.close()

    def memory(self, data: bytes, offset: int = 0, device: int = 0, kind: str = "device"):
        """Make memory that holds ``data`` and stays until the lane is closed."""
        if not self.is_on_device:
            made = HostMemory(data, offset)
        elif self.cuda is None:
            made = GpuMemory(data, offset, device)
        else:
            made = FakeMemory(self.cuda, data, offset, device, kind)
        self._stack.callback(lambda: made)
        return made

    def file(self, content: bytes | None = None, *, direct: bool = True) -> native.File:
        """Open a file of the lane's directory, for reading where it has ``content``."""
        self._files += 1
        path = self.directory / f"file-{self._files}"
        if content is not None:
            path.write_bytes(content)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        fds = [os.open(path, flags)]
        alignment = native.direct_alignment(fds[0]) if direct else 0
        if alignment:
            fds.append(os.open(path, flags | os.O_DIRECT))
        try:
            made = native.File(str(path), fds[0], fds[-1] if alignment else -1, alignment or 4096)
        finally:
            for fd in fds:
                os.close(fd)
        self._stack.callback(made.close)
        return made

    def write(self, engine, file, extents, *, streams=base.NO_STREAMS, owner=None, **options):
        """Start to write."""
        options.setdefault("chunk_bytes", self.chunk_bytes)
        rows = base.pack_extents(extents)
        return engine.write(file, rows, streams=streams, owner=owner, **options)

    def read(self, engine, file, extents, *, streams=base.NO_STREAMS, owner=None):
        """Start to read."""
        return engine.read(file, base.pack_extents(extents), streams=streams, owner=owner)

    def chunk_crcs_of(self, content: bytes, begin: int = 0) -> list[int]:
        """Give the CRC-32 of each chunk of a file range, by zlib."""
        end, step = begin + len(content), self.chunk_bytes
        cuts = [begin, *range((begin // step + 1) * step, end, step), end]
        return [zlib.crc32(content[a - begin : b - begin]) for a, b in itertools.pairwise(cuts)]

    def close(self) -> None:
        """Close what was opened, the last first."""
        self._stack.close()

    def require_nothing_left(self, *, except_for: Sequence[str] = ()) -> None:
        """Check that all has been given back, when the engines are closed, and nothing misused."""
        for library in (self.cuda, self.cufile):
            if library is None:
                continue
            # The real libcufile unlocks its own pages in a thread without a context, which fails.
            names = [n for n in LEFTOVERS if self.name != "real-cufile" or "host" not in n]
            kept = (*except_for, *(KVIKIO_KEEPS if self.name == "kvikio" else ()))
            left = {n: library.stat(n) for n in names if library.stat(n) and n not in kept}
            if left:
                raise AssertionError(f"left over or misused: {left}")


@contextlib.contextmanager
def open_lane(name: str, directory: Path):
    """Open a lane for one test."""
    lane = Lane(name, directory)
    if name in FAKE_LANES:
        kinds = (
            {"cuda": FakeCuda}
            if name == "real-cufile"
            else {"cuda": FakeCuda, "cufile": FakeCufile}
        )
        for library, kind in kinds.items():
            path = os.environ[f"GDSCKPT_LIB{library.upper()}"]
            if Path(path).exists():
                setattr(lane, library, kind(path))
    with contextlib.closing(lane):
        yield lane


def extent(memory, file_offset: int = 0, crc_offset: int = native.NO_CRC_SLOT) -> Extent:
    """Give the extent of a whole memory."""
    return Extent(memory.address, memory.nbytes, file_offset, crc_offset, memory.device)


def part(memory, begin: int, nbytes: int, file_offset: int) -> Extent:
    """Give the extent of a part of a memory."""
    return Extent(memory.address + begin, nbytes, file_offset, native.NO_CRC_SLOT, memory.device)


def crcs(raw: bytes) -> list[int]:
    """Unpack what a transfer gives."""
    return list(array("I", raw))


def finish(transfer: native.Transfer) -> native.Transfer:
    """Wait for a transfer, and raise what went wrong."""
    base.wait(transfer)
    return transfer


def drop_cache(file: native.File) -> None:
    """Have the next reader of a file go to the drive."""
    with Path(file.path).open("rb") as stream:
        os.fsync(stream.fileno())
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def error_of(kind: type[Exception], call: Callable[..., object], *arguments: object) -> Exception:
    """Give the error of a call that has to fail, without the frames that hold its transfer."""
    try:
        call(*arguments)
    except kind as error:
        return error.with_traceback(None)
    raise AssertionError(f"no {kind.__name__} was raised")


def may_leave(test):
    """Mark a test whose faults keep something from being given back."""
    test.may_leave = True
    return test


def content_of(file: native.File) -> bytes:
    """Give what stands in a file."""
    return Path(file.path).read_bytes()


def wait_for_calls(cuda: FakeCuda, function: str, num_calls: int) -> None:
    """Wait until a function has been called so often; a call that never comes is a hang."""
    while cuda.calls(function) < num_calls:
        os.sched_yield()


def require_clean(lane: Lane, engine: base.Engine) -> None:
    """Check that nothing is left of transfers, nor of their engine once it is closed."""
    lane.cuda("clear")
    lane.close_engine(engine)  # its threads may hold a transfer a little longer than its user
    lane.require_nothing_left(except_for=("live.handles", "live.use_count"))


def written(lane: Lane, engine: base.Engine, file: native.File, memory, **options):
    """Write a memory, check the file and the checksums, and give the transfer."""
    transfer = finish(lane.write(engine, file, [extent(memory)], **options))
    assert content_of(file) == memory.data()
    assert crcs(transfer.extent_crcs()) == [zlib.crc32(memory.data())]
    assert crcs(transfer.chunk_crcs()) == lane.chunk_crcs_of(memory.data())
    return transfer
