"""Which chunks changed since an earlier checkpoint, by their checksums."""

from __future__ import annotations

from collections.abc import Sequence

from gdsckpt.errors import ConfigError
from gdsckpt.kernels.crc32 import DEFAULT_TUNING, Pieces, Tuning, crc32_pieces


def changed_chunks(
    chunks: Pieces,
    earlier_crcs: Sequence[int],
    *,
    device: int,
    stream: int | None = None,
    tuning: Tuning = DEFAULT_TUNING,
) -> list[int]:
    """Find the chunks of device memory whose bytes are not those of an earlier checkpoint.

    A chunk that is named did change. One that changed is missed with a probability of 2**-32 each,
    and never if all its changed bits lie within 32 in a row. CRC-32 finds chance, not intent: who
    may choose the bytes can make a change that it does not see.

    Args:
        chunks: (address, nbytes) of each chunk, as for ``crc32_pieces``.
        earlier_crcs: CRC-32 of the same ranges then, such as those in the file's chunk table.
        device: As for ``crc32_pieces``.
        stream: As for ``crc32_pieces``.
        tuning: As for ``crc32_pieces``.

    Returns:
        Indices into ``chunks``, ascending.

    Raises:
        ConfigError: There are more or fewer chunks than CRCs, or one is no range of addresses.
        EngineUnavailableError: numba-cuda, the driver or the device is missing.
        CudaError: The driver refused an operation or the kernel failed.
    """
    return differing(crc32_pieces(chunks, device, stream=stream, tuning=tuning), earlier_crcs)


def differing(crcs: Sequence[int], earlier_crcs: Sequence[int]) -> list[int]:
    """Give the indices at which two lists of CRCs differ, ascending.

    Raises:
        ConfigError: The lists are not equally long.
    """
    if len(crcs) != len(earlier_crcs):
        raise ConfigError(
            f"There are {len(crcs)} chunks now and {len(earlier_crcs)} earlier CRCs; only "
            "checkpoints of equal layout can be compared chunk by chunk.",
            field="earlier_crcs",
        )
    pairs = zip(crcs, earlier_crcs, strict=True)
    return [index for index, (now, then) in enumerate(pairs) if now != then]
