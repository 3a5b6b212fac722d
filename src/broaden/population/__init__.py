"""Populations: N members on a mini-batch, serial, batched or in processes, with the same bits."""

from broaden.population.base import Member, Population, Prompt, RolloutJob
from broaden.population.inplace import InPlacePopulation
from broaden.population.local import LocalPopulation
from broaden.population.pool import WorkerPool
from broaden.population.processes import PoolEngine, ProcessPopulation
from broaden.population.shared import SharedWeights

__all__ = [
    "InPlacePopulation",
    "LocalPopulation",
    "Member",
    "PoolEngine",
    "Population",
    "ProcessPopulation",
    "Prompt",
    "RolloutJob",
    "SharedWeights",
    "WorkerPool",
]
