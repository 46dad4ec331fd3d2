"""States and gates that the tests of the Checkpointer share."""

import contextlib
import fcntl
import os

import torch

from gdsckpt.staging import root as roots


def state(n, numel=50_000):
    """Give a state whose tensors tell its number."""
    return {
        "n": n,
        "w": torch.full((numel,), float(n)),
        "small": [torch.full((3,), n, dtype=torch.int64) for _ in range(3)],
    }


def number_of(loaded):
    """Give the number of a whole state, or fail."""
    n = loaded["n"]
    assert bool((loaded["w"] == n).all())
    assert all(bool((tensor == n).all()) for tensor in loaded["small"])
    return n


@contextlib.contextmanager
def held_up(root, step):
    """Keep the save of one step from its first byte, for as long as the block lasts.

    A save waits for whoever else saves into its directory.
    """
    directory = roots.step_directory(root, step)
    directory.mkdir(exist_ok=True)
    fd = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def flip(path, offset=70_000):
    """Change one byte of a file in place."""
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 1]))


def shard_of(root, step):
    """Give the only shard of a step."""
    return next(roots.step_directory(root, step).glob("rank-*.pt"))
