"""Compare two checkpoints, a bounded number of bytes at a time."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path as FilePath
from typing import Any

import torch

from gdsckpt.config import Config
from gdsckpt.engine.base import Progress
from gdsckpt.errors import FormatError
from gdsckpt.format.table import TensorEntry
from gdsckpt.loading import load
from gdsckpt.loading.differences import Difference, difference_of
from gdsckpt.loading.select import walk_leaves
from gdsckpt.staging import listed_shards, reader
from gdsckpt.staging.shard import Origin, Shard
from gdsckpt.tensors.naming import Path, name_of, strided_parts, walk

BATCH_BYTES = 64 << 20
"""Tensors are loaded together up to this size, since each load reads the pickle again."""

_PLAIN_TYPES = (int, float, str, bool, bytes, complex, type(None))


@dataclass(frozen=True, slots=True)
class Reshaped:
    """A tensor whose dtype, shape or layout differs."""

    name: str
    a: str
    b: str


@dataclass(frozen=True, slots=True)
class OtherValue:
    """A value that is no tensor and differs; None where one side lacks it."""

    name: str
    a: str | None
    b: str | None


@dataclass(slots=True)
class Comparison:
    """What differs between two checkpoints.

    Attributes:
        a: First path.
        b: Second path.
        added: Names of tensors that only ``b`` has.
        removed: Names of tensors that only ``a`` has.
        reshaped: Tensors whose dtype, shape or layout differs.
        changed: Tensors with other values.
        others: Values that are no tensors and differ.
        num_equal: Tensors that are equal, bit by bit.
        num_skipped: Of these, the ones that were not read, since length and CRC-32 agree.
    """

    a: str
    b: str
    added: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    reshaped: list[Reshaped] = field(default_factory=list)
    changed: list[Difference] = field(default_factory=list)
    others: list[OtherValue] = field(default_factory=list)
    num_equal: int = 0
    num_skipped: int = 0

    @property
    def same(self) -> bool:
        """Whether nothing differs."""
        return not (self.added or self.removed or self.reshaped or self.changed or self.others)

    def as_dict(self) -> dict[str, Any]:
        """Give all of it as values that JSON has."""
        return {"same": self.same, **asdict(self)}


@dataclass(frozen=True, slots=True)
class CompareOptions:
    """How to compare.

    Attributes:
        config: Settings of the loads.
        weights_only: Refuse pickles that need more than tensors and plain values.
        full: Read also the tensors whose length and CRC-32 agree.
    """

    config: Config
    weights_only: bool = True
    full: bool = False


def compare(
    a: str | os.PathLike[str],
    b: str | os.PathLike[str],
    options: CompareOptions,
    *,
    progress: Progress | None = None,
) -> Comparison:
    """Compare two files or checkpoint directories, tensor by tensor.

    Memory stays at a few times the largest tensor or ``BATCH_BYTES``, except for files of the time
    before zip archives, which torch reads only as a whole.

    Args:
        a: File or directory.
        b: The one to compare it with.
        options: How to compare.
        progress: Called with (bytes done, bytes in all) of what has to be read.

    Raises:
        GdsckptError: As for :func:`gdsckpt.load`.
    """
    outlines = (_outline(a, options), _outline(b, options))
    found = Comparison(os.fspath(a), os.fspath(b))
    skip = frozenset() if options.full else _identical(*outlines)
    found.num_equal = found.num_skipped = len(skip)
    batches = list(_batches(outlines, skip))
    sizes = [sum(_nbytes(outlines, name) for name in batch) for batch in batches]
    for number, batch in enumerate(batches, start=1):
        leaves_a, leaves_b = (_load_leaves(outline, batch, options) for outline in outlines)
        for path in dict.fromkeys([*leaves_a, *leaves_b]):
            _compare_leaf(path, leaves_a, leaves_b, found)
        if progress is not None:
            progress(sum(sizes[:number]), sum(sizes))
    return found


@dataclass(frozen=True, slots=True)
class _Outline:
    """What is known of a checkpoint before its tensors are read.

    Attributes:
        path: File or directory.
        names: Of all leaves, in order, each once.
        entries: Tensors by name, of our own files.
        payloads: (nbytes, CRC-32) by storage record, of our own files.
        nbytes_of: Size of the leaf of a name, as far as it is known.
        is_whole: The file can only be read as a whole.
    """

    path: str | os.PathLike[str]
    names: tuple[str, ...]
    entries: Mapping[str, TensorEntry]
    payloads: Mapping[int, tuple[int, int]]
    nbytes_of: Mapping[str, int]
    is_whole: bool


def _outline(path: str | os.PathLike[str], options: CompareOptions) -> _Outline:
    names: dict[str, None] = {}

    def note(name: str) -> bool:
        names[name] = None
        return False

    load(path, keys=note, weights_only=options.weights_only, config=options.config)
    is_directory = FilePath(path).is_dir()
    with listed_shards.open_only_shard(path) if is_directory else reader.open_shard(path) as shard:
        if shard.origin is not Origin.GDSCKPT:
            sizes = _sizes_by_torch(path, options) if shard.origin is Origin.FOREIGN_ZIP else {}
            return _Outline(path, tuple(names), {}, {}, sizes, shard.origin is Origin.NO_ZIP)
        return _outline_of_ours(path, tuple(names), shard)


def _outline_of_ours(
    path: str | os.PathLike[str], names: tuple[str, ...], shard: Shard
) -> _Outline:
    tensors = shard.read_table().tensors
    payloads = {}
    for record in {tensor.record for tensor in tensors}:
        index = shard.find(f"data/{record}")
        if index is not None:
            payloads[record] = (shard.entries[index].nbytes, shard.entries[index].crc32)
    sizes = {t.name: payloads[t.record][0] for t in tensors if t.record in payloads}
    entries = {tensor.name: tensor for tensor in tensors}
    if len(entries) != len(tensors) or _has_view_bits(shard):
        entries = {}  # a name stands for two tensors, or bytes do not tell all: read everything
    return _Outline(path, names, entries, payloads, sizes, is_whole=False)


def _has_view_bits(shard: Shard) -> bool:
    """Tell whether the pickle may hold negative views, whose bytes are not their values."""
    index = shard.find("data.pkl")
    return index is None or b"neg" in shard.read_record(index)


def _sizes_by_torch(path: str | os.PathLike[str], options: CompareOptions) -> dict[str, int]:
    """Give the sizes of a foreign file's tensors from a load without data."""
    try:
        state = load(
            path, "meta", weights_only=options.weights_only, verify=False, config=options.config
        )
    except FormatError:  # quantized tensors cannot be on meta: their sizes stay unknown
        return {}
    return {
        name_of(leaf_path): leaf.nbytes
        for leaf_path, leaf in walk(state)
        if isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided and not leaf.is_nested
    }


