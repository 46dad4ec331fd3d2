"""One transfer by one client, in a process of its own: ``python -m bench.remote_child TASK``.

TASK is a Job as JSON. What the process imports and sets up first is not measured. Two lines go to
standard output, each with a mark before it: the bytes of memory that are there for the result, and
what the transfer took.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import sys
import time
from pathlib import Path

from bench.remote_clients.base import Job, Transfer

BEGIN, END = "@begin ", "@end "


def main(argv: list[str]) -> int:
    """Run the job that ``argv`` has."""
    job = Job.from_json(argv[0])
    module, _, function = job.target.partition(":")
    prepare = getattr(importlib.import_module(f"bench.remote_clients.{module}"), function)
    transfer: Transfer = prepare(job)
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak of resident memory
    print(BEGIN + str(transfer.destination_bytes), flush=True)
    before, started = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    transfer.run()
    seconds = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_SELF)
    found = {
        "seconds": seconds,
        "user_s": after.ru_utime - before.ru_utime,
        "system_s": after.ru_stime - before.ru_stime,
        "rss_peak": _status_bytes("VmHWM"),
    }
    print(END + json.dumps(found), flush=True)
    if transfer.check:
        transfer.check()
    # Clients may hold threads that never end.
    sys.stdout.flush()
    os._exit(0)


def _status_bytes(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {key}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
