"""A worker process: `python -m broaden.population.worker`, driven over its standard input and output."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import IO, TYPE_CHECKING

from broaden.errors import DivergedError, WorkerError
from broaden.heap import one_arena
from broaden.population.messages import (
    Message,
    completion_to_json,
    job_from_json,
    requests_from_json,
    result_to_json,
)
from broaden.population.shared import Entry, entries_from_json, map_center
from broaden.population.wire import receive, send
from broaden.records import Request, Sampling

if TYPE_CHECKING:
    from broaden.population.local import LocalPopulation

PROGRESS_SECONDS = 0.2


class Server:
    """Holds the engine and answers messages."""

    def __init__(self, opening: Message, outward: IO[bytes]) -> None:
        from broaden.population.host import HostSettings, build_host, prompts_from_json

        self.outward = outward
        self.host: LocalPopulation = build_host(
            HostSettings(**opening["settings"]), prompts_from_json(opening["prompts"])
        )
        self.center: int = opening["center"]
        self.entries: list[Entry] = entries_from_json(opening["entries"])
        self.total: int = opening["total"]
        self.once: Message = {}
        self.version = -1
        self.last = 0.0

    def answer(self, message: Message) -> Message:
        """The reply to one message."""
        self.once |= message["once"]
        try:
            return self._rollout(message) if "rollout" in message else self._generate(message)
        except DivergedError as error:
            return {"diverged": [error.message, error.fix]}

    def _rollout(self, message: Message) -> Message:
        self.version = -1
        job = job_from_json(self.once["job"], tuple(self.once["names"]), message["rollout"])
        center = map_center(self.center, self.entries, self.total)
        return {"results": [result_to_json(r) for r in self.host.rollout(center, job, self.progress)]}

    def _generate(self, message: Message) -> Message:
        engine = self.host.engine
        if message["version"] != self.version:
            center = map_center(self.center, self.entries, self.total)
            for name, tensor in engine.weights(0).items():
                tensor.copy_(center[name])
            engine.weights_changed()
            self.version = message["version"]
        requests = requests_from_json(message["generate"])
        idle: list[list[Request]] = [[] for _ in range(engine.members - 1)]
        answers = engine.generate([requests, *idle], Sampling.from_json(message["sampling"]), self.progress)
        return {"completions": [completion_to_json(c) for c in answers[0]]}

    def progress(self, completions: int, tokens: int) -> None:
        """Pass progress on, a few times a second."""
        if time.monotonic() - self.last > PROGRESS_SECONDS:
            self.last = time.monotonic()
            send(self.outward, {"progress": [completions, tokens]})


def serve(inward: IO[bytes], outward: IO[bytes]) -> None:
    """Answer messages until the pipe closes."""
    server = Server(receive(inward)[0], outward)
    send(outward, {"ready": True, "conditions": server.host.conditions()})
    while True:
        try:
            message, _ = receive(inward)
        except WorkerError:
            return
        send(outward, server.answer(message))


def main() -> None:
    """Keep the protocol's pipe to ourselves: prints of libraries go to stderr; Ctrl-C is the parent's."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    outward = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    one_arena()
    import torch

    torch.set_num_threads(1)
    try:
        serve(sys.stdin.buffer, outward)
    except BrokenPipeError:
        return


if __name__ == "__main__":
    main()
