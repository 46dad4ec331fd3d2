"""The ranges of saves, loads and verifies, as a profiler gets them (tests/nvtx_injection.cpp)."""

import collections
import dataclasses
import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from build_script import foreign_flags
from fake_cuda import stand_ins

from gdsckpt import native

TESTS = Path(__file__).resolve().parents[1]
WARNINGS = ["-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Werror"]

pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ to build the profiler"),
    pytest.mark.skipif(not native.nvtx_compiled(), reason="built without NVTX's headers"),
]

# Run in a process with a profiler and the shim of tests/faults; gives what each step logged.
STEPS = """
import ctypes, json, os, sys
from pathlib import Path
import torch
from device_arrays import FakeArray
from fake_cuda.stand_ins import StandIns
import gdsckpt

directory = Path(sys.argv[1])
log = Path(os.environ["TEST_NVTX_LOG"])
shim = ctypes.CDLL(os.environ["LD_PRELOAD"])
tree = {"weights": torch.arange(5 << 20).view(torch.uint8), "bias": torch.ones(3), "step": 7}
steps = {"process": os.getpid(), "payload_bytes": sum(t.nbytes for t in list(tree.values())[:2])}

def step(name, work, rules=""):
    log.write_text("")
    if rules:
        mark = os.fsencode(directory / "mark")
        assert shim.fault_arm(rules.encode(), os.fsencode(directory), mark) == 0
    try:
        result = work()
    except BaseException as error:
        result = [type(error).__name__, getattr(error, "errno", 0)]
    shim.fault_disarm()
    steps[name] = {"result": result, "log": log.read_text().splitlines()}

path = directory / "state.pt"
step("save", lambda: gdsckpt.save(tree, path).nbytes)
step("load", lambda: torch.equal(gdsckpt.load(path)["weights"], tree["weights"]))
step("verify", lambda: gdsckpt.verify(path).ok)
step("directory", lambda: gdsckpt.save_checkpoint(tree, directory / "step-7", step=7).nbytes)
for rules in ("pwrite:2:EIO", "fdatasync:1:EIO", "fdatasync:1:int-after", "rename:1:EACCES"):
    step(rules, lambda: gdsckpt.save(tree, path).nbytes, rules)
step("pread:1:EIO", lambda: gdsckpt.load(path), "pread:4:EIO")

array = FakeArray(StandIns.loaded().cuda, bytes(20 << 20))
on_device = directory / "device.pt"
step("device save", lambda: gdsckpt.save({"array": array}, on_device).nbytes)
step("device load", lambda: bool(gdsckpt.load(on_device, into={"array": array})))
print(json.dumps(steps))
"""


@dataclasses.dataclass(frozen=True)
class Range:
    """One range that was opened and closed; ``inside``: the names of those around it."""

    thread: int
    name: str
    nbytes: int | None
    inside: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Step:
    """What a step gave, and its ranges in the order of their ends."""

    result: object
    ranges: list[Range]
    main: int

    def in_main(self):
        return [one.name for one in self.ranges if one.thread == self.main]

    def named(self, name):
        return [one for one in self.ranges if one.name == name]

    def sum_nbytes(self, name):
        return sum(one.nbytes for one in self.named(name))


def ranges_of(lines):
    """Match pushes with pops; every push must have one, in its thread."""
    stacks = collections.defaultdict(list)
    ranges = []
    for line in lines:
        kind, *fields = line.split(" ")
        assert kind in ("push", "pop"), line
        thread, domain = int(fields[0]), fields[1]
        assert domain == "gdsckpt"
        stack = stacks[thread]
        if kind == "push":
            name, payload = fields[2:]
            nbytes = None if payload == "-" else int(payload)
            stack.append(Range(thread, name, nbytes, tuple(outer.name for outer in stack)))
        else:
            ranges.append(stack.pop())
    assert not any(stacks.values()), f"never closed: {stacks}"
    return ranges