def _identical(a: _Outline, b: _Outline) -> frozenset[str]:
    """Name the tensors whose bytes are the same for all that length and CRC-32 can tell."""
    return frozenset(
        name
        for name in a.names
        if name in a.entries
        and name in b.entries
        and _is_identical(a.entries[name], b.entries[name], a, b)
    )


def _is_identical(x: TensorEntry, y: TensorEntry, a: _Outline, b: _Outline) -> bool:
    if x.dtype.startswith(("complex", "q")):  # conjugation and scales are not in the bytes
        return False
    same_view = (x.dtype, x.shape, x.strides, x.byte_offset) == (
        y.dtype,
        y.shape,
        y.strides,
        y.byte_offset,
    )
    payload = a.payloads.get(x.record)
    return same_view and payload is not None and payload == b.payloads.get(y.record)


def _batches(outlines: tuple[_Outline, _Outline], skip: frozenset[str]) -> Iterator[frozenset[str]]:
    """Cut the names into sets that are loaded together."""
    names = [n for n in dict.fromkeys([*outlines[0].names, *outlines[1].names]) if n not in skip]
    if any(outline.is_whole for outline in outlines):
        yield frozenset(names)
        return
    batch: set[str] = set()
    batch_bytes = 0
    for name in names:
        nbytes = _nbytes(outlines, name)
        if batch and batch_bytes + nbytes > BATCH_BYTES:
            yield frozenset(batch)
            batch, batch_bytes = set(), 0
        batch.add(name)
        batch_bytes += nbytes
    if batch:
        yield frozenset(batch)


