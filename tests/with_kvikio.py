"""KvikIO for tests: whether it is installed, and how it gets there."""

import importlib.util

import pytest

# Without its needs: CuPy and parts of the CUDA toolkit, gigabytes that reading and writing files
# takes nothing from. What it does take is in the extra `test`.
INSTALL = "pip install --no-deps -c constraints.txt kvikio-cu13 libkvikio-cu13 rapids-logger"

IS_MISSING = importlib.util.find_spec("kvikio") is None
REASON = f"kvikio is not installed: {INSTALL}"

needs_kvikio = pytest.mark.skipif(IS_MISSING, reason=REASON)
