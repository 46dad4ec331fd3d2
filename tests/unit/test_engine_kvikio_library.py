"""Whether KvikIO can be used: the answers where it is missing, broken, or would hang."""

import functools

import pytest
from kvikio_runs import check
from with_kvikio import needs_kvikio


@pytest.fixture
def run(tmp_path):
    return functools.partial(check, tmp_path)


FAKE_INIT = """
import os, signal
from kvikio import defaults

class CuFile:
    def __init__(self, path, flags):
        {body}
    def close(self):
        pass
"""
FAKE_DEFAULTS = """
import enum, os

class CompatMode(enum.Enum):
    OFF = 0
    ON = 1
    AUTO = 2

def get(name):
    mode = CompatMode[os.environ.get("KVIKIO_COMPAT_MODE", "AUTO")]
    return {"compat_mode": mode, "task_size": 4 << 20, "num_threads": 2}[name]
"""


@pytest.fixture
def fake_kvikio(tmp_path):
    """Put a package of KvikIO's name before the real one; opening a file by it is ``body``."""

    def make(body="pass", init=FAKE_INIT):
        package = tmp_path / "kvikio"
        package.mkdir()
        (package / "__init__.py").write_text(init.format(body=body))
        (package / "defaults.py").write_text(FAKE_DEFAULTS)
        metadata = tmp_path / "kvikio-26.10.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text("Name: kvikio\nVersion: 26.10\n")
        (metadata / "top_level.txt").write_text("kvikio\n")
        return f"import sys; sys.path.insert(0, {str(tmp_path)!r})"

    return make


REFUSED = """
def refused(**options):
    error = raised(EngineUnavailableError, lambda: kvikio_library.load_library(**options))
    assert error.engine == "kvikio" and all(reason in str(error) for reason in error.reasons)
    return error
"""


def test_load_library_without_the_package_says_how_to_install_it(run):
    run(
        REFUSED,
        """
import importlib.util

real = importlib.util.find_spec
importlib.util.find_spec = lambda name: None if name in ("kvikio", "numba_cuda") else real(name)
error = refused()
assert [reason.split(",")[0] for reason in error.reasons] == [
    "the package kvikio is not installed", "the package numba-cuda"
]
assert "pip install 'gdsckpt[kvikio]'" in str(error)
assert len(refused(needs_kernels=False).reasons) == 1
""",
    )


def test_load_library_without_cuda_says_so(run, fake_kvikio):
    run(
        fake_kvikio(),
        REFUSED,
        """
(reason,) = refused(needs_kernels=False).reasons
assert reason.startswith("CUDA cannot be used") and "there-is-no-libcuda" in reason
""",
        cuda=None,
    )


def test_load_library_that_cannot_be_imported_says_why(run, fake_kvikio):
    run(
        fake_kvikio(init='raise ImportError("libkvikio.so: cannot open")'),
        REFUSED,
        """
(reason,) = refused(needs_kernels=False).reasons
assert "libkvikio.so: cannot open" in reason
""",
    )


def test_load_library_with_cufile_but_no_modules_is_refused_untried(run, fake_kvikio):
    start = fake_kvikio("os.kill(os.getppid(), signal.SIGKILL)")
    missing = 'kvikio_library._MODULES = Path("missing")'
    run(
        start,
        missing,
        REFUSED,
        """
(reason,) = refused(needs_kernels=False).reasons
assert "missing" in reason and "OFF" in reason
""",
        variables={"KVIKIO_COMPAT_MODE": "OFF"},
    )


def test_load_library_of_auto_mode_needs_no_trial_where_udev_is_missing(run, fake_kvikio):
    run(
        fake_kvikio("os.abort()"),
        """
kvikio_library._UDEV = kvikio_library._MODULES = Path("missing")
library = kvikio_library.load_library(needs_kernels=False)
assert library.task_bytes == 4 << 20
assert "2 threads" in library.facts and "missing is missing" in library.facts
assert kvikio_library.load_library(needs_kernels=False) is library
""",
    )


TRIAL = (
    REFUSED
    + """
kvikio_library._MODULES = Path("/proc/self/maps")
kvikio_library._UDEV = Path("/proc")
"""
)


@pytest.mark.parametrize(
    ("body", "reason", "limit_s"),
    [
        ("while True: pass", "had not ended during opening a file by KvikIO", 2),
        ("os.abort()", "SIGABRT", 60),
        ("os._exit(3)", "ended with status 3", 60),
    ],
)
def test_load_library_whose_trial_fails_is_refused(run, fake_kvikio, body, reason, limit_s):
    run(
        fake_kvikio(body),
        TRIAL,
        f"""
kvikio_library.TRIAL_TIMEOUT_S = {limit_s}
error = refused(needs_kernels=False)
assert {reason!r} in error.reasons[0], error
assert "KVIKIO_COMPAT_MODE=ON" in str(error)
""",
    )


def test_load_library_whose_trial_lives_is_given(run, fake_kvikio):
    run(
        fake_kvikio('raise RuntimeError("not registered")'),
        TRIAL,
        """
facts = kvikio_library.load_library(needs_kernels=False).facts
assert "each file by cuFile where that takes it" in facts
""",
    )


@needs_kvikio
def test_real_kvikio_with_a_cufile_that_hangs_is_refused(run):
    run(
        TRIAL,
        """
kvikio_library.TRIAL_TIMEOUT_S = 4.0
assert "had not ended" in refused(needs_kernels=False).reasons[0]
""",
        cufile="hang cuFileHandleRegister",
        variables={"KVIKIO_COMPAT_MODE": "OFF"},
    )


@needs_kvikio
def test_real_kvikio_with_a_cufile_that_lacks_a_function_is_refused(run):
    run(
        TRIAL,
        """
reason = refused(needs_kernels=False).reasons[0]
assert "SIGABRT" in reason and "cuFileBatchIOSetUp" in reason, reason
""",
        without=("cuFileBatchIOSetUp",),
        variables={"KVIKIO_COMPAT_MODE": "OFF"},
    )


@needs_kvikio
def test_real_kvikio_is_described(run):
    run(
        """
facts = kvikio_library.load_library(needs_kernels=False).facts
assert facts.startswith("KvikIO 2") and "compatibility mode is ON: all goes through" in facts
""",
        variables={"KVIKIO_COMPAT_MODE": "ON"},
    )
