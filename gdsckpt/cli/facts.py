"""What the structures of a file tell, read without torch."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gdsckpt.config import Config
from gdsckpt.errors import StateMismatchError
from gdsckpt.format import layout
from gdsckpt.format.table import ChunkTable, TensorEntry
from gdsckpt.remote.opening import open_object, open_place
from gdsckpt.staging import indexing, listed_shards, manifests, reader
from gdsckpt.staging.shard import Origin, Shard
from gdsckpt.store import is_url

_NAMES_OF_ITEM_BYTES = {
    2: "bfloat16 bits16 float16 int16 uint16",
    4: "complex32 float32 int32 qint32 uint32",
    8: "complex64 float64 int64 uint64",
    16: "complex128",
}
_ITEM_BYTES_OF = {
    name: nbytes for nbytes, names in _NAMES_OF_ITEM_BYTES.items() for name in names.split()
}
_ONE_BYTE_PREFIXES = ("float8_", "float4_", "bits", "int", "uint", "qint8", "quint", "bool")
"""torch dtypes of less than a byte are kept one to a byte or packed; a byte is their item."""

ALIGNMENT_MAX = layout.LARGE_ALIGNMENT


@dataclass(frozen=True, slots=True)
class RecordFacts:
    """One record of the archive; ``file_offset`` is that of its payload."""

    name: str
    nbytes: int
    file_offset: int
    crc32: int


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """One named tensor; what is None cannot be told without torch."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    record: int
    nbytes: int | None
    file_offset: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFacts:
    """One file.

    Attributes:
        path: The file.
        kind: ``gdsckpt``, ``torch zip``, ``torch legacy`` or ``zip``.
        nbytes: File size in bytes.
        format_version: Of our own files.
        chunk_bytes: Chunk size of our own files.
        num_chunks: Checksummed chunks.
        engine: From the manifest that names the file; a lone file does not say.
        records: In the order of the archive's directory.
        alignments: Largest power of two up to 64 KiB that divides the offset of a storage record,
            to how many records.
        tensors: None where the file does not tell their names.
    """

    path: str
    kind: str
    nbytes: int
    format_version: int | None
    chunk_bytes: int | None
    num_chunks: int | None
    engine: str | None
    records: tuple[RecordFacts, ...]
    alignments: dict[int, int]
    tensors: tuple[TensorFacts, ...] | None


@dataclass(frozen=True, slots=True)
class CheckpointFacts:
    """A path: a lone file, or a directory with its manifest."""

    path: str
    manifest: dict[str, Any] | None
    files: tuple[FileFacts, ...]

    def as_dict(self) -> dict[str, Any]:
        """Give all of it as values that JSON has."""
        return dataclasses.asdict(self)


def read_facts(path: str, *, config: Config, prefix: str = "") -> CheckpointFacts:
    """Read the structures of a file, or of all shards of a checkpoint directory.

    Args:
        path: File or directory, or the URL of either.
        config: Settings, for URLs.
        prefix: Keep only tensors whose name begins with these components.

    Raises:
        CheckpointNotFoundError: There is nothing.
        StoreError: An object store cannot be asked.
        FormatError: It is no checkpoint, or damaged.
        StateMismatchError: ``prefix`` names no tensor.
    """
    if is_url(path):
        facts = _facts_at(path, config)
    elif not Path(path).is_dir():
        with reader.open_shard(path) as shard:
            facts = CheckpointFacts(path, None, (_facts_of(shard, None),))
    else:
        facts = _facts_in(path)
    return _only(facts, prefix) if prefix else facts


def _facts_in(path: str) -> CheckpointFacts:
    with manifests.being_read(path) as raw:
        manifest = manifests.decode_manifest(path, raw)
        files = []
        for entry in manifest.shards:
            with listed_shards.open_listed_shard(path, entry) as shard:
                file = _facts_of(shard, manifest.engine)
                files.append(dataclasses.replace(file, path=str(Path(path) / entry.name)))
    return CheckpointFacts(path, dataclasses.asdict(manifest), tuple(files))