@pytest.fixture(scope="module")
def profiled(tmp_path_factory):
    """What the process of STEPS printed."""
    directory = tmp_path_factory.mktemp("nvtx")
    shared = ["-shared", "-fPIC", "-O1"]
    profiler = ["g++", "-std=c++17", *shared, *WARNINGS, *foreign_flags()]
    profiler += [TESTS / "nvtx_injection.cpp", "-o", directory / "profiler.so"]
    subprocess.run(profiler, check=True)
    shim = ["gcc", *shared, TESTS / "faults" / "shim.c", "-o", directory / "shim.so"]
    subprocess.run(shim, check=True)
    environ = {
        **os.environ,
        **stand_ins.environment(),
        "LD_PRELOAD": str(directory / "shim.so"),
        "NVTX_INJECTION64_PATH": str(directory / "profiler.so"),
        "TEST_NVTX_LOG": str(directory / "log"),
        "PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(TESTS)]),
        "OMP_NUM_THREADS": "1",
    }
    files = directory / "files"
    files.mkdir()
    command = [sys.executable, "-c", STEPS, files]
    process = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


@pytest.fixture
def step(profiled):
    """Give a step by its name."""

    def find(name):
        found = profiled[name]
        return Step(found["result"], ranges_of(found["log"]), profiled["process"])

    return find


def test_save_has_a_range_for_each_stage(step):
    save = step("save")
    assert save.in_main() == ["plan", "plan", "sync", "commit"]
    assert [one.nbytes for one in save.named("sync")] == [save.result]


@pytest.mark.parametrize("name", ["copy", "checksum", "write"])
def test_save_ranges_add_up_to_the_file(step, name):
    save = step("save")
    assert save.sum_nbytes(name) == save.result
    assert {one.thread for one in save.named(name)}.isdisjoint({save.main})


def test_save_checksums_inside_the_copy_and_writes_after_it(step):
    save = step("save")
    assert {one.inside for one in save.named("checksum")} == {("copy",)}
    assert {one.inside for one in save.named("copy") + save.named("write")} == {()}


@pytest.mark.parametrize("name", ["copy", "checksum", "write"])
def test_save_from_a_device_ranges_add_up_to_the_file(step, name):
    save = step("device save")
    assert save.sum_nbytes(name) == save.result


@pytest.mark.parametrize("name", ["read", "checksum", "copy"])
def test_load_to_a_device_ranges_cover_the_array(step, name):
    load = step("device load")
    assert load.result is True
    assert load.sum_nbytes(name) >= 20 << 20


def test_save_checkpoint_syncs_and_commits_shard_and_manifest(step):
    stages = ["plan", "plan", "sync", "commit", "sync", "commit"]
    assert step("directory").in_main() == stages


@pytest.mark.parametrize("name", ["read", "checksum"])
def test_load_ranges_cover_the_payload(step, profiled, name):
    load = step("load")
    assert load.result is True
    assert load.in_main() == ["plan"]
    assert load.sum_nbytes(name) >= profiled["payload_bytes"]


def test_verify_checksums_all_that_it_reads(step, profiled):
    verify = step("verify")
    assert verify.result is True
    assert verify.sum_nbytes("read") == verify.sum_nbytes("checksum")
    assert profiled["payload_bytes"] <= verify.sum_nbytes("read") <= step("save").result


@pytest.mark.parametrize(
    ("rules", "result", "stages"),
    [
        ("pwrite:2:EIO", ["StorageError", errno.EIO], ["plan", "plan"]),
        ("fdatasync:1:EIO", ["StorageError", errno.EIO], ["plan", "plan", "sync"]),
        ("fdatasync:1:int-after", ["KeyboardInterrupt", 0], ["plan", "plan", "sync"]),
        ("rename:1:EACCES", ["StorageError", errno.EACCES], ["plan", "plan", "sync", "commit"]),
    ],
)
def test_failed_save_closes_every_range(step, rules, result, stages):
    failed = step(rules)
    assert failed.result == result
    assert failed.in_main() == stages


def test_failed_load_closes_every_range(step):
    assert step("pread:1:EIO").result == ["StorageError", errno.EIO]
    assert step("pread:1:EIO").in_main() == ["plan"]
