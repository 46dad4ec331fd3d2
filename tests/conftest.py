import importlib.util

import pytest

# Stores in memory, and the S3 server that all test files share.
from remote_cases import bucket, crew  # noqa: F401
from seaweed import s3_environment, seaweed  # noqa: F401


def _has_cuda() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()


def pytest_runtest_setup(item):
    if item.get_closest_marker("gpu") is not None and not _has_cuda():
        pytest.skip("no CUDA device")
