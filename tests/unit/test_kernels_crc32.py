"""The kernels on host memory, in numba's simulator, which a child process runs.

The simulator is chosen when numba is first imported, for a whole process.
"""

import os
import pickle
import subprocess
import sys
import zlib
from array import array
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gdsckpt.errors import ConfigError, EngineUnavailableError
from gdsckpt.kernels import Tuning

ROOT = Path(__file__).parents[2]

# Answers pickled requests (data, pieces as offsets, arguments) with a result or an error.
SIMULATOR = """
import ctypes, pickle, sys
from array import array
from gdsckpt import kernels

replies, sys.stdout = sys.stdout.buffer, sys.stderr
while True:
    function, data, pieces, more = pickle.load(sys.stdin.buffer)
    memory = ctypes.create_string_buffer(data, len(data) + 128)
    base = -(-ctypes.addressof(memory) // 128) * 128
    ctypes.memmove(base, data, len(data))
    pieces = [(base + offset, nbytes) for offset, nbytes in pieces]
    if more.pop("flat", False):
        pieces = array("Q", [number for piece in pieces for number in piece])
    try:
        reply = getattr(kernels, function)(pieces, **more)
    except Exception as error:
        reply = error
    pickle.dump(reply, replies)
    replies.flush()
"""

SMALL = Tuning(threads=64)


def child(code, **environment):
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, **environment},
    )


class Simulator:
    def __init__(self):
        self.process = child(SIMULATOR, NUMBA_ENABLE_CUDASIM="1")

    def call(self, function, data, pieces, **arguments):
        arguments = {"device": -1, **arguments}
        pickle.dump((function, data, pieces, arguments), self.process.stdin)
        self.process.stdin.flush()
        reply = pickle.load(self.process.stdout)
        if isinstance(reply, Exception):
            raise reply
        return reply

    def crcs(self, data, pieces, **arguments):
        return self.call("crc32_pieces", data, pieces, **{"tuning": SMALL, **arguments})


@pytest.fixture(scope="module")
def simulator():
    simulator = Simulator()
    yield simulator
    with simulator.process as process:
        process.kill()


def expected(data, pieces):
    return array("I", [zlib.crc32(data[offset : offset + nbytes]) for offset, nbytes in pieces])


DATA = Random(0).randbytes(120_000)


def test_crc32_of_small_pieces_equals_zlib(simulator):
    pieces = [(0, 0), (0, 1), (1, 1), (1, 2), (3, 3), (2, 4), (0, 4), (1, 7), (4, 9), (127, 130)]
    assert simulator.crcs(DATA, pieces) == expected(DATA, pieces)


def test_crc32_of_zeros_and_ones_equals_zlib(simulator):
    data = bytes(300) + b"\xff" * 300
    pieces = [(0, 300), (300, 300), (1, 598)]
    assert simulator.crcs(data, pieces) == expected(data, pieces)


# With 64 threads, 8 KiB are folded at a time: fewer, exactly as many, and more of them.
@pytest.mark.parametrize("piece", [(0, 8192), (4, 8196), (130, 27_001)])
def test_crc32_of_one_strip_equals_zlib(simulator, piece):
    assert simulator.crcs(DATA, [piece]) == expected(DATA, [piece])


def test_crc32_of_several_strips_equals_zlib(simulator):
    pieces = [(77, 2500), (128, 2048)]
    tuning = Tuning(threads=64, strip_bytes=1024)
    assert simulator.crcs(DATA, pieces, tuning=tuning) == expected(DATA, pieces)


@pytest.mark.parametrize("threads", [128, 256])
def test_crc32_by_other_numbers_of_threads_equals_zlib(simulator, threads):
    pieces = [(3, 110_001)]
    tuning = Tuning(threads=threads, strip_bytes=2**20)
    assert simulator.crcs(DATA, pieces, tuning=tuning) == expected(DATA, pieces)


def test_crc32_of_overlapping_and_empty_pieces_in_any_order_equals_zlib(simulator):
    pieces = [(900, 60), (0, 0), (500, 600), (500, 600), (0, 0)]
    assert simulator.crcs(DATA, pieces) == expected(DATA, pieces)
    assert simulator.crcs(DATA, pieces, flat=True) == expected(DATA, pieces)


def test_crc32_of_no_pieces_is_empty(simulator):
    assert simulator.crcs(DATA, []) == array("I")


