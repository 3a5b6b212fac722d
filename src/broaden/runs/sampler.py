"""An engine for evaluation: one set of weights, in this process or spread over worker processes."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

import torch

from broaden.engines import Engine
from broaden.perturb import write_center
from broaden.population import PoolEngine, WorkerPool
from broaden.population.host import HostSettings, build_host

Weights = dict[str, torch.Tensor]


class Sampler:
    """A context manager around an engine; `load` puts weights into it."""

    def __init__(self, settings: HostSettings, weights: Weights, workers: int = 1) -> None:
        self.pool = PoolEngine(WorkerPool(settings, (), weights, workers)) if workers > 1 else None
        self.engine: Engine = self.pool or build_host(settings, ()).engine
        self.load(weights)

    def load(self, weights: Weights) -> None:
        """Take other weights of the same model."""
        if self.pool is None or weights is not self.pool.pool.center:
            write_center(weights, self.engine.weights(0))
        self.engine.weights_changed()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End worker processes, if any."""
        if self.pool is not None:
            self.pool.close()


def sampler_settings(
    folder: Path, task: str, *, engine: str, dtype: str, device: str, slots: int | None, max_context: int
) -> HostSettings:
    """Host settings with one set of weights."""
    return HostSettings(
        model=str(folder), task=task, engine=engine, dtype=dtype, device=device, members=1, slots=slots,
        max_context=max_context,
    )  # fmt: skip
