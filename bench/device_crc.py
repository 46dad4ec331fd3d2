"""Measure the CRC-32 of device memory: ``python bench/device_crc.py --help``.

Needs a CUDA device, torch for its memory, and the extra ``gpu``.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import statistics
import sys
import time
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

if __name__ == "__main__":  # as a script, only its own folder is on the path
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gdsckpt import native
from gdsckpt.errors import EngineUnavailableError, GdsckptError
from gdsckpt.kernels import Tuning, crc32_pieces, warm_up

KiB = 1 << 10
MiB = 1 << 20
GiB = 1 << 30
PIECE_BYTES = (4 * KiB, 64 * KiB, MiB, 16 * MiB, 256 * MiB)
# So many that their table, which Python makes, does not outweigh the bytes.
NUM_PIECES_MAX = 65536
THREADS = (64, 128, 256)
ROUNDS = 5


def measure(device: int = 0, total_bytes: int = 4 * GiB) -> dict[str, Any]:
    """Measure the kernel for several sizes of pieces, beside a copy on the device.

    Takes some 10 seconds and ``total_bytes`` of device memory twice.

    Args:
        device: Ordinal in CUDA's numbering.
        total_bytes: Bytes of a call, a multiple of 256 MiB.

    Returns:
        ``device``, ``versions``, ``total_bytes``, ``compile_s`` (first call), ``copy`` (bytes read
        per second by a copy on the device, which writes as many) and ``rows``: per size of piece
        and number of threads the median seconds of a whole call, its bytes per second, and whether
        the CRCs of the first pieces are right.

    Raises:
        EngineUnavailableError: There is no such device, or numba-cuda is missing.
        CudaError: The driver refused an operation or the kernel failed.
    """
    if not torch.cuda.is_available() or device >= torch.cuda.device_count():
        why = f"torch {torch.__version__} finds no CUDA device {device}"
        raise EngineUnavailableError(f"The kernels cannot be measured: {why}.", reasons=[why])
    began = time.perf_counter()
    warm_up(device)
    compile_s = time.perf_counter() - began
    memory = torch.empty(total_bytes, dtype=torch.uint8, device=f"cuda:{device}").random_()
    rows = [
        _measure_pieces(memory, piece_bytes, threads)
        for piece_bytes in PIECE_BYTES
        for threads in THREADS
    ]
    return {
        "device": torch.cuda.get_device_name(device),
        "versions": _versions(),
        "total_bytes": total_bytes,
        "compile_s": compile_s,
        "copy": _measure_copy(memory),
        "rows": rows,
    }


def _measure_pieces(memory: torch.Tensor, piece_bytes: int, threads: int) -> dict[str, Any]:
    """Time calls for consecutive pieces of one size."""
    device, tuning = memory.device.index, Tuning(threads=threads)
    num_pieces = min(memory.numel() // piece_bytes, NUM_PIECES_MAX)
    pieces = array("Q")
    for index in range(num_pieces):
        pieces.extend((memory.data_ptr() + index * piece_bytes, piece_bytes))
    torch.cuda.synchronize(device)
    warm_up(device, tuning=tuning)
    crcs = crc32_pieces(pieces, device, tuning=tuning)
    call_s = _median_s(lambda: crc32_pieces(pieces, device, tuning=tuning))
    num_checked = max(1, min(num_pieces, 16 * MiB // piece_bytes))
    host = memory[: num_checked * piece_bytes].cpu().numpy()
    return {
        "piece_bytes": piece_bytes,
        "num_pieces": num_pieces,
        "threads": threads,
        "call_s": call_s,
        "bytes_per_s": num_pieces * piece_bytes / call_s,
        "right": all(
            crcs[index] == native.crc32(host[index * piece_bytes : (index + 1) * piece_bytes])
            for index in range(num_checked)
        ),
    }


def _measure_copy(memory: torch.Tensor) -> dict[str, Any]:
    """Time copies on the device."""
    target = torch.empty_like(memory)

    def copy() -> None:
        target.copy_(memory)
        torch.cuda.synchronize(memory.device)

    copy()
    call_s = _median_s(copy)
    return {"call_s": call_s, "bytes_per_s": memory.numel() / call_s}


def _median_s(run: Callable[[], object]) -> float:
    seconds = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def _versions() -> dict[str, str | None]:
    return {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "numba-cuda": importlib.metadata.version("numba-cuda"),
    }


def table(report: dict[str, Any]) -> str:
    """Write a report as a table in Markdown."""
    lines = [
        f"CRC-32 on {report['device']}, {report['total_bytes'] / GiB:g} GiB; a copy on the device "
        f"reads {report['copy']['bytes_per_s'] / 1e9:.0f} GB/s; the first call took "
        f"{report['compile_s']:.1f} s.",
        "",
        "| piece | pieces | threads | call, ms | GB/s | right |",
        "|---:|---:|---:|---:|---:|---|",
    ]
    lines += [
        f"| {row['piece_bytes'] // KiB} KiB | {row['num_pieces']} | {row['threads']} "
        f"| {1e3 * row['call_s']:.2f} | {row['bytes_per_s'] / 1e9:.1f} "
        f"| {'yes' if row['right'] else 'NO'} |"
        for row in report["rows"]
    ]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; 0 when it ran and all CRCs were right, 1 otherwise."""
    parser = argparse.ArgumentParser(prog="bench/device_crc.py", description=__doc__)
    parser.add_argument("--device", type=int, default=0, help="ordinal (default: 0)")
    parser.add_argument("--gib", type=int, default=4, help="GiB of a call (default: 4)")
    parser.add_argument("--json", type=Path, help="write the report there")
    options = parser.parse_args(argv)
    try:
        report = measure(options.device, options.gib * GiB)
    except GdsckptError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    print(table(report))
    if options.json is not None:
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    return 0 if all(row["right"] for row in report["rows"]) else 1


if __name__ == "__main__":
    sys.exit(main())
