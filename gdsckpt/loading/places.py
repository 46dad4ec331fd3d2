"""Which storages go to which GPU, known before the first one is read."""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from typing import Any

import torch

from gdsckpt.loading.restore import MapLocation, restorer
from gdsckpt.staging.shard import Shard
from gdsckpt.tensors import devices

_NO_PLACES: Mapping[int, torch.device] = {}


def gpus_of_records(shard: Shard, map_location: MapLocation) -> Mapping[int, torch.device]:
    """Find the records whose storages end on a GPU, so that they can be read straight to it.

    A callable ``map_location`` may do anything with a finished storage, so it gets one on the host.

    Args:
        shard: An open zip archive.
        map_location: As for :func:`gdsckpt.load`.

    Returns:
        GPU by index into ``shard.entries``; empty where there is none.

    Raises:
        ConfigError: A storage cannot be put where it was, or where ``map_location`` says.
    """
    index = shard.find("data.pkl")
    if index is None or callable(map_location) or not torch.cuda.is_available():
        return _NO_PLACES
    raw = shard.read_record(index)
    if not _may_name_a_gpu(raw, map_location) or not devices.are_reachable():
        return _NO_PLACES
    restore = restorer(map_location)
    device_of_tag: dict[str, torch.device] = {}
    places = {}
    for key, tag in location_tags(raw).items():
        if tag not in device_of_tag:
            device_of_tag[tag] = restore(torch.UntypedStorage(0), tag).device
        record = shard.find(f"data/{key}")
        if record is not None and device_of_tag[tag].type == "cuda":
            places[record] = device_of_tag[tag]
    return places


def _may_name_a_gpu(raw: bytes, map_location: MapLocation) -> bool:
    """Tell quickly that all stays on the host, as it mostly does."""
    if map_location is None:
        return b"cuda" in raw
    return str(map_location) not in ("cpu", "b'cpu'")


def location_tags(raw: bytes) -> dict[str, str]:
    """Read the location tag of each storage out of a pickle, running nothing of it.

    Args:
        raw: Content of ``data.pkl``.

    Returns:
        Tag (``"cpu"``, ``"cuda:0"``) by storage key. What comes after a damaged place is missing:
        the real unpickler will report it.
    """
    scanner = _TagScanner(io.BytesIO(raw))
    try:
        scanner.load()
    except Exception:  # noqa: BLE001 - a hostile pickle may raise anything; none of it matters here
        return scanner.tags
    return scanner.tags


class _Inert:
    """Stands for every class and function that a pickle names, and for all that they would make."""

    def __new__(cls, *_args: Any, **_kwargs: Any) -> _Inert:
        return object.__new__(cls)

    def __call__(self, *_args: Any, **_kwargs: Any) -> _Inert:
        return self

    def __setstate__(self, _state: Any) -> None:
        pass

    def __setitem__(self, _key: Any, _value: Any) -> None:
        pass

    def append(self, _item: Any) -> None:
        pass

    def extend(self, _items: Any) -> None:
        pass

    def add(self, _item: Any) -> None:
        pass

    def update(self, _items: Any) -> None:
        pass


class _TagScanner(pickle.Unpickler):
    """Unpickles to nothing, and notes the storages that it is asked for."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.tags: dict[str, str] = {}

    def find_class(self, _module: str, _name: str) -> Any:
        return _Inert

    def persistent_load(self, pid: Any) -> Any:
        if isinstance(pid, tuple) and len(pid) >= 4 and pid[0] == "storage":
            self.tags[str(pid[2])] = str(pid[3])
        return _Inert()
