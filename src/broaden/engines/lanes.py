"""Jobs in a few threads of one process, each with its own share of the cores.

Compiled kernels and products release the GIL, and a sample does not depend on who else is asked with it, so
lanes need no coordination. Lanes of one thread each beat one lane whose every operation is spread over threads:
nothing waits at the end of each operation. Not here: what a job does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager

import torch

from broaden.engines.base import OnProgress

Job = Callable[[OnProgress, threading.Event], None]


class Totals:
    """Adds up the progress of jobs that report their own totals; one caller at a time."""

    def __init__(self, on_progress: OnProgress | None) -> None:
        self.on_progress, self.lock = on_progress, threading.Lock()
        self.finished = self.tokens = 0

    def reporter(self) -> OnProgress:
        """The callback of one job."""
        last = [0, 0]

        def report(finished: int, tokens: int) -> None:
            with self.lock:
                self.finished, self.tokens = (
                    self.finished + finished - last[0],
                    self.tokens + tokens - last[1],
                )
                last[:] = finished, tokens
                if self.on_progress is not None:
                    self.on_progress(self.finished, self.tokens)

        return report


def run_lanes(lanes: Sequence[Sequence[Job]], threads: int, on_progress: OnProgress | None) -> None:
    """Run every lane's jobs in turn, the lanes side by side with `threads` torch threads each.

    The first exception (an interrupt too) stops all lanes after their current step, and is raised.
    """
    stop, totals = threading.Event(), Totals(on_progress)

    def run(jobs: Sequence[Job]) -> None:
        with torch.inference_mode():
            for job in jobs:
                job(totals.reporter(), stop)

    with torch_threads(threads):
        if len(lanes) == 1:
            run(lanes[0])
            return
        with ThreadPoolExecutor(len(lanes), "engine", torch.set_num_threads, (threads,)) as pool:
            futures = [pool.submit(run, jobs) for jobs in lanes]
            try:
                for future in wait(futures, return_when=FIRST_EXCEPTION).done:
                    future.result()
            except BaseException:
                stop.set()
                raise


@contextmanager
def torch_threads(threads: int) -> Iterator[None]:
    """torch's intra-operation threads for a while, then what they were."""
    before = torch.get_num_threads()
    if threads != before:
        torch.set_num_threads(threads)
    try:
        yield
    finally:
        if threads != before:
            torch.set_num_threads(before)
