"""Many saves and loads in one process, with faults at random: nothing wrong, nothing left over."""

import os
import random
import zlib
from pathlib import Path

import pytest
import torch
from device_arrays import FakeArray
from lanes import MiB, crcs, extent, finish, pattern

import gdsckpt
from gdsckpt import native
from gdsckpt.errors import ChecksumError, CudaError, ShortTransferError, StorageError

pytestmark = pytest.mark.lanes("pinned", "cufile", "kvikio")

CUDA_FAULTS = [
    ("cuStreamCreate", 2),
    ("cuStreamWaitEvent", 400),
    ("cuEventCreate", 2),
    ("cuEventRecord", 719),
    ("cuEventSynchronize", 719),
    ("cuMemHostRegister", 2),
    ("cuMemcpyDtoHAsync", 1),
    ("cuMemcpyHtoDAsync", 700),
    ("dtoh", 719),
    ("htod", 46),
]
CUFILE_FAULTS = [
    "fault cuFileHandleRegister code=5027",
    "fault cuFileWrite code=5030",
    "fault cuFileWrite code=28",
    "fault cuFileWrite code=4",
    "fault cuFileRead code=5016",
    "fault cuFileRead code=5",
    "fault cuFileRead code=5043",
    "short cuFileWrite bytes=4096",
    "short cuFileRead bytes=8192",
    "short cuFileWrite bytes=0",
]
KNOWN_ERRORS = (CudaError, StorageError, ShortTransferError, ChecksumError)


def num_fds():
    return len(list(Path("/proc/self/fd").iterdir()))


def arm(lane, rng):
    """Set faults for one round, each of its calls to be met with a chance of 3 in 100."""
    for function, code in rng.sample(CUDA_FAULTS, 3):
        lane.cuda(f"fault {function} code={code} permille=30")
    if lane.cufile is not None:
        for fault in rng.sample(CUFILE_FAULTS, 3):
            lane.cufile(f"{fault} permille=60")


def calm(lane):
    lane.cuda("clear; restore")
    if lane.cufile is not None:
        lane.cufile("clear")


class Round:
    """One save and load of two tensors on two GPUs; gives what went well."""

    def __init__(self, lane, memories, back, rng):
        self.lane = lane
        self.memories = memories
        self.back = back
        self.rng = rng

    def run(self, engine):
        file = self.lane.file()
        place, extents = 0, []
        for memory in self.memories:
            extents.append(extent(memory, place))
            place += memory.nbytes + self.rng.choice([0, 1, 4096])
        with file_closed(file):
            wrote = self._attempt(lambda: self._write(engine, file, extents))
            read = wrote and self._attempt(lambda: self._read(engine, file, extents))
        Path(file.path).unlink()
        return wrote, read

    def _write(self, engine, file, extents):
        transfer = finish(self.lane.write(engine, file, extents))
        content = Path(file.path).read_bytes()
        for memory, one in zip(self.memories, extents, strict=True):
            assert content[one.file_offset : one.file_offset + one.nbytes] == memory.data()
        wanted = [zlib.crc32(memory.data()) for memory in self.memories]
        assert crcs(transfer.extent_crcs()) == wanted

    def _read(self, engine, file, extents):
        places = [
            extent(memory, one.file_offset) for memory, one in zip(self.back, extents, strict=True)
        ]
        for memory in self.back:
            memory.fill(bytes(memory.nbytes))
        transfer = finish(self.lane.read(engine, file, places))
        assert [memory.data() for memory in self.back] == [
            memory.data() for memory in self.memories
        ]
        assert crcs(transfer.extent_crcs()) == [zlib.crc32(memory.data()) for memory in self.back]

    @staticmethod
    def _attempt(step):
        try:
            step()
        except KNOWN_ERRORS:
            return False
        return True


class file_closed:  # noqa: N801 - a context manager
    def __init__(self, file):
        self._file = file

    def __enter__(self):
        return self._file

    def __exit__(self, *raised):
        self._file.close()


@pytest.mark.parametrize("num_rounds", [60, pytest.param(1000, marks=pytest.mark.campaign)])
def test_saves_with_random_faults_are_right_or_refused_and_leak_nothing(lane, num_rounds):
    rng = random.Random(4)
    lane.cuda("set late_us=50")
    engine = lane.engine()
    sizes = (MiB + 4096, 700_001)
    memories = [lane.memory(pattern(n, n), device=d) for d, n in enumerate(sizes)]
    back = [lane.memory(bytes(n), device=d) for d, n in enumerate(sizes)]
    one_round = Round(lane, memories, back, rng)
    assert one_round.run(engine) == (True, True)
    fds = num_fds()
    outcomes = []
    for _ in range(num_rounds):
        arm(lane, rng)
        outcomes.append(one_round.run(engine))
        calm(lane)
    assert num_fds() == fds
    if lane.name != "kvikio":  # it has buffers of its own
        assert lane.cuda.stat("live.host_registrations") <= 4
    assert one_round.run(engine) == (True, True)
    # Neither did all go well, nor nothing.
    assert 0 < sum(wrote for wrote, _ in outcomes) < num_rounds
    assert any(wrote and not read for wrote, read in outcomes)
    assert all(memory.is_guarded() for memory in back)


def state_of(lane, number):
    """Give a state on two GPUs and the host that tells its number in every byte."""
    return {
        "number": number,
        "large": FakeArray(lane.cuda, bytes([number % 251]) * (MiB + 8), typestr="|u1"),
        "other": FakeArray(lane.cuda, bytes([number % 251]) * 300_001, device=1, offset=3),
        "host": torch.full((1000,), number),
    }


def number_in(path):
    """Give the number of the state in a file, which must be whole."""
    state = gdsckpt.load(path, map_location="cpu")
    number = state["number"]
    for name in ("large", "other"):
        assert bool((state[name] == number % 251).all()), f"a mixture in {name!r}"
    assert bool((state["host"] == number).all())
    return number


@pytest.mark.lanes("pinned")
@pytest.mark.parametrize("num_rounds", [40, pytest.param(1000, marks=pytest.mark.campaign)])
def test_saves_of_states_with_random_faults_are_complete_or_change_nothing(
    lane, tmp_path, num_rounds
):
    rng = random.Random(7)
    native.cuda_load(os.environ["GDSCKPT_LIBCUDA"])
    lane.cuda("set late_us=20")
    config = gdsckpt.Config(fsync=False, chunk_bytes="256KiB", io_threads=4)
    path = tmp_path / "state.pt"
    gdsckpt.save(state_of(lane, 0), path, config=config)
    assert number_in(path) == 0
    fds, last, num_failed = num_fds(), 0, 0
    for number in range(1, num_rounds + 1):
        state = state_of(lane, number)
        arm(lane, rng)
        try:
            gdsckpt.save(state, path, config=config)
            last = number
        except KNOWN_ERRORS:
            num_failed += 1
        calm(lane)
        for array in (state["large"], state["other"]):
            lane.cuda.free(array.base)
        if number % 5 == 0:
            assert number_in(path) == last
    assert num_fds() == fds
    assert [entry.name for entry in tmp_path.iterdir()] == ["state.pt"]
    assert 0 < num_failed < num_rounds
    assert lane.cuda.stat("live.allocations") == 2
