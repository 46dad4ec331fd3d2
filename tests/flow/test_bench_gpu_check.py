"""bench/gpu_check.py: a step that fails, hangs or has no GPU hides nothing of the others."""

import importlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def gpu_check(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    return importlib.import_module("bench.gpu_check")


def test_gpu_check_without_a_gpu_says_so_and_goes_on(tmp_path):
    report = tmp_path / "report.json"
    command = [sys.executable, str(ROOT / "bench/gpu_check.py"), "--dir", str(tmp_path)]
    done = subprocess.run(
        [*command, "--json", str(report), "--steps", "stall", "machine"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    results = json.loads(report.read_text())
    assert results["stall"]["status"] == "ended with status 3"
    assert "torch sees no GPU" in results["stall"]["output_tail"]
    assert results["machine"]["found"]["packages"]["torch"]
    assert str(results["machine"]["found"]["driver"]).startswith("failed: RuntimeError: ")
    assert "torch sees no GPU" in done.stdout


STEP = """
import sys, time
from bench.gpu_steps.recorder import Recorder, run

def main(recorder):
    recorder.add("before", 1)
    recorder.attempt("bad", lambda: 1 / 0)
    recorder.attempt("good", lambda: 3)
    {last}

run(main)
"""


@pytest.mark.parametrize(
    ("last", "status"),
    [
        ("pass", "ended with status 1"),
        ("raise MemoryError", "ended with status 2"),
        ("import os; os.abort()", "ended with status -6"),
        ("time.sleep(600)", "stopped after 4 s"),
        ("import os; os.write(1, bytes([255, 10])); raise MemoryError", "ended with status 2"),
    ],
)
def test_gpu_check_keeps_what_a_step_found_before_it_failed(tmp_path, gpu_check, last, status):
    module = ROOT / "bench/gpu_steps" / f"temporary_{os.getpid()}.py"
    module.write_text(STEP.format(last=last))
    results = {}
    try:
        gpu_check.run_step(gpu_check.Step(module.stem, 4, ""), 4, tmp_path, results)
    finally:
        module.unlink()
    entry = results[module.stem]
    assert entry["status"] == status
    assert entry["found"]["before"] == 1
    assert entry["found"]["bad"].startswith("failed: ZeroDivisionError")
    assert entry["found"]["good"] == 3


HELD = """
import subprocess, sys, time
from bench.gpu_steps.recorder import Recorder, run

def main(recorder):
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    recorder.add("child", subprocess.Popen(command, start_new_session=True).pid)
    time.sleep(600)

run(main)
"""


def test_gpu_check_does_not_wait_for_what_a_killed_step_has_started(tmp_path, gpu_check):
    module = ROOT / "bench/gpu_steps" / f"temporary_{os.getpid()}.py"
    module.write_text(HELD)
    results = {}
    try:
        gpu_check.run_step(gpu_check.Step(module.stem, 4, ""), 4, tmp_path, results)
    finally:
        module.unlink()
    entry = results[module.stem]
    os.kill(entry["found"]["child"], signal.SIGKILL)
    assert entry["status"] == "stopped after 4 s"


def test_gpu_check_runs_the_suites_and_keeps_each_verdict(tmp_path, gpu_check, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # with a GPU they take a minute
    results = {}
    gpu_check.run_step(gpu_check.Step("suites", 200, ""), 200, tmp_path, results)
    found = results["suites"]["found"]
    assert set(found) == {"tests of torch and the kernels", "contract", "contract of cuFile"}
    for suite in found.values():
        assert suite["counts"]["SKIPPED"] > 3
        assert (suite["bad"], suite["status"]) == ([], 0)