def _facts_at(url: str, config: Config) -> CheckpointFacts:
    with open_place(url, config) as place:
        if place.source is not None:
            with open_object(place.source, place.crew) as opened:
                return CheckpointFacts(place.url, None, (_facts_of(opened.shard, None),))
        manifest = place.manifest
        files = []
        for entry in manifest.shards:
            with place.open_listed(entry) as opened:
                files.append(_facts_of(opened.shard, manifest.engine))
        return CheckpointFacts(place.url, dataclasses.asdict(manifest), tuple(files))


def kind_of(shard: Shard) -> str:
    """Name the kind of an open file.

    Raises:
        FormatError: Not a file of torch or ours.
    """
    if shard.origin is Origin.GDSCKPT:
        return "gdsckpt"
    if shard.origin is Origin.NO_ZIP:
        indexing.require_legacy(shard)
        return "safetensors" if shard.path.endswith(".safetensors") else "torch legacy"
    return "zip" if shard.find("data.pkl") is None else "torch zip"


def _only(facts: CheckpointFacts, prefix: str) -> CheckpointFacts:
    dotted = prefix.rstrip(".") + "."
    files = tuple(
        dataclasses.replace(
            file, tensors=tuple(t for t in file.tensors if f"{t.name}.".startswith(dotted))
        )
        if file.tensors is not None
        else file
        for file in facts.files
    )
    if not any(file.tensors for file in files):
        raise StateMismatchError(
            f"no tensor of {facts.path} has a name that begins with {prefix}. "
            f"'gdsckpt inspect {facts.path}' lists all names.",
            missing=(prefix,),
        )
    return CheckpointFacts(facts.path, facts.manifest, files)


def _facts_of(shard: Shard, engine: str | None) -> FileFacts:
    table = shard.read_table() if shard.origin is Origin.GDSCKPT else None
    data_prefix = f"{shard.archive}/data/"
    alignments = Counter(
        min(ALIGNMENT_MAX, offset & -offset)
        for entry, offset in zip(shard.entries, shard.payload_offsets, strict=True)
        if entry.name.startswith(data_prefix) and entry.nbytes
    )
    return FileFacts(
        path=shard.path,
        kind=kind_of(shard),
        nbytes=shard.nbytes,
        format_version=layout.FORMAT_VERSION if table else None,
        chunk_bytes=table.chunk_bytes if table else None,
        num_chunks=len(table.chunk_crc32) if table else None,
        engine=engine,
        records=tuple(
            RecordFacts(entry.name, entry.nbytes, offset, entry.crc32)
            for entry, offset in zip(shard.entries, shard.payload_offsets, strict=True)
        ),
        alignments=dict(alignments),
        tensors=_tensors_of(shard, table) if table else None,
    )


def _tensors_of(shard: Shard, table: ChunkTable) -> tuple[TensorFacts, ...]:
    return tuple(_tensor_facts(shard, tensor) for tensor in table.tensors)


def _tensor_facts(shard: Shard, tensor: TensorEntry) -> TensorFacts:
    index = shard.find(f"data/{tensor.record}")
    item_bytes = item_bytes_of(tensor.dtype)
    return TensorFacts(
        name=tensor.name,
        dtype=tensor.dtype,
        shape=tensor.shape,
        strides=tensor.strides,
        record=tensor.record,
        nbytes=None if item_bytes is None else math.prod(tensor.shape) * item_bytes,
        file_offset=None if index is None else shard.payload_offsets[index] + tensor.byte_offset,
    )


def item_bytes_of(dtype: str) -> int | None:
    """Give the bytes of an element by the dtype's name, or None for one that is not known."""
    if dtype in _ITEM_BYTES_OF:
        return _ITEM_BYTES_OF[dtype]
    return 1 if dtype.startswith(_ONE_BYTE_PREFIXES) else None
