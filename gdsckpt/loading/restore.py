"""Where storages go: torch's five forms of ``map_location``, with torch's own results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch

from gdsckpt.errors import ConfigError

MapLocation: TypeAlias = (
    str
    | bytes
    | torch.device
    | Mapping[str, str]
    | Callable[[torch.UntypedStorage, str], Any]
    | None
)

Restore: TypeAlias = Callable[[torch.UntypedStorage, str], Any]


class UserCallbackError(Exception):
    """Carries what the user's ``map_location`` raised through torch's unpickler, unchanged."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


def is_meta(map_location: MapLocation) -> bool:
    """Tell whether the caller wants no data at all, only shapes."""
    return map_location == "meta" or (
        isinstance(map_location, torch.device) and map_location.type == "meta"
    )


def restorer(map_location: MapLocation) -> Restore:
    """Turn ``map_location`` into a function of (finished host storage, saved location tag)."""
    if map_location is None:
        return _to_tag
    if isinstance(map_location, Mapping):
        return lambda storage, tag: _to_tag(storage, str(map_location.get(tag, tag)))
    if isinstance(map_location, (str, bytes)):
        wanted = map_location.decode() if isinstance(map_location, bytes) else map_location
        return lambda storage, tag: _to_tag(storage, wanted)
    if isinstance(map_location, torch.device):
        return lambda storage, tag: _to_tag(storage, str(map_location))
    if callable(map_location):
        return _from_callable(map_location)
    raise ConfigError(
        f"map_location of type {type(map_location).__name__} is not understood. Pass None, a "
        "device, a device string, a dict of them, or a callable.",
        field="map_location",
    )


def _from_callable(function: Callable[[torch.UntypedStorage, str], Any]) -> Restore:
    def restore(storage: torch.UntypedStorage, tag: str) -> Any:
        try:
            moved = function(storage, tag)
        except Exception as error:
            raise UserCallbackError(error) from error
        return _to_tag(storage, tag) if moved is None else moved

    return restore


def _to_tag(storage: torch.UntypedStorage, tag: str) -> Any:
    if tag == "cpu":
        return storage  # what default_restore_location gives, without its loop over devices
    try:
        return torch.serialization.default_restore_location(storage, tag)
    except (RuntimeError, AttributeError, AssertionError) as error:
        raise ConfigError(
            f"a storage cannot be put on {tag!r}: {error}. Pass map_location='cpu', or the device "
            "to use.",
            field="map_location",
        ) from error
