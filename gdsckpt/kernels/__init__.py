"""Checksums on the GPU: CRC-32 of memory that never passes the CPU, and what changed since.

Needs the extra ``gpu`` (numba-cuda), which is imported at the first call, not before.
"""

from gdsckpt.kernels.changed import changed_chunks, differing
from gdsckpt.kernels.crc32 import HOST, Tuning, crc32_pieces, warm_up

__all__ = ["HOST", "Tuning", "changed_chunks", "crc32_pieces", "differing", "warm_up"]
