"""Arrays of CuPy and Numba, and what shows only DLPack: saved, loaded by torch, filled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import gdsckpt
from bench.gpu_steps.recorder import Recorder, run

SHAPE = (1000, 1001)


def main(recorder: Recorder) -> None:
    """Try each library that is installed."""
    for name, round_trip in (("cupy", _cupy), ("numba", _numba), ("dlpack", _dlpack)):
        try:
            __import__("torch" if name == "dlpack" else name)
        except ImportError as error:
            recorder.skip(name, str(error))
            continue
        path = recorder.directory / f"{name}.pt"
        recorder.attempt(name, lambda work=round_trip, path=path: work(path))


def _require(is_right: bool, what: str) -> None:
    if not is_right:
        raise AssertionError(what)


def _cupy(path: Path) -> str:
    import cupy

    array = cupy.arange(SHAPE[0] * SHAPE[1], dtype=cupy.float32).reshape(SHAPE)
    cupy.cuda.Device().synchronize()  # the next stream waits for no other
    with cupy.cuda.Stream(non_blocking=True):
        late = array * 2  # made on a stream of its own, as the interface says
        gdsckpt.save({"a": array, "late": late, "cut": array[:, 10:20]}, path)
    loaded = torch.load(path, weights_only=True)
    wanted = torch.as_tensor(array)
    _require(loaded["a"].is_cuda and torch.equal(loaded["a"], wanted), "a differs")
    _require(torch.equal(loaded["late"], wanted * 2), "late differs")
    _require(torch.equal(loaded["cut"], wanted[:, 10:20]), "cut differs")
    into = {"a": cupy.zeros_like(array), "late": cupy.zeros_like(array)}
    gdsckpt.load(path, into=into, keys=["a", "late"])
    _require(bool((into["a"] == array).all() and (into["late"] == late).all()), "into differs")
    return "saved, loaded by torch.load, filled"


def _numba(path: Path) -> str:
    import numpy
    from numba import cuda

    host = numpy.arange(SHAPE[0] * SHAPE[1], dtype=numpy.float64).reshape(SHAPE)
    array: Any = cuda.to_device(host)
    gdsckpt.save({"a": array}, path)
    loaded = torch.load(path, map_location="cpu", weights_only=True)
    _require(bool((loaded["a"].numpy() == host).all()), "a differs")
    into = {"a": cuda.to_device(numpy.zeros_like(host))}
    gdsckpt.load(path, into=into)
    _require(bool((into["a"].copy_to_host() == host).all()), "into differs")
    return "saved, loaded by torch.load, filled"


class _OnlyDlpack:
    """An array that shows nothing but DLPack."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def __dlpack__(self, **options: Any) -> Any:
        return self._tensor.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._tensor.__dlpack_device__()


def _dlpack(path: Path) -> str:
    tensor = torch.arange(10_007, device="cuda", dtype=torch.bfloat16)
    gdsckpt.save({"a": _OnlyDlpack(tensor)}, path)
    loaded = gdsckpt.load(path)
    _require(torch.equal(loaded["a"], tensor), "a differs")
    target = torch.zeros_like(tensor)
    gdsckpt.load(path, into={"a": _OnlyDlpack(target)})
    _require(torch.equal(target, tensor), "into differs")
    return "saved, loaded, filled"


if __name__ == "__main__":
    run(main, needs_gpu=True)
