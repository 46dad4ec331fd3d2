"""The ways to save and load that are compared; every save is durable when it returns."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import torch

import gdsckpt
from bench.measure import Method, sync_directory, sync_file

State: TypeAlias = dict[str, torch.Tensor]

SEED = 20240607
GDSCKPT = "gdsckpt.save"
TORCH_SAVE = "torch.save + fsync"
GDSCKPT_LOAD = "gdsckpt.load"
GDSCKPT_INTO = "gdsckpt.load(into=)"
TORCH_LOAD = "torch.load"


def make_state(total_bytes: int, tensor_bytes: int) -> State:
    """Make a state of equal float32 tensors with random bits that add up to ``total_bytes``."""
    generator = torch.Generator().manual_seed(SEED)
    state = {}
    for n in range(total_bytes // tensor_bytes):
        bits = torch.empty(tensor_bytes // 8, dtype=torch.int64).random_(generator=generator)
        state[f"layers.{n}.weight"] = bits.view(torch.float32)
    return state


def checksums(state: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """Give the CRC-32 of each tensor's bytes, by zlib."""
    return {
        name: zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy())
        for name, tensor in state.items()
    }


def touch(state: Mapping[str, torch.Tensor]) -> None:
    """Read one byte of each page, so that what was only mapped is really there."""
    for tensor in state.values():
        tensor.reshape(-1).view(torch.uint8)[::4096].max()


def has_safetensors() -> bool:
    """Tell whether safetensors can be compared."""
    try:
        import safetensors.torch  # noqa: F401 - only whether it is there
    except ImportError:
        return False
    return True


def save_methods(state: State, directory: Path) -> list[Method]:
    """Give every way to save ``state`` below ``directory``."""
    ours, stock = directory / "gdsckpt.pt", directory / "torch.pt"
    dcp, safe = directory / "dcp", directory / "safe.safetensors"
    methods = [
        Method(GDSCKPT, lambda: gdsckpt.save(state, ours), ours),
        Method(TORCH_SAVE, lambda: _torch_save(state, stock), stock),
        Method("DCP FileSystemWriter", lambda: _dcp_save(state, dcp), dcp),
    ]
    if has_safetensors():
        methods.append(Method("safetensors + fsync", lambda: _safe_save(state, safe), safe))
    return methods


def load_methods(directory: Path, shapes: Mapping[str, torch.Tensor]) -> list[Method]:
    """Give every way to load what :func:`save_methods` wrote.

    Args:
        directory: Where that is.
        shapes: The state on the meta device: DCP loads into tensors that it is given.
    """
    ours, stock = directory / "gdsckpt.pt", directory / "torch.pt"
    dcp, safe = directory / "dcp", directory / "safe.safetensors"
    methods = [
        Method(GDSCKPT_LOAD, lambda: gdsckpt.load(ours), ours),
        Method(TORCH_LOAD, lambda: torch.load(stock, weights_only=True), stock),
        Method("torch.load(mmap) + touch", lambda: _mapped_load(stock), stock),
        Method("DCP FileSystemReader", lambda: _dcp_load(dcp, shapes), dcp),
    ]
    if has_safetensors():
        methods.append(Method("safetensors + touch", lambda: _safe_load(safe), safe))
    return methods


def into_method(directory: Path, state: State) -> Method:
    """Give the method that fills a state that is there already."""
    ours = directory / "gdsckpt.pt"
    return Method(GDSCKPT_INTO, lambda: gdsckpt.load(ours, into=state), ours)


def warm_up(directory: Path) -> None:
    """Run every method once on a small state, so that imports and first calls are not timed."""
    state = make_state(1 << 20, 64 << 10)
    shapes = {name: tensor.to("meta") for name, tensor in state.items()}
    loaders = [*load_methods(directory, shapes), into_method(directory, state)]
    for method in (*save_methods(state, directory), *loaders):
        method.run()


def _torch_save(state: State, path: Path) -> None:
    torch.save(state, path)
    sync_file(path)


def _dcp_save(state: State, path: Path) -> None:
    from torch.distributed import checkpoint

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # says that there is no process group, which is meant
        writer = checkpoint.FileSystemWriter(path, sync_files=True)
        checkpoint.save(state, storage_writer=writer, no_dist=True)
    sync_directory(path)
    sync_directory(path.parent)


def _dcp_load(path: Path, shapes: Mapping[str, torch.Tensor]) -> State:
    from torch.distributed import checkpoint

    state = {name: torch.empty_like(shape, device="cpu") for name, shape in shapes.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reader = checkpoint.FileSystemReader(path)
        checkpoint.load(state, storage_reader=reader, no_dist=True)
    return state


def _safe_save(state: State, path: Path) -> None:
    from safetensors.torch import save_file

    save_file(state, path)
    sync_file(path)


def _safe_load(path: Path) -> State:
    from safetensors.torch import load_file

    state: State = load_file(path)
    touch(state)
    return state


def _mapped_load(path: Path) -> Any:
    state = torch.load(path, mmap=True, weights_only=True)
    touch(state)
    return state
