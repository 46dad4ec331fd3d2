"""Runs the tests of the native core under the sanitizers.

``tests/conftest.py`` has them built while other tests run.
"""

import subprocess

import native_tests
import pytest

pytestmark = [
    pytest.mark.slow,
    # Alone and on a busy machine it waits for the compiler all the while.
    pytest.mark.timeout(1200),
    pytest.mark.skipif(
        not native_tests.can_build(), reason="no g++, or no sources of the native tests"
    ),
]


def built(variant):
    try:
        return native_tests.build(variant)
    except subprocess.CalledProcessError as error:
        if "cannot find" in error.stderr and variant != "plain":
            return None
        return pytest.fail(error.stderr, pytrace=False)


def hold(program):
    run = subprocess.run([program], capture_output=True, text=True, timeout=240, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize("variant", native_tests.SANITIZERS)
def test_native_tests_hold(variant):
    program = built(variant)
    hold(program or built("plain"))
    if program is None:
        pytest.skip(f"the compiler has no runtime library for {variant}; without it they hold")
