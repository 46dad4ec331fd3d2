"""Fill an existing state in place: no second copy of the model is made."""

from __future__ import annotations

import bisect
from array import array
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

import torch

from gdsckpt import native
from gdsckpt.engine import base
from gdsckpt.errors import StateMismatchError
from gdsckpt.loading.select import describe, is_plain
from gdsckpt.loading.source import ReadOptions
from gdsckpt.staging import shard as shards
from gdsckpt.staging.shard import Shard
from gdsckpt.tensors import devices
from gdsckpt.tensors.arrays import DeviceArray, array_streams, device_array, is_device_array
from gdsckpt.tensors.naming import Path


@dataclass(frozen=True, slots=True)
class Target:
    """One tensor to fill.

    Attributes:
        path: Where it stands, in both nests.
        saved: The saved tensor; its storage may be blank.
        tensor: The caller's tensor, or array on a GPU.
    """

    path: Path
    saved: torch.Tensor
    tensor: torch.Tensor | DeviceArray


@dataclass(frozen=True, slots=True)
class FillPlan:
    """How an existing state gets its new content.

    Attributes:
        direct: Record index to the tensor that its bytes are read into.
        copies: Tensors that take their values from a loaded tensor.
        values: Paths of the leaves that are no tensors, to be set.
    """

    direct: dict[int, torch.Tensor | DeviceArray]
    copies: list[Target]
    values: list[Path]


def match(
    saved: dict[Path, Any], existing: dict[Path, Any], root: Any
) -> tuple[list[Target], list[Path]]:
    """Pair the leaves of the checkpoint with those of the caller's state.

    Dense tensors are filled in place. Every other leaf (plain values, tuples without tensors;
    sparse, nested and quantized tensors) is put in the place of the old one.

    Args:
        saved: Path to leaf, of the selected part of the checkpoint.
        existing: Path to leaf, of the same part of the caller's state.
        root: The caller's state.

    Returns:
        Tensors to fill, and paths of the other leaves, to be set.

    Raises:
        StateMismatchError: A leaf is on one side only, is a tensor on one side only, has another
            shape, or cannot be changed where it stands. Nothing has been changed.
    """
    missing = tuple(describe(path) for path in existing if path not in saved)
    unexpected = tuple(describe(path) for path in saved if path not in existing)
    targets: list[Target] = []
    values: list[Path] = []
    shapes: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {}
    obstacles: dict[str, str] = {}
    for path, leaf in saved.items():
        if path not in existing:
            continue
        own = _with_memory(existing[path])
        why = _obstacle(leaf, own, path, root)
        if why:
            obstacles[describe(path)] = why
        elif not _is_dense(leaf):
            values.extend([path] if _is_settable(path, root) else [])
        elif leaf.shape != own.shape:
            shapes[describe(path)] = (tuple(leaf.shape), tuple(own.shape))
        else:
            targets.append(Target(path, leaf, own))
    if missing or unexpected or shapes or obstacles:
        raise StateMismatchError(
            _mismatch_text(missing, unexpected, shapes, obstacles),
            missing=missing,
            unexpected=(*unexpected, *obstacles),
            shapes=shapes,
        )
    return targets, values


def _obstacle(leaf: Any, own: Any, path: Path, root: Any) -> str:
    """Say why a leaf of the checkpoint cannot take the place of the caller's; empty if it can."""
    if _is_dense(leaf) != _is_dense(own):
        return f"is {_kind(leaf)} there and {_kind(own)} here"
    if not _is_dense(leaf):
        if _is_settable(path, root) or _same(leaf, own):
            return ""
        return "differs and stands in a tuple or at the root, where it cannot be set"
    if isinstance(own, DeviceArray):
        if own.is_read_only:
            return "is a read-only array here"
        return "" if own.is_contiguous else "is an array with gaps here"
    if own.device.type == "meta":
        return "is on the meta device here, where no bytes can be put"
    if (
        is_plain(own) and torch._debug_has_internal_overlap(own) == 1
    ):  # what copy_ would refuse half-way
        return "has elements here that share memory (expand)"
    return ""


def _with_memory(leaf: Any) -> Any:
    """Give an array on a GPU as a description of its memory, anything else as it is."""
    return device_array(leaf) if is_device_array(leaf) else leaf


def _is_dense(leaf: Any) -> bool:
    """Tell whether a leaf is a tensor or array that can be filled in place."""
    return isinstance(leaf, DeviceArray) or (
        isinstance(leaf, torch.Tensor)
        and not torch.nn.parameter.is_lazy(leaf)
        and leaf.layout == torch.strided
        and not leaf.is_nested
        and not leaf.is_quantized
    )


def _kind(leaf: Any) -> str:
    return "a dense tensor" if _is_dense(leaf) else type(leaf).__name__


def _is_settable(path: Path, root: Any) -> bool:
    return bool(path) and isinstance(_container(root, path), (MutableMapping, list))


def plan_fill(
    targets: list[Target],
    values: list[Path],
    shard: Shard,
    record_of: Callable[[torch.Tensor], int | None],
) -> FillPlan:
    """Decide which records are read straight into the caller's memory.

    Args:
        targets: What has to be filled.
        values: Passed on.
        shard: The open shard.
        record_of: Record index of a saved tensor's storage.
    """
    direct: dict[int, torch.Tensor | DeviceArray] = {}
    copies: list[Target] = []
    claimed = _ClaimedMemory()
    for target in targets:
        index = record_of(target.saved)
        if (
            index is None
            or index in direct
            or not _fits(target, shard.entries[index].nbytes)
            or not claimed.claim(target.tensor)
        ):
            copies.append(target)
        else:
            direct[index] = target.tensor
    return FillPlan(direct, copies, values)


