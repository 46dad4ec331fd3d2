"""Runs each test that asks for a ``lane`` in a process of that lane.

A lane is an engine over memory of one kind: see ``lanes.py``. Which libcuda a process has is
settled when it is first loaded, so a lane has a server process with its environment, and each test
runs in a forked child of it, which no other test has left anything in.
"""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import with_kvikio
from fake_cuda import real_cufile, stand_ins

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

HOST_LANES = ("host",)
FAKE_LANES = ("pinned", "cufile", "real-cufile", "kvikio")
GPU_LANES = ("gpu", "gpu-cufile")
REAL_CUFILE_LANES = ("real-cufile", "gpu-cufile")
# Each test on a GPU starts CUDA anew; those of cuFile ask for it by name.
ALL_LANES = (*HOST_LANES, *FAKE_LANES, "gpu")


class Server:
    """The process of a lane."""

    def __init__(self, lane, environ, directory):
        foreign = ("GDSCKPT_", "KVIKIO_")
        environ = {
            **{name: os.environ[name] for name in os.environ if not name.startswith(foreign)},
            "PYTHONPATH": os.pathsep.join((str(ROOT), str(HERE.parent), str(HERE))),
            "OMP_NUM_THREADS": "1",
            **environ,
        }
        command = [sys.executable, str(HERE / "worker.py"), lane]
        if lane in REAL_CUFILE_LANES:
            command = real_cufile.command(command, [directory])
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environ,
        )

    def run(self, job):
        """Run a test function in a child; gives its ``failure`` and ``skipped``, texts."""
        self._process.stdin.write(json.dumps(job, default=str) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the server of the lane has died"
        return json.loads(line)

    def close(self):
        self._process.stdin.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:  # a test's process hangs where no signal of ours goes
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


def environment_of(lane, commands):
    """Give the variables of a lane's process; ``commands`` are for the stand-ins."""
    if lane == "host":
        return {"GDSCKPT_LIBCUDA": str(HERE / "there-is-no-libcuda.so")}
    if lane == "gpu":
        return {}
    if lane in REAL_CUFILE_LANES:
        cuda = {} if lane in GPU_LANES else stand_ins.environment(**commands)
        real = {"GDSCKPT_LIBCUFILE": str(real_cufile.library())}
        return {**cuda, **real_cufile.environment(), **real}
    commands = dict(commands)
    stages = {"NVTX_INJECTION64_PATH": str(stage_clock())} if commands.pop("stages", False) else {}
    return {
        # Saves of whole states: auto would try cuFile where this machine has what it asks for.
        "GDSCKPT_ENGINE": "pinned",
        # KvikIO would try cuFile too. Its one thread would do all in order.
        "KVIKIO_COMPAT_MODE": "ON",
        "KVIKIO_NTHREADS": "3",
        **stand_ins.environment(**commands),
        **stages,
    }


@functools.cache
def stage_clock():
    """Build the library that makes stages take time, for NVTX to load."""
    made = stand_ins.temporary_directory("stage-clock") / "stage_clock.so"
    includes = [f"-isystem{path}" for path in stand_ins.header_directories("nvtx3/nvToolsExt.h")]
    stand_ins.run_compiler(
        *("-shared", "-fPIC", "-O1", "-std=c++17", "-pthread", "-Wall", "-Wextra", "-Werror"),
        *(*includes, HERE / "stage_clock.cpp", "-o", made),
    )
    return made


@pytest.fixture(scope="session")
def servers():
    made = {}
    yield made
    for server in made.values():
        server.close()


@pytest.fixture
def lane(request, servers, tmp_path):
    """The server of the test's lane; in the test itself, a ``lanes.Lane``."""
    marker = request.node.get_closest_marker("stand_ins")
    commands = dict(marker.kwargs) if marker is not None else {}
    if request.param == "kvikio" and with_kvikio.IS_MISSING:
        pytest.skip(with_kvikio.REASON)
    key = (request.param, json.dumps(commands, sort_keys=True))
    if key not in servers:
        environ = environment_of(request.param, commands)
        try:
            servers[key] = Server(request.param, environ, tmp_path)
        except real_cufile.NotPossibleError as error:
            pytest.skip(f"the real libcufile cannot be run: {error}")
    return servers[key]


def pytest_configure(config):
    config.addinivalue_line("markers", "lanes(*names): lanes that a contract test runs in")
    config.addinivalue_line(
        "markers", "stand_ins(cuda, cufile, without, stages): what the processes of a test have"
    )


def pytest_generate_tests(metafunc):
    if "lane" not in metafunc.fixturenames:
        return
    marker = metafunc.definition.get_closest_marker("lanes")
    names = marker.args if marker is not None else ALL_LANES
    lanes = [
        pytest.param(name, marks=pytest.mark.gpu) if name in GPU_LANES else name for name in names
    ]
    metafunc.parametrize("lane", lanes, indirect=True)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    server = pyfuncitem.funcargs.get("lane")
    if not isinstance(server, Server):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    answer = server.run(
        {
            "path": pyfuncitem.path,
            "function": pyfuncitem.originalname,
            "arguments": {
                name: pyfuncitem.funcargs[name]
                for name in names
                if name not in ("lane", "tmp_path")
            },
            "directory": pyfuncitem.funcargs["tmp_path"],
        }
    )
    if answer["skipped"]:
        pytest.skip(answer["skipped"])
    if answer["failure"]:
        pytest.fail(answer["failure"], pytrace=False)
    return True
