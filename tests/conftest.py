import importlib.util

import pytest


def _has_cuda() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()


def pytest_runtest_setup(item):
    if item.get_closest_marker("gpu") is not None and not _has_cuda():
        pytest.skip("no CUDA device")
