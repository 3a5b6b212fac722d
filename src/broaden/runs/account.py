"""What the stages of a run take over from each other, and what each has spent, from its records alone.

A resumed run must end a stage where the uninterrupted one would, so nothing here looks at a clock: a budget in seconds
counts the seconds that were logged. Not here: FLOPs of plans (`ledger`), and running anything (`loop`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from broaden.config import EsStage, GrpoStage, RunConfig, SftStage
from broaden.ledger.budget import Budget
from broaden.records import StepRecord
from broaden.runs.stages import stage_seed

Stage = EsStage | SftStage | GrpoStage


def spent(records: Iterable[StepRecord]) -> Budget:
    """Updates, generated tokens, FLOPs by both ledgers and seconds of these updates."""
    total = Budget()
    for record in records:
        tokens, paper, full, seconds = (
            record.values.get(name) or 0 for name in ("tokens", "flops_paper", "flops_full", "seconds")
        )
        total = total + Budget(1, int(tokens), float(paper), float(full), float(seconds))
    return total


def work(records: Iterable[StepRecord]) -> dict[str, int]:
    """Rollouts and optimiser steps of these updates."""
    total = {"rollouts": 0, "optimizer_steps": 0}
    for record in records:
        for name in total:
            total[name] += int(record.values.get(name) or 0)
    return total


def is_over(config: RunConfig, stage: int, so_far: Budget) -> bool:
    """Whether a stage is over that has spent this: it has made its updates, or its share of the budget is used up.

    (A budget in updates is in `updates` already: see `config.budget`.)
    """
    budget = config.budget
    if so_far.updates >= config.stages[stage].updates:
        return True
    if budget is None or budget.total == "updates":
        return False
    return float(getattr(so_far, budget.total)) >= budget.shares(len(config.stages))[stage]


def stage_ends(config: RunConfig, records: Sequence[StepRecord], over: int | None = None) -> list[int]:
    """Global step at which each stage ends: as logged for the first `over` stages (default: those before the last one
    that is logged), for the others the most it can be."""
    made = Counter(int(r.values.get("stage") or 0) for r in records)
    finished = max(made, default=0) if over is None else over
    ends, at = [], 0
    for index, stage in enumerate(config.stages):
        at += made[index] if index < finished else stage.updates
        ends.append(at)
    return ends


def hand_over(config: RunConfig) -> list[dict[str, Any]]:
    """For the manifest: each stage with what it takes over and what begins afresh."""
    budget, count = config.budget, len(config.stages)
    shares: tuple[float, ...] = ()
    if budget is not None:
        shares = budget.whole(count) if budget.total == "updates" else budget.shares(count)
    return [
        {
            "stage": index,
            "algo": stage.algo,
            "seed": stage_seed(config.seed, index),
            "weights": _weights(stage, index),
            "optimizer": "none" if isinstance(stage, EsStage) else "AdamW, reset: moments and step count at zero",
            "schedule": f"restarted: update 0 of {stage.updates}",
            "data_order": "restarted: epoch 0, shuffled under the stage's seed",
            "reference": stage.reference if isinstance(stage, GrpoStage) and stage.kl else None,
            "drift_from": "theta_0",
            "updates_at_most": stage.updates,
            "share": {budget.total: shares[index]} if budget is not None else None,
        }
        for index, stage in enumerate(config.stages)
    ]  # fmt: skip


def _weights(stage: Stage, index: int) -> str:
    source = "theta_0" if index == 0 else f"carried from the end of stage {index - 1}"
    inplace = isinstance(stage, EsStage) and stage.precision == "bf16_inplace"
    return f"{source}, {'rounded to bfloat16' if inplace else 'float32 master'}"


def stages_so_far(config: RunConfig, records: Sequence[StepRecord]) -> list[dict[str, Any]]:
    """`hand_over` with what each stage has done: its first step and what it has spent by all four budgets."""
    by_stage: dict[int, list[StepRecord]] = {}
    for record in records:
        by_stage.setdefault(int(record.values.get("stage") or 0), []).append(record)
    out, first = [], 0
    for index, entry in enumerate(hand_over(config)):
        own = by_stage.get(index, [])
        out.append({**entry, "first_step": first, "spent": spent(own).to_json()})
        first += len(own)
    return out
