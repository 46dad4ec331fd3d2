"""Load a checkpoint: verified, in order, with the results of stock ``torch.load``."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import warnings
from collections.abc import Collection, Iterator, Mapping
from typing import Any, BinaryIO

import torch

from gdsckpt.config import Config
from gdsckpt.engine.base import Engine
from gdsckpt.engine.fallback import reasons_at_run_time
from gdsckpt.engine.pinned import shared_engine
from gdsckpt.engine.registry import choose_engine
from gdsckpt.errors import ConfigError, FormatError, UnverifiedWarning
from gdsckpt.loading import into as filling
from gdsckpt.loading import places, select
from gdsckpt.loading.restore import MapLocation, is_meta, restorer
from gdsckpt.loading.source import ReadOptions, StorageSource
from gdsckpt.loading.stock import load_stock
from gdsckpt.loading.unpickle import looks_at_values, needs_stock_torch, unpickle
from gdsckpt.remote.opening import OpenedObject, read_only_object
from gdsckpt.staging import files, indexing, listed_shards, reader, scanning, stream
from gdsckpt.staging.shard import Origin, Shard
from gdsckpt.store import is_url
from gdsckpt.tensors import devices
from gdsckpt.tensors.naming import KeySelection, Path, checked_keys, name_of, selector

SMALL_STORAGE_BYTES = 64 << 10
"""Storages up to this size are read even where they are not wanted, if rebuilding a tensor may look
at its values (nested sizes, sparse indices, any ``__setstate__``)."""


def load(  # noqa: PLR0913 - torch.load's arguments, and ours by keyword only
    f: str | os.PathLike[str] | BinaryIO,
    map_location: MapLocation = None,
    *,
    weights_only: bool = True,
    verify: bool = True,
    into: Any = None,
    keys: KeySelection | None = None,
    config: Config | Mapping[str, Any] | None = None,
) -> Any:
    """Load what :func:`gdsckpt.save` or ``torch.save`` wrote.

    Every byte that is returned has been checked against the checksum that was taken when it was
    written, unless ``verify`` is False or the file carries none (one warning then).

    Args:
        f: Path or URL (``s3://``, ``file://``, ``memory://``) of a file or of a checkpoint
            directory of one rank, or a binary file object, seekable or not. Of an object only what
            is needed is received, straight to where it has to go.
        map_location: As for ``torch.load``: None, a device, a device string, a dict or a callable.
        weights_only: Refuse pickles that need more than tensors and plain values.
        verify: Check the bytes against their checksums.
        into: A nest of the same structure (dicts and lists; pass ``module.state_dict()``, not the
            module) to fill; no second copy of it is made. Dense tensors are filled in place, other
            leaves are replaced. Structure and shapes are checked before the first byte is written;
            after an error while reading, its content is undefined.
        keys: Load a part: a name prefix (``"model"``), several, or a predicate on names such as
            ``model.layers.0.weight``. Only the bytes of that part are read. Mappings lose other
            keys; lists keep their length, with None for what was not selected.
        config: Settings; also read from ``GDSCKPT_*``.

    Returns:
        The saved object, or ``into``.

    Raises:
        CheckpointNotFoundError: There is no such file.
        FormatError: It is no checkpoint, or damaged.
        ChecksumError: Bytes are not what was written; names file, tensor and offset.
        UnsafePickleError: ``weights_only`` refused the pickle.
        StateMismatchError: ``into`` or ``keys`` do not fit the checkpoint.
        StorageError: Reading failed.
        StoreError: The object store failed, or the object was replaced meanwhile.
        ConfigError: An argument or a setting is wrong.
        MemoryError: The tensors do not fit into memory.
    """
    settings = Config.resolve(config, os.environ)
    if into is not None and map_location is not None:
        raise ConfigError(
            "into= and map_location= contradict each other: tensors are filled where they are. "
            "Pass one of them.",
            field="map_location",
        )
    restorer(map_location)  # a wrong one fails before anything is read
    keys = checked_keys(keys)

    def answer(opened: _Opened) -> Any:
        request = _Request(opened, settings, map_location, weights_only, verify)
        request.warn_if_unverified()
        if into is not None:
            return request.fill(into, keys)
        if keys is not None:
            return request.part(keys)
        return request.whole()

    if is_url(f):
        return read_only_object(
            str(f), settings, lambda remote: answer(_Opened(remote.shard, remote))
        )
    with _open(f, settings) as shard:
        return answer(_Opened(shard))


@dataclasses.dataclass(frozen=True, slots=True)
class _Opened:
    """What is loaded: a local file, or an object."""

    shard: Shard
    remote: OpenedObject | None = None


@contextlib.contextmanager
def _open(f: str | os.PathLike[str] | BinaryIO, config: Config) -> Iterator[Shard]:
    if not isinstance(f, (str, os.PathLike)):
        stream.require_binary(f, "read")
        with reader.open_stream(f, direct_io=config.direct_io) as shard:
            yield shard
        return
    path = files.local_path(f)
    opened = listed_shards.open_only_shard if os.path.isdir(path) else reader.open_shard  # noqa: PTH112 - Path.is_dir raises for names that are too long
    with opened(path, direct_io=config.direct_io) as shard:
        yield shard


class _Request:
    """One call of :func:`load` on an open shard."""

    def __init__(
        self,
        opened: _Opened,
        config: Config,
        map_location: MapLocation,
        weights_only: bool,
        verify: bool,
    ) -> None:
        self._shard = opened.shard
        self._remote = opened.remote
        self._map_location = map_location
        self._weights_only = weights_only
        self._config = config
        self._options = ReadOptions(
            engine=self._engine(()),
            verify=verify and config.checksum != "none",
            read_ahead_bytes=config.read_ahead_bytes,
        )

    def warn_if_unverified(self) -> None:
        """Say once that a foreign file has no checksums to check."""
        shard = self._shard
        if not self._options.verify or shard.origin is Origin.GDSCKPT:
            return
        if shard.origin is Origin.NO_ZIP:
            indexing.require_legacy(shard)  # a file of another kind is worth no warning
        data = [shard.entries[n] for n in shard.storage_records()]
        if shard.origin is Origin.NO_ZIP or any(e.nbytes and not e.crc32 for e in data):
            warnings.warn(
                f"{shard.path} carries no checksums: damage in it cannot be found. Save it again "
                "with gdsckpt.save.",
                UnverifiedWarning,
                stacklevel=4,
            )

    def whole(self) -> Any:
        """Load everything."""
        return self._stock() if self._is_stock else self._unpickle(None)

    def part(self, keys: KeySelection) -> Any:
        """Load the selected leaves."""
        is_selected = selector(keys)
        structure, records = self._structure()
        leaves = select.walk_leaves(structure)
        select.require_matches(keys, (name_of(path) for path, _ in leaves))
        chosen = [(path, leaf) for path, leaf in leaves if is_selected(name_of(path))]
        kept = {path for path, _ in chosen}
        selection = select.Selection(
            select.with_beginnings(kept),
            select.with_beginnings(path for path, _ in leaves if path not in kept),
        )
        if not self._is_stock:
            structure = self._unpickle(_records_of(chosen, records))
        return structure if len(kept) == len(leaves) else select.prune(structure, selection)

    def fill(self, into: Any, keys: KeySelection | None) -> Any:
        """Fill an existing state."""
        is_selected = selector(keys)
        structure, records = self._structure()
        saved = {p: v for p, v in select.walk_settable(structure) if is_selected(name_of(p))}
        existing = {p: v for p, v in select.walk_settable(into) if is_selected(name_of(p))}
        select.require_matches(keys, (name_of(path) for path in saved))
        targets, values = filling.match(saved, existing, into)

        def record_of(tensor: torch.Tensor) -> int | None:
            if not records or not select.is_plain(tensor):
                return None
            return records.get(tensor.untyped_storage()._cdata)

        plan = filling.plan_fill(targets, values, self._shard, record_of)
        with self._options_for(filling.gpus_of(plan)) as options:
            filling.read_direct(plan, self._shard, options)
        needed = [(target.path, target.saved) for target in plan.copies]
        needed += [(path, saved[path]) for path in plan.values]
        wanted = _records_of(needed, records)
        if wanted:  # never of a stock file, which was loaded whole
            structure = self._unpickle(wanted)
        loaded = dict(select.walk_settable(structure))
        filling.copy_rest(plan, loaded, into)
        return into

    @functools.cached_property
    def _is_stock(self) -> bool:
        """Whether stock torch has to unpickle the file; found out once, as it reads the pickle."""
        return (
            self._shard.origin is Origin.NO_ZIP
            or is_meta(self._map_location)  # no data is wanted
            or torch._guards.detect_fake_mode(None) is not None
            or needs_stock_torch(self._shard) is not None
        )

    def _stock(self) -> Any:
        if self._remote is not None:
            if self._shard.path.endswith(".safetensors"):
                raise FormatError(
                    f"{self._shard.path} cannot be loaded from there: torch tells files of its "
                    "kind by their name. Get it with 'gdsckpt fetch', then load the file.",
                    path=self._shard.path,
                    offset=0,
                )
            self._remote.provide_all(None)  # torch reads the file by itself
        # Checked on the host, then read by torch.
        engine = shared_engine(self._config, scanning.slab_bytes_for(self._shard))
        return load_stock(
            self._shard,
            self._map_location,
            weights_only=self._weights_only,
            options=dataclasses.replace(self._options, engine=engine),
        )

    def _engine(self, gpus: Collection[int]) -> Engine:
        """Pick the engine for reads to the host and to some GPUs."""
        if self._remote is not None:
            return self._remote.engine
        directory = files.directory_of(self._shard.fd)
        return choose_engine(self._config, directory=directory, devices=gpus).engine

    @contextlib.contextmanager
    def _options_for(self, gpus: Collection[int]) -> Iterator[ReadOptions]:
        """Give options for reads to GPUs; at the end, tell what did not go as chosen."""
        if not gpus:
            yield self._options
            return
        engine = self._engine(gpus)
        yield dataclasses.replace(self._options, engine=engine)
        reasons_at_run_time(engine, self._shard.file.native)

    def _structure(self) -> tuple[Any, dict[int, int]]:
        """Unpickle with blank storages; gives the nest and ``_cdata`` to record index.

        What stock torch has to unpickle comes whole, and with no records to read.
        """
        if self._is_stock:
            return self._stock(), {}
        wanted: set[int] = set()
        if looks_at_values(self._shard, weights_only=self._weights_only):
            entries = self._shard.entries
            wanted = {
                n for n in self._shard.storage_records() if entries[n].nbytes <= SMALL_STORAGE_BYTES
            }
        records: dict[int, int] = {}
        source = StorageSource(self._shard, self._options, wanted)

        def give(index: int, nbytes: int, _location: str) -> torch.UntypedStorage:
            if index < 0:
                return torch.UntypedStorage(0)
            storage = source.take(index, nbytes)
            records[storage._cdata] = index
            return storage

        with contextlib.closing(source):
            return self._run(give), records

    def _unpickle(self, wanted: set[int] | None) -> Any:
        """Unpickle with finished storages; those not in ``wanted`` are blank."""
        restore = restorer(self._map_location)
        on_gpus = places.gpus_of_records(self._shard, self._map_location)

        def give(index: int, nbytes: int, location: str) -> Any:
            storage = torch.UntypedStorage(0) if index < 0 else source.take(index, nbytes)
            if index in on_gpus:
                return storage  # there already; or a blank, which costs no memory where it is
            return restore(storage, location)

        gpus = {devices.number_of(device) for device in set(on_gpus.values())}
        with (
            self._options_for(gpus) as options,
            contextlib.closing(StorageSource(self._shard, options, wanted, on_gpus)) as source,
        ):
            return self._run(give)

    def _run(self, give: Any) -> Any:
        return unpickle(
            self._shard, give, weights_only=self._weights_only, verify=self._options.verify
        )


def _records_of(leaves: list[tuple[Path, Any]], records: Mapping[int, int]) -> set[int]:
    """Give the records that hold the bytes of some leaves."""
    return {
        records[cdata]
        for _, leaf in leaves
        for cdata in select.storages_of(leaf)
        if cdata in records
    }
