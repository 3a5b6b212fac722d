"""A pool of killable processes that run math-verify: the last resort of the mathematics verifier.

`ask(gold, answer)` blocks the calling thread only; from asyncio use `asyncio.to_thread`. No signals, no
multiprocessing, so that an unguarded user script works. The wall clock of one question, the memory of a child and
the number of processes are limited; a hang costs one answer. Not here: what happens in the child (`mathworker`).
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from broaden.errors import WorkerError

VERSION = "math-verify 0.9.0"
SECONDS = 6.0
MEMORY = 2 << 30
CACHE = 50_000
START_SECONDS = 60.0

Outcome = Literal["equal", "different", "unread", "scored", "timeout", "memory", "crashed"]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a worker said of one pair. `gold_read`: whether the gold alone could be parsed."""

    outcome: Outcome
    by: str = ""
    gold_read: bool = True
    score: float | None = None


class _Worker:
    """One server process, started on first use."""

    def __init__(self, memory: int) -> None:
        script = Path(__file__).with_name("mathworker.py")
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHONSTARTUP", "COV"))}
        environment |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
        self.process = subprocess.Popen(
            [sys.executable, "-P", str(script), str(memory)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env=environment, start_new_session=True, close_fds=True,
        )  # fmt: skip
        self.buffer = b""
        self.ready = False
        self.in_step = True

    def ask(self, question: dict[str, Any], seconds: float) -> Answer:
        """One question, answered within the time or not at all."""
        if not self.ready:
            if not self._line(START_SECONDS):
                self.in_step = False
                raise WorkerError(
                    "the mathematics worker did not start", "check: python -c 'import math_verify'"
                )
            self.ready = True
        if self.process.stdin is None:
            return Answer("crashed")
        try:
            self.process.stdin.write(json.dumps({**question, "seconds": seconds}).encode() + b"\n")
            self.process.stdin.flush()
        except OSError:
            self.in_step = False
            return Answer("crashed")
        line = self._line(seconds + 2.0)
        if not line:
            self.in_step = False  # the server itself hangs or is gone: it is of no more use
            return Answer("timeout" if line is None else "crashed")
        try:
            said = json.loads(line)
        except ValueError:
            return Answer("crashed")
        if failed := said.get("failed"):
            return Answer(failed if failed in ("timeout", "memory") else "crashed")
        if "score" in said:
            return Answer("scored", str(said.get("raised", "")), score=float(said["score"]))
        if not said["parsed"]:
            return Answer("unread", gold_read=bool(said.get("gold", True)))
        return Answer("equal" if said["ok"] else "different", str(said["by"]))

    def _line(self, seconds: float) -> bytes | None:
        """The next line; empty at the end of the stream, None where the time ran out."""
        if self.process.stdout is None:
            return b""
        poll = select.poll()  # select() cannot take the large descriptors of a big process
        poll.register(self.process.stdout, select.POLLIN | select.POLLHUP)
        deadline = time.monotonic() + seconds
        while b"\n" not in self.buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not poll.poll(left * 1000):
                return None
            chunk = os.read(self.process.stdout.fileno(), 65536)
            if not chunk:
                return b""
            self.buffer += chunk
        line, _, self.buffer = self.buffer.partition(b"\n")
        return line

    def kill(self) -> None:
        """Ends the server and its child."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


class Pool:
    """At most `size` workers, started as they are needed; any number of threads may ask."""

    def __init__(
        self,
        size: int | None = None,
        seconds: float = SECONDS,
        memory: int = MEMORY,
        start: Callable[[int], _Worker] = _Worker,
    ) -> None:
        self.size = size or max(1, min(4, os.cpu_count() or 1))
        self.seconds, self.memory = seconds, memory
        self._start = start
        self._free: list[_Worker] = []
        self._slots = threading.BoundedSemaphore(self.size)
        self._lock = threading.Lock()
        self._cache: OrderedDict[tuple[str, str, str], Answer] = OrderedDict()
        self._all: set[_Worker] = set()

    def ask(self, gold: str, answer: str, seconds: float | None = None) -> Answer:
        """Whether math-verify finds the two equal. Timeouts and crashes are not cached."""
        key = (VERSION, gold, answer)
        with self._lock:
            if key in self._cache:
                self._cache.move_to_end(key)
                return self._cache[key]
        said = self._question({"gold": gold, "answer": answer}, seconds or self.seconds)
        if said.outcome in ("equal", "different", "unread"):
            with self._lock:
                self._cache[key] = said
                if len(self._cache) > CACHE:
                    self._cache.popitem(last=False)
        return said

    def score_gym(self, entry: dict[str, Any], answer: str, seconds: float) -> Answer:
        """The score that reasoning-gym gives an answer; `entry` names generator, size, seed and index."""
        return self._question({"op": "gym", "entry": entry, "answer": answer}, seconds)

    def _question(self, question: dict[str, Any], seconds: float) -> Answer:
        with self._slots:
            worker = self._take()
            healthy = False
            try:
                said = worker.ask(question, seconds)
                healthy = worker.in_step and worker.process.poll() is None
            finally:
                self._give(worker, healthy)
        return said

    def _take(self) -> _Worker:
        with self._lock:
            if self._free:
                return self._free.pop()
        worker = self._start(self.memory)
        with self._lock:
            self._all.add(worker)
        return worker

    def _give(self, worker: _Worker, healthy: bool) -> None:
        if healthy:
            with self._lock:
                self._free.append(worker)
            return
        with self._lock:
            self._all.discard(worker)
        worker.kill()

    def close(self) -> None:
        """Ends all workers; the pool can be used again."""
        with self._lock:
            workers, self._all, self._free = list(self._all), set(), []
        for worker in workers:
            worker.kill()

    def forget(self) -> None:
        """In a forked child: the workers belong to the parent."""
        self._free, self._all = [], set()
        self._lock, self._slots = threading.Lock(), threading.BoundedSemaphore(self.size)


_shared: Pool | None = None
_shared_lock = threading.Lock()


def shared() -> Pool:
    """The process-wide pool, made on first use and ended at exit."""
    global _shared
    with _shared_lock:
        if _shared is None:
            _shared = Pool()
            atexit.register(_shared.close)
            os.register_at_fork(after_in_child=_shared.forget)
        return _shared