def gpus_of(plan: FillPlan) -> set[int]:
    """Give CUDA's numbers of the GPUs that records are read straight to."""
    return {
        target.device if isinstance(target, DeviceArray) else devices.number_of(target.device)
        for target in plan.direct.values()
    } - {native.HOST}


def read_direct(plan: FillPlan, shard: Shard, options: ReadOptions) -> None:
    """Read and verify the records that go straight into the caller's tensors.

    Raises:
        ChecksumError: A record is damaged; the tensor it belongs to holds damaged bytes now.
    """
    indices = sorted(plan.direct, key=shard.payload_offsets.__getitem__)
    rows = array("Q")
    for index in indices:
        shards.require_stored(shard, shard.entries[index])
        nbytes = shard.entries[index].nbytes
        address, device = _memory_of(plan.direct[index])
        row = (address if nbytes else 0, nbytes, shard.payload_offsets[index])
        rows.extend((*row, native.NO_CRC_SLOT, device))
    transfer = options.engine.read(
        shard.file.native, rows, streams=_streams_of(plan.direct.values()), owner=plan
    )
    base.wait(transfer)
    for tensor in plan.direct.values():
        if isinstance(tensor, torch.Tensor):  # autograd must notice, as with copy_
            torch.autograd.graph.increment_version(tensor)
    if options.verify:
        shards.check_crcs(shard, indices, transfer.extent_crcs())


def _memory_of(target: torch.Tensor | DeviceArray) -> tuple[int, int]:
    """Give address and device number of what is to be filled."""
    if isinstance(target, DeviceArray):
        return target.address, target.device
    return target.data_ptr(), devices.number_of(target.device)


def _streams_of(targets: Iterable[torch.Tensor | DeviceArray]) -> array[int]:
    """Give the streams that may still use what is to be filled."""
    targets = list(targets)
    streams = devices.current_streams(
        devices.number_of(target.device) for target in targets if isinstance(target, torch.Tensor)
    )
    streams.extend(array_streams(targets))
    return streams


def copy_rest(plan: FillPlan, loaded: Mapping[Path, Any], root: Any) -> None:
    """Fill the tensors that need a conversion, and set the plain values.

    Args:
        plan: What is left to do.
        loaded: Path to finished leaf, for every path in ``plan.copies`` and ``plan.values``.
        root: The caller's state.
    """
    with torch.no_grad():
        for target in plan.copies:
            try:
                target.tensor.copy_(loaded[target.path])  # of a tensor, or of an array
            except (RuntimeError, NotImplementedError, TypeError) as error:
                name = describe(target.path)
                raise StateMismatchError(
                    f"{name} cannot be filled: {error}. The given state is filled in part; load "
                    "without into=.",
                    missing=(),
                    unexpected=(name,),
                    shapes={},
                ) from error
    for path in plan.values:
        _container(root, path)[path[-1]] = loaded[path]


def _fits(target: Target, record_nbytes: int) -> bool:
    """Tell whether the record's bytes are just the target's memory."""
    saved, own = target.saved, target.tensor
    if isinstance(own, DeviceArray):
        return (
            is_plain(saved)
            and saved.is_contiguous()
            and saved.storage_offset() == 0
            and saved.dtype == own.dtype
            and own.nbytes == record_nbytes
        )
    return (
        is_plain(saved)
        and is_plain(own)
        and (own.device.type == "cpu" or (own.device.type == "cuda" and devices.are_reachable()))
        and saved.dtype == own.dtype
        and saved.is_contiguous()
        and own.is_contiguous()
        and saved.storage_offset() == 0
        and saved.numel() * saved.dtype.itemsize == record_nbytes
    )


class _ClaimedMemory:
    """Memory that a transfer will write to: two writers of one byte would leave a mixture."""

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._ends: list[int] = []

    def claim(self, tensor: torch.Tensor | DeviceArray) -> bool:
        """Claim a tensor's bytes; False where some are claimed already."""
        begin, _ = _memory_of(tensor)
        end = begin + tensor.nbytes
        at = bisect.bisect_left(self._begins, begin)
        if (at > 0 and self._ends[at - 1] > begin) or (
            at < len(self._begins) and self._begins[at] < end
        ):
            return False
        if end > begin:
            self._begins.insert(at, begin)
            self._ends.insert(at, end)
        return True


def _container(root: Any, path: Path) -> Any:
    for key in path[:-1]:
        root = root[key]
    return root


def _same(a: Any, b: Any) -> bool:
    try:
        return bool(a == b or (a != a and b != b))  # noqa: PLR0124 - not a number
    except (TypeError, ValueError, RuntimeError):
        return False


def _mismatch_text(
    missing: tuple[str, ...],
    unexpected: tuple[str, ...],
    shapes: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]],
    obstacles: Mapping[str, str],
) -> str:
    parts = []
    if missing:
        parts.append(f"not in the checkpoint: {_some(missing)}")
    if unexpected:
        parts.append(f"only in the checkpoint: {_some(unexpected)}")
    for name, (saved, own) in list(shapes.items())[:5]:
        parts.append(f"{name} is {saved} there and {own} here")
    parts.extend(f"{name} {why}" for name, why in list(obstacles.items())[:5])
    return (
        f"the checkpoint does not fit the given state: {'; '.join(parts)}. Nothing was changed. "
        "Use keys= to load a part, or load without into=."
    )


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
