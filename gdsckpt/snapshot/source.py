"""What a snapshot is taken of."""

from __future__ import annotations

from typing import Any

import torch

from gdsckpt.staging.content import ShardContent


class Source:
    """A state and its shard.

    Args:
        state: The nest that was pickled.
        content: Its shard.

    Attributes:
        identities: ``_cdata`` of each storage, or 0 where it is none of torch's.
        number_of: The number of a storage, by its ``_cdata``.
    """

    def __init__(self, state: Any, content: ShardContent) -> None:
        self.state = state
        self.content = content
        owners = [buffer.owner for buffer in content.storages]
        self.identities = [
            owner._cdata if isinstance(owner, torch.UntypedStorage) else 0 for owner in owners
        ]
        self.number_of = dict(zip(self.identities, range(len(owners)), strict=True))