def _nbytes(outlines: tuple[_Outline, _Outline], name: str) -> int:
    return max(outline.nbytes_of.get(name, 0) for outline in outlines)


def _load_leaves(
    outline: _Outline, batch: frozenset[str], options: CompareOptions
) -> dict[Path, Any]:
    if batch.isdisjoint(outline.names):
        return {}
    state = load(
        outline.path,
        "cpu",
        keys=batch.__contains__,
        weights_only=options.weights_only,
        config=options.config,
    )
    return {
        path: leaf
        for leaf_path, leaf in walk_leaves(state)
        if name_of(leaf_path) in batch
        for path, leaf in _entered(leaf_path, leaf)
    }


def _entered(path: Path, leaf: Any) -> Iterable[tuple[Path, Any]]:
    """Give the tensors of a module, or the leaf itself."""
    if isinstance(leaf, torch.nn.Module):
        return [((*path, *inner), value) for inner, value in walk(leaf)]
    return [(path, leaf)]


def _compare_leaf(
    path: Path, leaves_a: Mapping[Path, Any], leaves_b: Mapping[Path, Any], found: Comparison
) -> None:
    name = name_of(path)
    a, b = leaves_a.get(path), leaves_b.get(path)
    is_tensor_a, is_tensor_b = isinstance(a, torch.Tensor), isinstance(b, torch.Tensor)
    if is_tensor_a and is_tensor_b:
        _compare_tensors(name, a, b, found)
        return
    if is_tensor_a:
        found.removed.append(name)
    if is_tensor_b:
        found.added.append(name)
    has_a, has_b = path in leaves_a and not is_tensor_a, path in leaves_b and not is_tensor_b
    if (has_a or has_b) and not (has_a and has_b and _is_same_value(a, b)):
        text_a, text_b = _text_of(a) if has_a else None, _text_of(b) if has_b else None
        found.others.append(OtherValue(name, text_a, text_b))


def _compare_tensors(name: str, a: Any, b: Any, found: Comparison) -> None:
    outline_a, outline_b = _describe(a), _describe(b)
    if outline_a != outline_b:
        found.reshaped.append(Reshaped(name, outline_a, outline_b))
        return
    parts_a, parts_b = dict(strided_parts((), a)), dict(strided_parts((), b))
    if any(_describe(parts_a[key]) != _describe(parts_b[key]) for key in parts_a):
        # Sparse tensors of other places, jagged ones of other lengths: no difference is defined.
        found.changed.append(Difference(name))
        return
    differences = [
        difference_of(".".join([name, *map(str, key)]), parts_a[key], parts_b[key])
        for key in parts_a
    ]
    differing = [difference for difference in differences if difference is not None]
    found.changed.extend(differing)
    found.num_equal += not differing


def _describe(tensor: torch.Tensor) -> str:
    dtype = str(tensor.dtype).removeprefix("torch.")
    layout = "" if tensor.layout == torch.strided else f" {str(tensor.layout).split('.')[-1]}"
    # A nested tensor has a symbol of its own for the length that varies; two never have the same.
    sizes = [str(n) if str(n).isdigit() else "jagged" for n in tensor.shape]
    return f"{dtype} [{', '.join(sizes)}]{layout}"


def _is_same_value(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, _PLAIN_TYPES):
        return repr(a) == repr(b)  # NaN is itself here, and -0.0 is not 0.0
    return _pickled(a) == _pickled(b)


def _pickled(value: Any) -> bytes:
    """Give the bytes of anything that may hold tensors."""
    raw = io.BytesIO()
    torch.save(value, raw)
    return raw.getvalue()


def _text_of(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