def test_crc32_of_more_pieces_than_the_tables_hold_equals_zlib(simulator):
    pieces = [(0, 0)] * 1500 + [(64, 100)] + [(0, 0)] * 1500
    assert simulator.crcs(DATA, pieces) == expected(DATA, pieces)


@settings(max_examples=6, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    pieces=st.lists(st.tuples(st.integers(0, 300), st.integers(0, 3000)), min_size=1, max_size=2),
    strip_lines=st.integers(8, 64),
)
def test_crc32_of_any_pieces_equals_zlib(simulator, seed, pieces, strip_lines):
    data = Random(seed).randbytes(3300)
    tuning = Tuning(threads=64, strip_bytes=128 * strip_lines)
    assert simulator.crcs(data, pieces, tuning=tuning) == expected(data, pieces)


def test_crc32_of_no_range_raises_in_the_caller(simulator):
    with pytest.raises(ConfigError) as caught:
        simulator.crcs(DATA, [(0, 2**63)])
    assert caught.value.field == "pieces"


def test_changed_chunks_names_those_that_differ(simulator):
    chunks = [(0, 500), (500, 500), (1500, 1)]
    earlier = expected(DATA, chunks)
    changed = bytearray(DATA)
    changed[999] ^= 1
    changed[1500] ^= 0x80
    arguments = {"earlier_crcs": earlier, "tuning": SMALL}
    assert simulator.call("changed_chunks", bytes(changed), chunks, **arguments) == [1, 2]
    assert simulator.call("changed_chunks", DATA, chunks, **arguments) == []


def test_device_in_the_simulator_is_refused(simulator):
    with pytest.raises(EngineUnavailableError, match="NUMBA_ENABLE_CUDASIM") as caught:
        simulator.crcs(DATA, [(0, 4)], device=0)
    assert len(caught.value.reasons) == 1


# Rows that are 0 but for one: it must have a share where the polynomial has the term.
MIX = """
from gdsckpt.kernels.crc32_device import mix, u32
from gdsckpt.kernels.gf2 import POLYNOMIAL

for term in range(32):
    rows = tuple(u32(row == term) for row in range(32))
    assert mix(rows, u32(0)) == POLYNOMIAL >> 31 - term & 1, term
"""


def test_mix_has_the_terms_of_the_polynomial():
    with child(MIX, NUMBA_ENABLE_CUDASIM="1") as process:
        assert process.wait(60) == 0


REFUSED = """
from gdsckpt.errors import EngineUnavailableError
from gdsckpt.kernels import crc32_pieces, warm_up

for call in (lambda: crc32_pieces([(4096, 1)], {device}), lambda: warm_up({device})):
    try:
        call()
    except EngineUnavailableError as error:
        assert {reason!r} in error.reasons[0], error.reasons
    else:
        raise AssertionError("not refused")
"""

WITHOUT_NUMBA = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "numba":
            raise ModuleNotFoundError("No module named 'numba'", name="numba")

sys.meta_path.insert(0, Refuse())
"""


@pytest.mark.parametrize(
    ("code", "device", "reason"),
    [
        (WITHOUT_NUMBA, 0, "numba-cuda cannot be imported: No module named 'numba'"),
        ("", 0, ""),
        ("", -1, "simulator"),
        ("", -2, "numbered from 0"),
    ],
    ids=["no numba", "no device", "host memory", "no such number"],
)
def test_crc32_where_it_cannot_be_raises(code, device, reason):
    code += REFUSED.format(device=device, reason=reason)
    # An empty list hides the devices of a machine that has some.
    with child(code, NUMBA_ENABLE_CUDASIM="0", CUDA_VISIBLE_DEVICES="") as process:
        assert process.wait(60) == 0


def test_import_of_kernels_imports_neither_numba_nor_numpy():
    code = "import sys, gdsckpt.kernels; sys.exit(bool({'numba', 'numpy'} & sys.modules.keys()))"
    with child(code) as process:
        assert process.wait(60) == 0


@pytest.mark.parametrize(
    ("tuning", "field"),
    [({"threads": 96}, "threads"), ({"strip_bytes": 100}, "strip_bytes")],
)
def test_tuning_that_the_kernel_is_not_made_for_raises(tuning, field):
    with pytest.raises(ConfigError) as caught:
        Tuning(**tuning)
    assert caught.value.field == field
