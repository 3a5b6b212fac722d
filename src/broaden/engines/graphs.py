"""A step that is recorded once and then replayed: CUDA graphs on a GPU, plain calls elsewhere.

A decode step is hundreds of small kernels, and launching them one by one takes longer than running them. What is
recorded must keep to tensors that stay where they are: it reads its inputs from them and leaves its results there.
Not here: what a step does (`device_decode`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch

Step = Callable[[], None]


class Steps(Protocol):
    """Runs a step under a name; steps of one name do the same to the same tensors."""

    @property
    def recorded(self) -> int:
        """Recordings held."""

    def run(self, name: Hashable, step: Step) -> None:
        """Do the step once."""

    def forget(self) -> None:
        """The tensors have moved: nothing recorded is of use any more."""


class PlainSteps:
    """Every step is called as it is: any device."""

    recorded = 0

    def run(self, name: Hashable, step: Step) -> None:
        """See `Steps.run`."""
        step()

    def forget(self) -> None:
        """See `Steps.forget`."""


class GraphSteps:
    """The first step of a name is called and then recorded, later ones are replays.

    All graphs share one pool of memory, which is safe as nothing that a step leaves behind lies in it. Where recording
    fails (an operation that waits for the device, say), that is said once and the step stays a plain call.
    """

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device)
        self.pool = torch.cuda.graph_pool_handle()
        self.graphs: dict[Hashable, torch.cuda.CUDAGraph | None] = {}

    @property
    def recorded(self) -> int:
        """Graphs held."""
        return sum(graph is not None for graph in self.graphs.values())

    def run(self, name: Hashable, step: Step) -> None:
        """See `Steps.run`."""
        graph = self.graphs.get(name)
        if graph is not None:
            graph.replay()
        elif name in self.graphs:
            step()
        else:
            self._first(name, step)

    def forget(self) -> None:
        """See `Steps.forget`. A pool that no graph holds any more cannot be recorded into again."""
        self.graphs.clear()
        self.pool = torch.cuda.graph_pool_handle()

    def _first(self, name: Hashable, step: Step) -> None:
        """Call on the stream that records (libraries set themselves up for it), then record without running."""
        current = torch.cuda.current_stream(self.stream.device)
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            step()
        current.wait_stream(self.stream)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, self.pool, self.stream, capture_error_mode="thread_local"):
                step()
        except RuntimeError as error:
            torch.cuda.set_stream(current)  # a recording that breaks off may leave its own stream in place
            self.pool = torch.cuda.graph_pool_handle()
            warnings.warn(f"a decode step could not be recorded as a CUDA graph: {error}", stacklevel=2)
            self.graphs[name] = None
        else:
            self.graphs[name] = graph


def on(device: torch.device) -> AbstractContextManager[object]:
    """The device as the current one: Triton launches there, whatever its tensors lie on."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def steps_for(device: torch.device) -> Steps:
    """Graphs on CUDA, plain calls elsewhere."""
    return GraphSteps(device) if device.type == "cuda" else PlainSteps()
