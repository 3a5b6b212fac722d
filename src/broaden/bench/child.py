"""A side in a process of its own, with its peak of memory: `python -m broaden.bench.child MODULE:FUNCTION JSON`.

Memory that was freed in this process would still count, and a peer's allocations would count as ours, so sides whose
memory is compared run apart. The function gets the JSON object as keywords and a `Watch`; what it returns goes back
as JSON, with the watch's figures under "memory".
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Self

from broaden.bench.harness import Unavailable
from broaden.heap import one_arena

STATUS = Path("/proc/self/status")
EVERY = 0.002  # seconds between two looks


class Watch:
    """The highest anonymous memory of this process since `start` (Linux: RssAnon), looked at every 2 ms.

    Anonymous: the heap and private copies; not pages of mapped files, which the system can drop and read again.
    """

    def __init__(self) -> None:
        self.base = self.peak = 0
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Self:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        self.thread.join()

    def start(self) -> None:
        """What is held now (interpreter, libraries, compiled kernels) is the base."""
        _trim()
        self.base = self.peak = anonymous()

    def figures(self) -> dict[str, int]:
        """Bytes: {"base", "peak", "above"}."""
        self.peak = max(self.peak, anonymous())
        return {"base": self.base, "peak": self.peak, "above": self.peak - self.base}

    def _look(self) -> None:
        while not self.stopped.wait(EVERY):
            self.peak = max(self.peak, anonymous())


def _trim() -> None:
    """Give freed heap back to the system (glibc), so that the base holds no room for what comes."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def anonymous() -> int:
    """Bytes of anonymous memory that this process has resident."""
    found = re.search(r"^RssAnon:\s+(\d+) kB", STATUS.read_text(encoding="ascii"), re.MULTILINE)
    if found is None:
        raise Unavailable("this system does not say how much anonymous memory a process has")
    return 1024 * int(found[1])


def call(function: str, **keywords: Any) -> dict[str, Any]:
    """Run `module:function` in a fresh process and return what it returned.

    Raises:
        Unavailable: the system has no /proc, or the child says that it cannot.
        RuntimeError: the child failed; its last lines of stderr are in the message.
    """
    if not STATUS.exists():
        raise Unavailable("peak memory is read from /proc, which this system does not have")
    threads = str(keywords.get("threads", 1))
    done = subprocess.run(
        [sys.executable, "-m", "broaden.bench.child", function, json.dumps(keywords)],
        env={**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}, capture_output=True, text=True,
        stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{function} failed:\n" + "\n".join(done.stderr.strip().splitlines()[-15:]))
    answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    if "unavailable" in answer:
        raise Unavailable(answer["unavailable"])
    return answer


def main(arguments: list[str]) -> None:
    """The child's end: libraries print to stderr, the last line of stdout is the answer."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    module, _, name = arguments[0].partition(":")
    if not module.startswith("broaden.bench."):
        raise SystemExit(f"{module} is no module of broaden.bench")
    keywords = json.loads(arguments[1])
    if name != "peer":
        one_arena()  # as the command does; a peer has what its users have
    try:
        with Watch() as watch:
            watch.start()
            answer = getattr(importlib.import_module(module), name)(watch=watch, **keywords)
            answer["memory"] = watch.figures()
    except Unavailable as reason:
        answer = {"unavailable": str(reason)}
    out.write(json.dumps(answer) + "\n")
    out.flush()


def seconds_of(work: Any, times: int) -> list[float]:
    """Wall-clock seconds of calls in turn."""
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return taken


if __name__ == "__main__":
    main(sys.argv[1:])
