"""`GraphSteps` over a stand-in of torch.cuda: what is called, recorded, replayed, forgotten. No GPU takes part."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any

import pytest
import torch

from broaden.engines.graphs import GraphSteps


class Cuda:
    """Notes in `log`; `recording` is set inside of a recording, whose steps do nothing but being noted."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.recording, self.pools, self.streams = False, 0, ["main"]

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        cuda = self

        class Stream:
            def __init__(self, device: Any = None, name: str = "side") -> None:
                self.device, self.name = device, name

            def wait_stream(self, other: Any) -> None:
                cuda.log.append(f"{self.name} waits for {other.name}")

        class Graph:
            def replay(self) -> None:
                cuda.log.append("replay")

        @contextmanager
        def stream(which: Stream) -> Any:
            cuda.streams.append(which.name)
            yield
            cuda.streams.pop()

        @contextmanager
        def graph(made: Graph, pool: int, which: Stream, capture_error_mode: str) -> Any:
            assert capture_error_mode == "thread_local"
            cuda.recording = True
            cuda.streams.append(which.name)
            try:
                yield
                cuda.streams.pop()  # as in torch: not when the recording broke off
            finally:
                cuda.recording = False
            cuda.log.append(f"recorded in pool {pool}")

        def handle() -> int:
            cuda.pools += 1
            return cuda.pools

        def set_stream(which: Stream) -> None:
            cuda.streams = [which.name]

        fakes = {
            "Stream": Stream, "CUDAGraph": Graph, "stream": stream, "graph": graph, "graph_pool_handle": handle,
            "current_stream": lambda device: Stream(device, cuda.streams[-1]), "set_stream": set_stream,
        }  # fmt: skip
        for name, fake in fakes.items():
            monkeypatch.setattr(torch.cuda, name, fake)

    def step(self) -> None:
        self.log.append("noted" if self.recording else f"ran on {self.streams[-1]}")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    made = Cuda()
    made.install(monkeypatch)
    return made


FIRST = ["side waits for main", "ran on side", "main waits for side", "noted"]


def test_the_first_step_is_run_and_recorded_later_ones_are_replayed(cuda: Cuda) -> None:
    steps = GraphSteps(torch.device("cpu"))
    for _ in range(3):
        steps.run("a", cuda.step)
    assert cuda.log == [*FIRST, "recorded in pool 1", "replay", "replay"]
    steps.run("b", cuda.step)
    assert cuda.log[6:] == ["replay", *FIRST, "recorded in pool 1"]
    assert (steps.recorded, cuda.streams) == (2, ["main"])


def test_what_is_forgotten_is_recorded_into_another_pool(cuda: Cuda) -> None:
    steps = GraphSteps(torch.device("cpu"))
    steps.run("a", cuda.step)
    steps.forget()
    assert steps.recorded == 0
    steps.run("a", cuda.step)
    assert cuda.log == [*FIRST, "recorded in pool 1", *FIRST, "recorded in pool 2"]


def test_a_step_that_cannot_be_recorded_stays_a_call(cuda: Cuda) -> None:
    steps = GraphSteps(torch.device("cpu"))

    def waits() -> None:
        if cuda.recording:
            raise RuntimeError("operation not permitted when stream is capturing")
        cuda.step()

    with pytest.warns(UserWarning, match="not permitted"):
        steps.run("a", waits)
    assert cuda.streams == ["main"]
    steps.run("a", waits)
    assert cuda.log == [*FIRST[:3], "ran on main"]
    steps.run("b", cuda.step)
    assert cuda.log[4:] == [*FIRST, "recorded in pool 2"]
    assert steps.recorded == 1
