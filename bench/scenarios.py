"""What is measured: save, load, many small tensors, memory, file size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import gdsckpt
from bench import fio, measure, memory, methods
from bench.fio import FioOptions
from bench.measure import Method, Rounds, Sample

SMALL_TENSOR_BYTES = 4 << 10
FILE_SIZE_TENSORS = (4 << 10, 64 << 10, 256 << 10, 1 << 20, 16 << 20, 64 << 20)
FILE_SIZE_TOTAL_BYTES = 128 << 20

Samples = dict[str, list[Sample]]


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure, and how large.

    Attributes:
        directory: Where the files go; only files of the benchmark are in it.
        total_bytes: Size of the state.
        tensor_bytes: Size of each tensor.
        rounds: How often each method runs.
        num_small: Number of small tensors.
        memory_bytes: Sizes of state for which memory is measured.
        fio: How fio is asked.
    """

    directory: Path
    total_bytes: int
    tensor_bytes: int
    rounds: int
    num_small: int
    memory_bytes: tuple[int, ...]
    fio: FioOptions


def _remove_target(method: Method) -> None:
    measure.remove(method.files)


def _evict_source(method: Method) -> None:
    measure.evict(method.files)


def _warm_source(method: Method) -> None:
    if measure.resident_share(method.files) < 1:
        measure.warm(method.files)


def measure_save(plan: Plan) -> Samples:
    """Measure durable saves of the large state, each to a new file."""
    state = methods.make_state(plan.total_bytes, plan.tensor_bytes)
    contestants = methods.save_methods(state, plan.directory)
    contestants.append(fio.write_method(plan.directory / "fio", plan.total_bytes, plan.fio))

    def prepare(_: Method) -> None:
        for other in contestants:  # so that the drive holds one file at a time
            measure.remove(other.files)

    samples = measure.run_rounds(
        contestants,
        Rounds(plan.rounds, plan.total_bytes, plan.total_bytes),
        prepare=prepare,
    )
    for method in contestants:
        measure.remove(method.files)
    return samples


def measure_load(plan: Plan) -> dict[str, Samples]:
    """Measure cold loads of the large state, then warm ones."""
    state = methods.make_state(plan.total_bytes, plan.tensor_bytes)
    written = methods.save_methods(state, plan.directory)
    for method in written:
        _remove_target(method)
        method.run()
        measure.evict(method.files)
    expected = methods.checksums(state)
    shapes = {name: tensor.to("meta") for name, tensor in state.items()}
    del state
    check = _checker(expected)
    contestants = methods.load_methods(plan.directory, shapes)
    contestants.append(fio.read_method(contestants[0].files, plan.fio))
    cold = measure.run_rounds(
        contestants,
        # A buffered read fills the page cache too.
        Rounds(plan.rounds, plan.total_bytes, 2 * plan.total_bytes),
        prepare=_evict_source,
        check=check,
    )
    cold |= _measure_into(plan, shapes, check)
    warm_contestants = [m for m in contestants if m.name in _WARM]
    warm = measure.run_rounds(
        warm_contestants,
        Rounds(plan.rounds, plan.total_bytes, plan.total_bytes),
        prepare=_warm_source,
        check=check,
    )
    for method in written:
        measure.remove(method.files)
    return {"load_cold": cold, "load_warm": warm}


_WARM = (methods.GDSCKPT_LOAD, methods.TORCH_LOAD)


def _measure_into(
    plan: Plan, shapes: dict[str, torch.Tensor], check: Callable[[Method, Any], None]
) -> Samples:
    """Measure loads into memory that is there, with the limit beside them in the same rounds."""
    own = {name: torch.zeros_like(shape, device="cpu") for name, shape in shapes.items()}
    into = methods.into_method(plan.directory, own)
    limit = fio.read_method(into.files, plan.fio)
    beside = Method(f"{limit.name}, beside into=", limit.run, limit.files)
    rounds = Rounds(plan.rounds, plan.total_bytes, 0)
    return measure.run_rounds([into, beside], rounds, prepare=_evict_source, check=check)


def _checker(expected: dict[str, int]) -> Callable[[Method, Any], None]:
    def check(method: Method, result: Any) -> None:
        if result is not None and methods.checksums(result) != expected:
            raise RuntimeError(f"{method.name} gave other bytes than were saved")

    return check


def measure_small(plan: Plan) -> dict[str, Samples]:
    """Measure many small tensors: saves, and loads with and without ``weights_only``."""
    total_bytes = plan.num_small * SMALL_TENSOR_BYTES
    state = methods.make_state(total_bytes, SMALL_TENSOR_BYTES)
    expected = methods.checksums(state)
    savers = methods.save_methods(state, plan.directory)[:2]
    results = {
        "small_save": measure.run_rounds(
            savers,
            Rounds(plan.rounds, total_bytes, total_bytes),
            prepare=_remove_target,
        )
    }
    del state
    for cache, prepare in (("cold", _evict_source), ("warm", _warm_source)):
        for weights_only in (True, False):
            results[f"small_load_{cache}_{'safe' if weights_only else 'full'}"] = (
                measure.run_rounds(
                    _small_loaders(plan.directory, weights_only=weights_only),
                    Rounds(plan.rounds, total_bytes, 2 * total_bytes),
                    prepare=prepare,
                    check=_checker(expected),
                )
            )
    for method in savers:
        measure.remove(method.files)
    return results


def _small_loaders(directory: Path, *, weights_only: bool) -> list[Method]:
    ours, stock = directory / "gdsckpt.pt", directory / "torch.pt"
    return [
        Method(methods.GDSCKPT_LOAD, lambda: gdsckpt.load(ours, weights_only=weights_only), ours),
        Method(methods.TORCH_LOAD, lambda: torch.load(stock, weights_only=weights_only), stock),
    ]


def measure_memory(plan: Plan) -> list[dict[str, Any]]:
    """Measure the memory that saves and loads need beyond the state."""
    rows = []
    for total_bytes in plan.memory_bytes:
        for library in ("gdsckpt", "torch"):
            path = plan.directory / f"memory-{library}.pt"
            row: dict[str, Any] = {"library": library, "state_bytes": total_bytes}
            for what in ("save", "load"):
                row[f"{what}_extra_bytes"] = memory.extra_bytes(
                    what, library, path, total_bytes, min(plan.tensor_bytes, total_bytes)
                )
            measure.remove(path)
            print(f"  memory  {library:<10} {row}")
            rows.append(row)
    return rows


def measure_file_size(plan: Plan) -> list[dict[str, Any]]:
    """Compare the size of files with the payload in them."""
    rows = []
    for tensor_bytes in FILE_SIZE_TENSORS:
        state = methods.make_state(FILE_SIZE_TOTAL_BYTES, tensor_bytes)
        savers = methods.save_methods(state, plan.directory)[:2]
        sizes = []
        for method in savers:
            method.run()
            sizes.append(method.files.stat().st_size)
            measure.remove(method.files)
        rows.append(
            {
                "tensor_bytes": tensor_bytes,
                "payload_bytes": FILE_SIZE_TOTAL_BYTES,
                "gdsckpt_bytes": sizes[0],
                "torch_bytes": sizes[1],
            }
        )
    return rows
