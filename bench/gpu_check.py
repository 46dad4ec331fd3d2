"""Show on a real GPU what the stand-ins of the tests cannot: one command, at most four minutes.

    python bench/gpu_check.py --dir DIR [--json OUT.json]

Needs torch and a GPU, no network; builds the extension first. Every step runs in a process of its
own with a time limit, and what it had found before it failed is kept: one failing step never hides
the rest. The exit status is 0 when every step ended well.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TOTAL_S = 235.0
"""Of the four minutes, some go to the start of this process and to the last table."""

KILL_WAIT_S = 2.0


@dataclass(frozen=True, slots=True)
class Step:
    """One step.

    Attributes:
        name: Module of ``bench.gpu_steps``.
        limit_s: Seconds after which its process is killed.
        what: For the table.
    """

    name: str
    limit_s: float
    what: str


STEPS = (
    Step("build", 75, "build the extension in place"),
    Step("machine", 20, "machine, driver, versions"),
    Step("probe", 35, "what gdsckpt probe finds"),
    Step("rates", 40, "copy rates of the GPU, rates of the drive"),
    Step("moving", 110, "save and load from and to HBM, beside torch"),
    Step("checksums", 30, "CRC-32 on the GPU against zlib"),
    Step("stall", 30, "what a save in the background costs a training loop"),
    Step("arrays", 25, "arrays of CuPy and Numba"),
    Step("gds", 20, "torch.cuda.gds on one large storage"),
    Step("suites", 75, "contract suite and GPU tests on the real driver"),
)
"""The most precious first: time may run out."""


def run_step(step: Step, limit_s: float, directory: Path, results: dict[str, Any]) -> None:
    """Run a step in its own process and add what it found to ``results``."""
    with tempfile.TemporaryDirectory() as scratch:
        found, earlier = Path(scratch, "found.json"), Path(scratch, "earlier.json")
        earlier.write_text(json.dumps(results))
        command = [sys.executable, "-m", f"bench.gpu_steps.{step.name}"]
        command += [str(directory), str(found), str(earlier)]
        environ = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
        started = time.perf_counter()
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=limit_s)
            status = "ok" if process.returncode == 0 else f"ended with status {process.returncode}"
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            output = _rest_of(process)
            status = f"stopped after {limit_s:.0f} s"
        results[step.name] = {
            "status": status,
            "seconds": round(time.perf_counter() - started, 1),
            "found": json.loads(found.read_text()) if found.exists() else {},
            "output_tail": "" if status == "ok" else output[-3000:],
        }


def _rest_of(process: subprocess.Popen[str]) -> str:
    """Give the output of a killed step, however many others it has given its end of the pipe to."""
    try:
        return process.communicate(timeout=KILL_WAIT_S)[0]
    except subprocess.TimeoutExpired as late:
        output = late.stdout or b""
        if process.stdout is not None:
            process.stdout.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(KILL_WAIT_S)
        return output.decode(errors="replace") if isinstance(output, bytes) else output


def show(results: dict[str, Any]) -> None:
    """Print what was found, step by step."""
    for step in STEPS:
        entry = results.get(step.name)
        if entry is None:
            continue
        print(f"\n{step.name}: {step.what}: {entry['status']} ({entry['seconds']} s)")
        for name, value in entry["found"].items():
            _show_value(name, value, "  ")
        if entry["output_tail"]:
            print("  | " + "\n  | ".join(entry["output_tail"].splitlines()[-25:]))


def _show_value(name: str, value: Any, indent: str) -> None:
    if isinstance(value, dict):
        print(f"{indent}{name}:")
        for key, inner in value.items():
            _show_value(str(key), inner, indent + "  ")
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        print(f"{indent}{name}:")
        for inner in value:
            print(f"{indent}  {'; '.join(f'{k} {v}' for k, v in inner.items() if v != '')}")
    else:
        print(f"{indent}{name}: {value}")


def main() -> int:
    """Run all steps that time is left for; give the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--dir", type=Path, default=Path(tempfile.gettempdir()), help="on the drive"
    )
    parser.add_argument("--json", type=Path, help="where the results go")
    parser.add_argument("--steps", nargs="*", help="only these", choices=[s.name for s in STEPS])
    arguments = parser.parse_args()
    deadline = time.perf_counter() + TOTAL_S
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(
        dir=arguments.dir, prefix="gdsckpt-gpu-check-", ignore_cleanup_errors=True
    ) as scratch:
        for step in STEPS:
            left_s = deadline - time.perf_counter()
            if arguments.steps and step.name not in arguments.steps:
                continue
            if left_s < 5:
                results[step.name] = {"status": "no time left", "seconds": 0, "found": {}}
                results[step.name]["output_tail"] = ""
                continue
            run_step(step, min(step.limit_s, left_s), Path(scratch), results)
            print(f"{step.name}: {results[step.name]['status']}", flush=True)
            if arguments.json:
                arguments.json.write_text(json.dumps(results, indent=1) + "\n")
    show(results)
    return 0 if all(entry["status"] == "ok" for entry in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
