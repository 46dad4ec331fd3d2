"""What ``gdsckpt.probe`` finds: no step of it may hang longer than its limit."""

from __future__ import annotations

import time

import gdsckpt
from bench.gpu_steps.recorder import Recorder, run


def main(recorder: Recorder) -> None:
    """Probe twice: the second time what was cached may help."""
    started = time.perf_counter()
    report = gdsckpt.probe(recorder.directory)
    recorder.add("seconds", round(time.perf_counter() - started, 2))
    recorder.add("engine", report.engine)
    recorder.add("engine_reasons", list(report.engine_reasons))
    steps = [
        {"step": step.name, "ok": step.ok, "reason": step.reason, "mend": step.mend}
        for step in report.steps
    ]
    for step in steps:  # the scratch directory says nothing to others
        step["reason"] = step["reason"].replace(str(recorder.directory), "DIR")
    recorder.add("steps", steps)
    started = time.perf_counter()
    gdsckpt.probe(recorder.directory)
    recorder.add("seconds_again", round(time.perf_counter() - started, 2))


if __name__ == "__main__":
    run(main)
