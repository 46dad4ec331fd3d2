"""Uploads killed at any time, through a proxy that harms requests at random, while others read."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import fault_proxy as harm
import pytest
import torch
from fault_proxy import FaultProxy
from seaweed import BUCKET

import gdsckpt

pytestmark = [pytest.mark.campaign, pytest.mark.s3]

ROOT = Path(__file__).parents[2]
NUM_UPLOADS = 40
SETTINGS = {"upload_part_bytes": "5MiB", "store_timeout_s": "2", "upload_concurrency": "3"}
UPLOADER = """
import os, sys, torch, gdsckpt
step, url = int(sys.argv[1]), sys.argv[2]
state = {"w": torch.full((3_000_000,), float(step)), "b": torch.full((100,), step), "step": step}
print("begin", flush=True)
gdsckpt.save_checkpoint(state, url, step=step, config={"chunk_bytes": "1MiB"})
print("end", flush=True)
"""


def flips_payload(exchange):
    """One bit of an answer that is large is changed."""

    def flip(exchange, lines, body):
        if len(body) > 100_000:
            body[70_000] ^= 1
        exchange.client.sendall("\r\n".join([*lines, "", ""]).encode("latin-1") + bytes(body))

    exchange.forward(flip)


FAULTS = [
    ("UploadPart", harm.answers(503, "SlowDown")),
    ("UploadPart", harm.resets(after=1 << 20)),
    ("UploadPart", harm.drops_answer()),
    ("CompleteMultipartUpload", harm.drops_answer()),
    ("CompleteMultipartUpload", harm.says_ok_with_error("InternalError")),
    ("PutObject", harm.drops_answer()),
    ("GetObject", harm.truncates_answer(1000)),
    ("GetObject", flips_payload),
    ("HeadObject", harm.answers(503, "SlowDown")),
]


def which(state):
    """Give the step of a whole state, or fail."""
    step = state["step"]
    assert bool((state["w"] == step).all())
    assert bool((state["b"] == step).all())
    return step


class Reader(threading.Thread):
    """Loads again and again, until it is told to stop."""

    def __init__(self, url, endpoint):
        super().__init__()
        self._url = url
        self._endpoint = endpoint
        self.stopped = threading.Event()
        self.steps = []
        self.failure = None

    def run(self):
        try:
            while not self.stopped.is_set():
                state = gdsckpt.load(self._url, config={**SETTINGS, "endpoint_url": self._endpoint})
                self.steps.append(which(state))
        except Exception as error:  # noqa: BLE001 - shown by the test
            self.failure = error


def test_uploads_killed_at_random_leave_old_or_new(seaweed, s3_environment):
    chance = random.Random(8)
    url = f"s3://{BUCKET}/campaign/last"
    gdsckpt.save_checkpoint(
        {"w": torch.zeros(3_000_000), "b": torch.zeros(100), "step": 0}, url, step=0
    )
    settings = {f"GDSCKPT_{name.upper()}": value for name, value in SETTINGS.items()}
    num_killed = 0
    with FaultProxy(seaweed.port) as proxy:
        environ = {**os.environ, **settings, "PYTHONPATH": str(ROOT)}
        environ["GDSCKPT_ENDPOINT_URL"] = proxy.endpoint
        reader = Reader(url, proxy.endpoint)
        reader.start()
        newest = 0
        for step in range(1, NUM_UPLOADS + 1):
            for op, fault in chance.sample(FAULTS, 3):
                key = ".pt" if op == "GetObject" else ""
                proxy.harm(op, fault, skip=chance.randrange(3), key=key)
            process = subprocess.Popen(
                [sys.executable, "-c", UPLOADER, str(step), url],
                stdout=subprocess.PIPE,
                text=True,
                env=environ,
            )
            assert process.stdout.readline() == "begin\n"
            if step % 5:
                time.sleep(chance.uniform(0, 1.5))
                process.send_signal(signal.SIGKILL)
            is_done = process.communicate()[0] == "end\n"
            num_killed += not is_done
            proxy.heal()
            found = which(gdsckpt.load(url))
            assert found in ((step,) if is_done else (newest, step))
            newest = found
        reader.stopped.set()
        reader.join()
    assert reader.failure is None, reader.failure
    assert reader.steps == sorted(reader.steps)
    assert gdsckpt.verify(url).ok
    assert num_killed > NUM_UPLOADS // 4  # else the times of the kills are no good
    assert len(reader.steps) > 10
