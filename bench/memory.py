"""Measure the peak memory of one save or load beyond the state itself, in a process of its own.

Run as ``python -m bench.memory save|load gdsckpt|torch PATH TOTAL_BYTES TENSOR_BYTES``; prints one
line of JSON. Page cache is not part of a process's resident memory, so none is counted.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]


def extra_bytes(what: str, library: str, path: Path, total_bytes: int, tensor_bytes: int) -> int:
    """Give the peak resident memory beyond the state, in bytes, from a fresh process.

    Args:
        what: ``"save"`` or ``"load"``; a load needs the file of a save before.
        library: ``"gdsckpt"`` or ``"torch"``.
        path: The file.
        total_bytes: Size of the state.
        tensor_bytes: Size of each tensor.
    """
    sizes = [str(total_bytes), str(tensor_bytes)]
    done = subprocess.run(
        [sys.executable, "-m", "bench.memory", what, library, str(path), *sizes],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{what} by {library} failed in its process: {done.stderr.strip()}")
    return int(json.loads(done.stdout)["extra_bytes"])


def _main(argv: list[str]) -> int:
    what, library, path = argv[0], argv[1], Path(argv[2])
    total_bytes, tensor_bytes = int(argv[3]), int(argv[4])
    measure = _measure_save if what == "save" else _measure_load
    print(json.dumps({"extra_bytes": measure(library, path, total_bytes, tensor_bytes)}))
    return 0


def _measure_save(library: str, path: Path, total_bytes: int, tensor_bytes: int) -> int:
    module = _module(library)
    from bench.methods import make_state

    state = make_state(total_bytes, tensor_bytes)
    baseline = _reset_peak()
    module.save(state, path)
    return _status_bytes("VmHWM") - baseline


def _measure_load(library: str, path: Path, total_bytes: int, _tensor_bytes: int) -> int:
    module = _module(library)
    baseline = _reset_peak()
    state = module.load(path, weights_only=True)
    extra = _status_bytes("VmHWM") - baseline - total_bytes
    del state
    return extra


def _module(library: str) -> Any:
    """Import all that the call needs, so that code is not counted as memory of the call."""
    import torch

    if library == "torch":
        return torch
    import gdsckpt

    return type("Calls", (), {"save": gdsckpt.save, "load": gdsckpt.load})


def _reset_peak() -> int:
    """Set the peak to what is resident now, and give that.

    Source: proc(5), /proc/pid/clear_refs, value 5.
    """
    Path("/proc/self/clear_refs").write_text("5")
    return _status_bytes("VmRSS")


def _status_bytes(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {key}")


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
