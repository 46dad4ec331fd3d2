"""Runs code over the stand-ins of CUDA and cuFile, for the tests of the kvikio engine."""

import os
import subprocess
import sys
from pathlib import Path

from fake_cuda import stand_ins

TESTS = Path(__file__).parents[1]

PRELUDE = """
import errno, os, random, threading, warnings, zlib
from array import array
from pathlib import Path

warnings.simplefilter("ignore")  # each load of a stand-in is told
from fake_cuda.driver import Driver
from fake_cuda.stand_ins import StandIns
from gdsckpt import native
from gdsckpt.engine import base, driver, kvikio_library
from gdsckpt.engine.base import Extent
from gdsckpt.engine.kvikio import KvikioEngine
from gdsckpt.engine.pinned import PinnedEngine
from gdsckpt.errors import *

cuda = cufile = None
if os.path.exists(os.environ["GDSCKPT_LIBCUDA"]):
    cuda, cufile = (both := StandIns.loaded()).cuda, both.cufile
MiB = 1 << 20
CHUNK = MiB // 2


class Checksums:
    def crc32_pieces(self, pieces, device, *, stream=None):
        assert stream is None
        rows = zip(pieces[::2], pieces[1::2], strict=True)
        return array("I", [zlib.crc32(cuda.peek(*row)) for row in rows])


def raised(kind, call):
    try:
        call()
    except kind as error:
        return error
    raise AssertionError("nothing was raised")


def engines():
    pinned = PinnedEngine(io_threads=4, slab_bytes=2 * MiB, num_slabs=4)
    library = kvikio_library.load_library(needs_kernels=False)
    return KvikioEngine(pinned, library, Checksums()), pinned


def opened(name="file", direct=True):
    flags = os.O_RDWR | os.O_CREAT
    fds = [os.open(name, flags), os.open(name, flags | os.O_DIRECT)]
    alignment = native.direct_alignment(fds[0])
    assert alignment, "these tests need a file system with direct I/O"
    file = native.File(os.path.abspath(name), fds[0], fds[1] if direct else -1, alignment)
    for fd in fds:
        os.close(fd)
    return file


def memory(data, device=0, offset=0, kind="device"):
    address = cuda.alloc(len(data) + offset + 1, device, kind) + offset
    cuda.poke(address, data)
    return address


def write(engine, file, extents, streams=(), owner=None):
    rows = base.pack_extents(extents)
    return engine.write(
        file, rows, chunk_bytes=CHUNK, streams=array("Q", streams), owner=owner
    )


def read(engine, file, extents, streams=(), owner=None):
    return engine.read(file, base.pack_extents(extents), streams=array("Q", streams), owner=owner)


def finish(transfer):
    base.wait(transfer)
    return transfer


def by_kvikio(transfer):
    return type(transfer).__name__ == "KvikioTransfer"


NO_SLOT = native.NO_CRC_SLOT
"""


def run(directory, *parts, variables=None, **options):
    """Run code in a process of its own; ``options`` are for the stand-ins."""
    environ = {
        **{name: value for name, value in os.environ.items() if not name.startswith("KVIKIO_")},
        "PYTHONPATH": os.pathsep.join((str(TESTS.parent), str(TESTS))),
        "OMP_NUM_THREADS": "1",
        **stand_ins.environment(**options),
        **(variables or {}),
    }
    code = "\n".join((PRELUDE, *parts))
    return subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", code],
        env=environ,
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=100,
    )


def check(directory, *parts, **options):
    """Run code that has to come to a good end."""
    done = run(directory, *parts, **options)
    assert done.returncode == 0, done.stderr
