import gc
import os

import pytest

from gdsckpt.tensors import collector


@pytest.fixture(autouse=True)
def collector_runs():
    gc.enable()
    yield
    gc.enable()


def test_paused_blocks_may_overlap_and_the_last_one_starts_it_again():
    with collector.paused():
        with collector.paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_paused_starts_it_again_after_an_error():
    with pytest.raises(ZeroDivisionError), collector.paused():
        raise ZeroDivisionError
    assert gc.isenabled()


def test_paused_leaves_it_off_where_it_was_off():
    gc.disable()
    with collector.paused():
        pass
    assert not gc.isenabled()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_paused_block_of_a_parent_does_not_hold_in_a_forked_child():
    with collector.paused():
        pid = os.fork()
        if pid == 0:
            is_enabled = gc.isenabled()
            with collector.paused():
                pass
            os._exit(0 if is_enabled and gc.isenabled() else 1)
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert not gc.isenabled()
