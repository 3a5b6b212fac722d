"""Rebuild the weights of any logged update from its stage's start, checking every hash on the way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from broaden.errors import UsageError
from broaden.models.checkpoint import load_model
from broaden.perturb import replay as replay_lines
from broaden.runs import checkpoints
from broaden.runs.account import stage_ends
from broaden.runs.loop import stored_config
from broaden.runs.prepare import model_folder
from broaden.runs.stages import stage_seed
from broaden.runs.weights import theta_0
from broaden.store import RunDir

Weights = dict[str, torch.Tensor]


def replay_run(
    path: Path, step: int | None = None, on_step: Callable[[int, str], None] | None = None
) -> tuple[Weights, int, str]:
    """The center after `step` updates (default: all that are logged), its step and its hash.

    Starts from the base model, or from the checkpoint at the boundary of the stage that `step` lies in.

    Raises:
        UsageError: no such step, or one inside a stage that has no seed log.
        ExactnessError: a rebuilt center's hash differs from the logged one.
    """
    run = RunDir.open(path)
    config = stored_config(run)
    lines = run.seedlog()
    logged = max((int(x["step"]) for x in lines), default=-1) + 1
    step = logged if step is None else step
    ends = stage_ends(config, run.records())
    if not 0 <= step <= max(logged, ends[-1]):
        raise UsageError(
            f"step {step} is not in the log of {path}, which has {logged} updates", f"0 to {logged}"
        )
    stage, start = _stage_of(step, ends)
    origin = theta_0(config, load_model(model_folder(config), mapped=True), path)
    center = _stage_start(run, origin, start)
    wanted = [x["line"] for x in lines if x["stage"] == stage and start <= x["step"] < step]
    if len(wanted) != step - start:
        raise UsageError(
            f"update {step} lies in stage {stage} ({config.stages[stage].algo}), of which {len(wanted)} of "
            f"{step - start} updates are in the seed log",
            "only ES stages are replayed; other steps are rebuilt from their checkpoints",
        )
    digest = ""
    at = start
    for _, digest in replay_lines(center, wanted, origin, stage_seed(config.seed, stage)):
        at += 1
        if on_step is not None:
            on_step(at, digest)
    return center, step, digest


def _stage_of(step: int, ends: list[int]) -> tuple[int, int]:
    """Number and first update of the stage in which update number `step` (counted from 1) was made."""
    starts = [0, *ends[:-1]]
    for index, (start, end) in enumerate(zip(starts, ends, strict=True)):
        if start < step <= end or (step == 0 and index == 0):
            return index, start
    return len(ends) - 1, starts[-1]


def _stage_start(run: RunDir, origin: Weights, start: int) -> Weights:
    if start == 0:
        return _copy(origin)
    folder = run.checkpoint_path(start)
    return _copy(checkpoints.load_center(folder, checkpoints.position(folder)))


def _copy(weights: Weights) -> Weights:
    """In float32, to be written."""
    return {name: tensor.to(torch.float32, copy=True) for name, tensor in weights.items()}


__all__ = ["replay_run"]
