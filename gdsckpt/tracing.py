"""Ranges of NVTX domain ``gdsckpt``: the stages of a save or load, as profilers show them.

The ranges inside a transfer (copy, checksum, write, read) are the native engine's.
"""

from typing import Literal

from gdsckpt import native

Stage = Literal["plan", "stage", "copy", "checksum", "write", "sync", "commit", "upload", "read"]


def stage(name: Stage, nbytes: int = 0) -> native.NvtxRange:
    """Give a range for the body of a ``with``, which has to begin and end in one thread.

    Without a profiler it costs about a microsecond; without NVTX's headers at build time
    (``native.nvtx_compiled()``) it does nothing.

    Args:
        name: What goes on.
        nbytes: Bytes concerned, the range's payload; 0, where they are not known, gives none.

    Raises:
        ConfigError: There is no such name.
    """
    return native.NvtxRange(name, nbytes)
