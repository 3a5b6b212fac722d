"""Populations and engines over a pool of worker processes: the same bits as in one process."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from broaden.perturb import write_center
from broaden.population.base import OnProgress, Prompt, RolloutJob, Weights, chunks
from broaden.population.host import HostSettings
from broaden.population.messages import (
    Message,
    completion_from_json,
    job_to_json,
    requests_to_json,
    result_from_json,
)
from broaden.population.pool import WorkerPool
from broaden.records import Completion, MemberResult, Request, Sampling

REQUESTS_A_GROUP = 1024


class ProcessPopulation:
    """A `Population` whose members run in `workers` processes."""

    def __init__(
        self, settings: HostSettings, prompts: Sequence[Prompt], center: Weights, workers: int
    ) -> None:
        self.pool = WorkerPool(settings, prompts, center, workers)

    def rollout(
        self, center: Weights, job: RolloutJob, on_progress: OnProgress | None = None
    ) -> list[MemberResult]:
        """See `Population.rollout`."""
        if center is not self.pool.center:
            write_center(center, self.pool.center)
        settings = self.pool.settings
        at_once = settings.low_rank if job.spec.rank else settings.members
        size = max(1, min(at_once, -(-len(job.members) // self.pool.count)))
        once = {"names": list(job.spec.names), "job": job_to_json(job)}
        messages: list[Message] = [
            {"rollout": [list(m) for m in group], "once": once} for group in chunks(job.members, size)
        ]
        answers = self.pool.run(messages, on_progress)
        return [result_from_json(r) for answer in answers for r in answer["results"]]

    def conditions(self) -> dict[str, object]:
        """See `Population.conditions`."""
        return {**self.pool.conditions(), "population": "processes"}

    def close(self) -> None:
        """See `Population.close`."""
        self.pool.close()


class PoolEngine:
    """An `Engine` with one set of weights whose requests are answered by a pool of processes."""

    members = 1

    def __init__(self, pool: WorkerPool) -> None:
        self.pool = pool
        self.version = 0

    def weights(self, member: int = 0) -> dict[str, torch.Tensor]:
        """The shared float32 weights, to be written in place; workers cast them to their compute type."""
        return self.pool.center

    def weights_changed(self) -> None:
        """Workers take the weights anew before their next group."""
        self.version += 1

    def generate(
        self,
        requests: Sequence[Sequence[Request]],
        sampling: Sampling,
        on_progress: OnProgress | None = None,
    ) -> list[list[Completion]]:
        """See `Engine.generate`."""
        (asked,) = requests
        size = max(1, min(REQUESTS_A_GROUP, -(-len(asked) // self.pool.count)))
        messages: list[Message] = [
            {
                "generate": requests_to_json(asked[i : i + size]),
                "sampling": sampling.to_json(), "version": self.version,
            }
            for i in range(0, len(asked), size)
        ]  # fmt: skip
        answers = self.pool.run(messages, on_progress)
        return [[completion_from_json(c) for answer in answers for c in answer["completions"]]]

    def conditions(self) -> dict[str, object]:
        """See `Engine.conditions`."""
        return self.pool.conditions()

    def close(self) -> None:
        """End the worker processes."""
        self.pool.close()
