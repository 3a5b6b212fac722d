"""Where a run's weights live. Nothing of this changes a bit.

    master     float32: memory of this process; with worker processes shared memory, which they read too; in low-memory
               mode a nameless file in the run directory, which the workers map as well
    theta_0    the model's own files, mapped and never copied, in their stored type (a float32 copy only where an ES
               stage decays toward it and it is stored in another)

Not here: the working copies in the engines, which are what inference needs.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import torch

from broaden.config import EsStage, RunConfig
from broaden.errors import StoreError
from broaden.models.checkpoint import Model
from broaden.population import SharedWeights
from broaden.population.shared import size_of

Weights = dict[str, torch.Tensor]


def master(config: RunConfig, like: Mapping[str, torch.Tensor], folder: Path) -> Weights:
    """A float32 copy of `like` that the run may write, where the configuration wants it.

    Raises:
        StoreError: there is no room for it.
    """
    if config.low_memory:
        return SharedWeights(like, folder)
    if config.population.workers > 1 or config.population.kind == "processes":
        return SharedWeights(like)
    return {name: tensor.to(torch.float32, copy=True) for name, tensor in like.items()}


def theta_0(config: RunConfig, model: Model, folder: Path) -> Weights:
    """The weights that the run began with, not to be written."""
    if not copies_theta_0(config, model.weights):
        return model.weights
    if config.low_memory:
        return SharedWeights(model.weights, folder)
    return {name: tensor.float() for name, tensor in model.weights.items()}


def copies_theta_0(config: RunConfig, stored: Mapping[str, torch.Tensor]) -> bool:
    """Whether theta_0 is needed in float32 and stored otherwise."""
    decays = any(isinstance(stage, EsStage) and stage.decay for stage in config.stages)
    return decays and any(tensor.dtype != torch.float32 for tensor in stored.values())


def check_room(config: RunConfig, model: Model, out: Path) -> None:
    """Say before anything is written where the disk has no room for the files of low-memory mode.

    Raises:
        StoreError: naming what is needed and what is free.
    """
    if not config.low_memory:
        return
    needed = size_of(model.parameters) * (1 + copies_theta_0(config, model.weights))
    there = next(p for p in (out.absolute(), *out.absolute().parents) if p.exists())
    free = shutil.disk_usage(there).free
    if free < needed:
        raise StoreError(
            f"low_memory keeps {needed:,} bytes of weights in {out}, where {free:,} are free",
            "free some, choose a run directory on another disk (--out), or leave out low_memory",
        )
