import importlib.util
import signal

import native_tests
import pytest

# Stores in memory, and the S3 server that all test files share.
from remote_cases import bucket, crew  # noqa: F401
from seaweed import s3_environment, seaweed  # noqa: F401


def _has_cuda() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()


def pytest_configure():
    # Shells ignore SIGINT in what they start in the background, and whatever that starts inherits
    # it: the tests that interrupt something would wait in vain.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_runtest_setup(item):
    if item.get_closest_marker("gpu") is not None and not _has_cuda():
        pytest.skip("no CUDA device")


@pytest.fixture(scope="session", autouse=True)
def native_tests_built(request):
    """Compile for test_cpp.py on the core that tests leave idle: most wait for other things."""
    wanted = any(item.path.name == "test_cpp.py" for item in request.session.items)
    if not (wanted and native_tests.can_build()):
        yield
        return
    with native_tests.built_in_the_background():
        yield
