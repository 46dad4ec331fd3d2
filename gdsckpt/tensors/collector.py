"""Hold off Python's garbage collector where 100,000 objects are made and none is garbage."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from collections.abc import Iterator

_lock = threading.Lock()
_num_pauses = 0
_was_enabled = False


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """Pause the cyclic garbage collector for the block; threads may overlap.

    It starts whenever many objects were made, and looks at all there are: up to a third of the time
    of unpickling a state of many tensors. Objects without cycles are freed as ever. The last block
    to end starts it again, if it ran before.
    """
    global _num_pauses, _was_enabled  # noqa: PLW0603 - the collector is one for the process, too
    with _lock:
        if _num_pauses == 0:
            _was_enabled = gc.isenabled()
            gc.disable()
        _num_pauses += 1
    try:
        yield
    finally:
        with _lock:
            _num_pauses = max(0, _num_pauses - 1)  # a fork within the block has reset it
            if _num_pauses == 0 and _was_enabled:
                gc.enable()


def _start_in_child() -> None:
    """Forget the parent's blocks: a forked child has none of the threads that would end them."""
    global _lock, _num_pauses  # noqa: PLW0603 - see above
    _lock = threading.Lock()
    if _num_pauses and _was_enabled:
        gc.enable()
    _num_pauses = 0


os.register_at_fork(after_in_child=_start_in_child)
