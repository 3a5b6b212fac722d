"""Freed memory of ended threads is used again by others."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import sys, threading
from pathlib import Path
from broaden.heap import one_arena

if sys.argv[1] == "one":
    assert one_arena()

def resident():
    status = Path("/proc/self/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("RssAnon")))

def work():
    return [bytes(100_000) for _ in range(300)]  # 30 MB in pieces below the threshold of mmap

def in_a_thread(keep):
    held = work()
    pin.append(bytes(100_000))  # at the top of its arena: what lies below stays with it
    del held

pin = []
for _ in range(4):
    thread = threading.Thread(target=in_a_thread, args=(pin,))
    thread.start()
    thread.join()
before = resident()
held = work()
print(resident() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's setting")
def test_one_arena_serves_every_thread() -> None:
    def grown(how: str) -> int:
        done = subprocess.run([sys.executable, "-c", CODE, how], capture_output=True, text=True, check=True)
        return int(done.stdout)

    assert grown("one") < 5_000  # kB: the room of the threads
    assert grown("many") > 20_000
