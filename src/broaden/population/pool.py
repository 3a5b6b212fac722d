"""A pool of local worker processes of one thread each, over a center in shared memory.

Work is dealt out in small groups as workers become free. A worker that dies is started again and its group
is run again: every group is a pure function of the center and of named random numbers, so nothing of this
can change a result. Not here: what the groups mean (`processes`).
"""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any

from broaden.errors import DivergedError, WorkerError
from broaden.population.base import OnProgress, Prompt, Weights
from broaden.population.host import HostSettings, prompts_to_json
from broaden.population.shared import SharedWeights, entries_to_json
from broaden.population.wire import receive, send

RESTARTS = 3
Message = dict[str, Any]


class WorkerPool:
    """Starts, feeds, restarts and ends the processes.

    Args:
        like: the center. `SharedWeights` are what the workers read; of any others there is a shared copy, `center`.
    """

    def __init__(
        self, settings: HostSettings, prompts: Sequence[Prompt], like: Weights, workers: int
    ) -> None:
        self.settings, self.prompts, self.count = settings, prompts, workers
        self.center, self.owned = SharedWeights.of(like)
        self.workers: list[Worker] = []
        try:
            for _ in range(workers):
                self.workers.append(self._start())
            for worker in self.workers:  # all of them load at the same time
                worker.open()
            for worker in self.workers:
                worker.wait_ready()
        except BaseException:
            self.close()
            raise

    def run(self, messages: Sequence[Message], on_progress: OnProgress | None) -> list[Message]:
        """Answers to the messages, in their order. A message may have "once" keys: sent when changed."""
        return _Round(self, messages).run(on_progress)

    def restart(self, index: int) -> None:
        """Replace a dead worker."""
        self.workers[index].stop()
        self.workers[index] = self._start()
        self.workers[index].open()
        self.workers[index].wait_ready()

    def conditions(self) -> dict[str, object]:
        """The workers' conditions (they are all alike)."""
        return {**self.workers[0].conditions, "workers": self.count}

    def close(self) -> None:
        """End the workers and free the shared memory."""
        for worker in self.workers:
            worker.stop()
        self.workers = []
        if self.owned:
            self.center.close()

    def _start(self) -> Worker:
        opening = {
            "settings": self.settings.to_json(), "prompts": prompts_to_json(self.prompts),
            "entries": entries_to_json(self.center.entries), "total": self.center.total,
            "center": self.center.file.fileno(),
        }  # fmt: skip
        return Worker(opening, self.center.file.fileno())


class Worker:
    """One process and its pipes; `sent` and `received` count the bytes to and from it."""

    def __init__(self, opening: Message, shared: int) -> None:
        env = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "broaden.population.worker"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, start_new_session=True, pass_fds=(shared,),
        )  # fmt: skip
        self.conditions: dict[str, object] = {}
        self.told: Message = {}
        self.sent = self.received = 0
        self._opening = opening

    def open(self) -> None:
        """Send the opening message."""
        self.ask(self._opening)

    def wait_ready(self) -> None:
        """Wait until the model is built; WorkerError when the worker could not start."""
        self.conditions = dict(self.answer().get("conditions", {}))

    def ask(self, message: Message) -> None:
        """Send, leaving out "once" values that this worker already has; WorkerError when it is gone."""
        once = message.get("once", {})
        new = {k: v for k, v in once.items() if self.told.get(k) != v}
        self.told |= new
        if self.process.stdin is None:
            raise WorkerError("the worker has no input pipe")
        try:
            self.sent += send(self.process.stdin, {**message, "once": new})
        except (OSError, ValueError) as error:
            raise WorkerError(f"a worker process is gone: {error}") from error

    def answer(self) -> Message:
        """Wait for the next message."""
        if self.process.stdout is None:
            raise WorkerError("the worker has no output pipe")
        try:
            message, count = receive(self.process.stdout)
        except ValueError as error:
            raise WorkerError(f"a worker's pipe was closed: {error}") from error
        self.received += count
        return message

    def stop(self) -> None:
        """End the process; it holds nothing that matters."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:  # unsent bytes to a dead process
                    continue


class _Round:
    """One batch of messages: a thread a worker takes them from a queue; the calling thread reports progress."""

    def __init__(self, pool: WorkerPool, messages: Sequence[Message]) -> None:
        self.pool, self.messages = pool, messages
        self.todo: queue.SimpleQueue[int] = queue.SimpleQueue()
        for index in range(len(messages)):
            self.todo.put(index)
        self.answers: dict[int, Message] = {}
        self.progress: dict[int, tuple[int, int]] = {}
        self.failure: Exception | None = None
        self.stopped = threading.Event()
        self.restarts = 0

    def run(self, on_progress: OnProgress | None) -> list[Message]:
        threads = [
            threading.Thread(target=self._drive, args=(i,), daemon=True) for i in range(self.pool.count)
        ]
        for thread in threads:
            thread.start()
        try:
            while alive := [t for t in threads if t.is_alive()]:
                alive[0].join(0.1)
                if on_progress is not None:
                    done = list(self.progress.values())
                    on_progress(sum(d for d, _ in done), sum(t for _, t in done))
        except BaseException:  # mid-group: the workers' answers are no longer wanted
            self.stopped.set()
            for worker in self.pool.workers:
                worker.process.kill()
            for thread in threads:
                thread.join()
            self.pool.close()
            raise
        if self.failure is not None:
            raise self.failure
        return [self.answers[i] for i in range(len(self.messages))]

    def _drive(self, index: int) -> None:
        while not self.stopped.is_set() and self.failure is None:
            try:
                group = self.todo.get_nowait()
            except queue.Empty:
                return
            try:
                self.answers[group] = self._ask(index, group)
            except WorkerError as error:
                if not self.stopped.is_set():
                    self._recover(index, group, error)
            except Exception as error:  # handed to the calling thread, which raises it
                self.failure = error

    def _ask(self, index: int, group: int) -> Message:
        worker = self.pool.workers[index]
        worker.ask(self.messages[group])
        while True:
            message = worker.answer()
            if "progress" in message:
                self.progress[group] = (int(message["progress"][0]), int(message["progress"][1]))
            elif "diverged" in message:
                raise DivergedError(*message["diverged"])
            else:
                return message

    def _recover(self, index: int, group: int, error: WorkerError) -> None:
        self.restarts += 1
        if self.restarts > RESTARTS:
            self.failure = WorkerError(
                f"workers died {self.restarts} times in one round ({error}); the last in group {group}",
                "look at the messages above; fewer workers need less memory: population.workers=1",
            )
            return
        try:
            self.pool.restart(index)
        except WorkerError as again:
            self.failure = again
            return
        self.todo.put(group)
