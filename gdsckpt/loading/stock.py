"""Files that stock ``torch.load`` has to unpickle: checked first, then left to it."""

from __future__ import annotations

import os
from typing import Any

from gdsckpt.loading.restore import MapLocation, is_meta, restorer
from gdsckpt.loading.source import ReadOptions
from gdsckpt.loading.unpickle import torch_load
from gdsckpt.staging import indexing, scanning
from gdsckpt.staging.shard import Origin, Shard


def load_stock(
    shard: Shard, map_location: MapLocation, *, weights_only: bool, options: ReadOptions
) -> Any:
    """Verify every byte that can be verified, then call stock ``torch.load``.

    Args:
        shard: An open file.
        map_location: Passed on as it is.
        weights_only: Passed on.
        options: How to verify.

    Raises:
        ChecksumError: A record or chunk is damaged.
        FormatError: No file of torch.
    """
    if shard.origin is Origin.NO_ZIP:
        indexing.require_legacy(shard)
    elif options.verify and not is_meta(map_location):
        scanning.require_intact(shard, options.engine)
    user_location: Any = restorer(map_location) if callable(map_location) else map_location
    path = f"/proc/self/fd/{shard.fd}"
    if shard.path.endswith(".safetensors"):  # torch tells these by their name
        path = shard.path
    os.lseek(shard.fd, 0, os.SEEK_SET)
    return torch_load(path, user_location, shard, weights_only=weights_only)
