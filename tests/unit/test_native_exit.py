"""The end of the interpreter while threads of it are in native code."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

DAEMON = """
import sys, threading
from gdsckpt import native

started = threading.Event()
data = bytes(64 << 20)

def work():
    started.set()
    while True:  # nearly always without the GIL, and wants it back when the interpreter has ended
        native.crc32(data)

class Last:
    # Lives until the interpreter ends, and gives the thread the time to notice that.
    def __del__(self, crc32=native.crc32, data=data):
        for _ in range(50):
            crc32(data)

sys.last_one = Last()  # outlives the globals
threading.Thread(target=work, daemon=True).start()
started.wait()
"""


def test_exit_with_a_daemon_thread_in_native_code_is_no_abort():
    done = subprocess.run(
        [sys.executable, "-c", DAEMON],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
