"""A cuFile engine over the stand-ins, for the tests of test_engine_cufile.py in their processes."""

from __future__ import annotations

import ctypes
import functools
import os
import subprocess
import sys
import zlib
from array import array
from pathlib import Path

from fake_cuda import stand_ins
from fake_cuda.driver import Driver

from gdsckpt import native
from gdsckpt.engine import base
from gdsckpt.engine.base import Extent
from gdsckpt.engine.cufile import CuFileEngine

ROOT = Path(__file__).parents[2]
MiB = 1 << 20
CHUNK_BYTES = MiB
LARGE = 3 * MiB
MODULES = "/proc/self/status"
"""There on every kernel, unlike /proc/modules, which the stand-in does not read."""


def in_child(**environment):
    """Run a test function in a process of its own, whose libraries are the stand-ins.

    Args:
        environment: As for ``stand_ins.environment``.
    """

    def decorate(function):
        @functools.wraps(function)
        def run(**arguments):
            if os.environ.get("CUFILE_BENCH") == function.__name__:
                return function(**arguments)
            # What is registered before gdsckpt is imported runs after its own last steps.
            code = (
                "import atexit, cufile_last; atexit.register(cufile_last.run); "
                f"from pathlib import PosixPath; import {function.__module__} as tests; "
                f"tests.{function.__name__}(**{arguments!r})"
            )
            paths = (ROOT, ROOT / "tests", ROOT / "tests" / "unit")
            variables = {
                **os.environ,
                **stand_ins.environment(**environment),
                "CUFILE_BENCH": function.__name__,
                "PYTHONPATH": os.pathsep.join(map(str, paths)),
                "OMP_NUM_THREADS": "1",
            }
            command = [sys.executable, "-X", "faulthandler", "-W", "error", "-c", code]
            done = subprocess.run(
                command, env=variables, capture_output=True, text=True, timeout=100, check=False
            )
            assert done.returncode == 0, done.stdout + done.stderr
            return None

        return run

    return decorate


def pattern(nbytes, seed=1):
    """Give bytes that differ from place to place and from seed to seed."""
    unit = bytes((i * 7 + i // 251 + seed * 13) % 256 for i in range(65521))
    return (unit * (nbytes // len(unit) + 1))[:nbytes]


class Checksums:
    """Checksums of the stand-in's memory, in the place of the kernels."""

    def __init__(self):
        self.calls = []

    def crc32_pieces(self, pieces, device, *, stream=None):
        """Give the CRC-32 of each piece, after what is queued on ``stream``."""
        self.calls.append((device, stream, len(pieces) // 2))
        producers = base.NO_STREAMS if stream is None else array("Q", [device, stream])
        crcs = array("I")
        for address, nbytes in zip(pieces[::2], pieces[1::2], strict=True):
            room = ctypes.create_string_buffer(nbytes)
            native.cuda_copy_to_host(
                ctypes.addressof(room), device, address, nbytes, streams=producers
            )
            crcs.append(zlib.crc32(room.raw))
        return crcs


class Bench:
    """Stand-ins, an engine and files in ``directory``."""

    def __init__(self, directory, *, is_open=True, checksums=None, **options):
        both = stand_ins.StandIns.loaded()
        self.cuda, self.cufile = both.cuda, both.cufile
        self.directory = directory
        self.checksums = checksums or Checksums()
        assert native.cuda_load(os.environ["GDSCKPT_LIBCUDA"]) == ""
        assert native.cufile_load([os.environ["GDSCKPT_LIBCUFILE"]]) == ""
        if is_open:
            native.cufile_open(modules_path=MODULES, **options)
        self.engine = CuFileEngine(
            io_threads=4, slab_bytes=CHUNK_BYTES, num_slabs=4, checksums=self.checksums
        )
        self.path = directory / "file"

    @property
    def driver(self):
        """Libcuda as another user in the process has it."""
        return Driver(self.cuda)

    def memory(self, data, *, device=0, kind="device", shift=0):
        """Make device memory that holds ``data``; gives its address."""
        address = self.cuda.alloc(len(data) + shift, device, kind) + shift
        self.cuda.poke(address, data)
        return address

    def open(self):
        """Open the file for a transfer."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        fds = [os.open(self.path, flags), os.open(self.path, flags | os.O_DIRECT)]
        file = native.File(str(self.path), *fds, native.direct_alignment(fds[0]))
        for fd in fds:
            os.close(fd)
        return file

    def forget_pages(self):
        """Drop what the page cache has of the file."""
        fd = os.open(self.path, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)

    def write(self, file, extents, *, streams=base.NO_STREAMS):
        """Start to write."""
        rows = base.pack_extents(extents)
        return self.engine.write(file, rows, chunk_bytes=CHUNK_BYTES, streams=streams, owner=None)

    def read(self, file, extents):
        """Start to read."""
        rows = base.pack_extents(extents)
        return self.engine.read(file, rows, streams=base.NO_STREAMS, owner=None)

    def save(self, data, **options):
        """Write device memory to the file, from offset 0; gives the file and the transfer."""
        file = self.open()
        address = self.memory(data, **options)
        transfer = self.write(
            file, [Extent(address, len(data), 0, device=options.get("device", 0))]
        )
        return file, transfer

    def check(self, transfer, *pieces):
        """Wait; the file must hold ``pieces``, and the checksums must be theirs."""
        base.wait(transfer)
        content = b"".join(pieces)
        assert self.path.read_bytes() == content
        chunks = range(0, len(content), CHUNK_BYTES)
        assert crcs(transfer.chunk_crcs()) == [
            zlib.crc32(content[begin : begin + CHUNK_BYTES]) for begin in chunks
        ]
        assert crcs(transfer.extent_crcs()) == [zlib.crc32(piece) for piece in pieces]


def crcs(raw):
    """Unpack what a transfer gives."""
    return list(array("I", raw))


def spin_until(is_true):
    """Wait for another thread."""
    while not is_true():
        os.sched_yield()


def address_of(room):
    """Give the address of a bytearray."""
    return ctypes.addressof(ctypes.c_char.from_buffer(room))


class KnownChecksums(Checksums):
    """Those of what the memory will hold, without a look at it."""

    def __init__(self, data):
        super().__init__()
        self.crc = zlib.crc32(data)

    def crc32_pieces(self, pieces, device, *, stream=None):
        """Give the same one for each."""
        return array("I", [self.crc] * (len(pieces) // 2))


def written(bench, data):
    """Have the file hold ``data``, and the page cache none of it."""
    bench.path.write_bytes(data)
    bench.forget_pages()
