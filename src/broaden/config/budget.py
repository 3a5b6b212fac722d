"""One budget over a run's stages: what it makes of each stage's `updates`.

A budget in updates is settled here, once: a stage's `updates` becomes its share (or what it states, where that is
less), so that schedules run over exactly the updates that are made. Any other budget needs each stage's `updates` as
an upper bound. Not here: ending a stage whose share is used up (`runs.account`).
"""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from broaden.config.schema import BudgetConfig
from broaden.errors import ConfigError


def apply_budget(data: dict[str, Any]) -> dict[str, Any]:
    """The raw config with the stages' `updates` settled by its budget; what is not valid is left to the schema.

    Raises:
        ConfigError: a budget in something else than updates, and a stage that does not say how many it may make.
    """
    stages = data.get("stages")
    if "budget" not in data or not isinstance(stages, list) or not all(isinstance(s, dict) for s in stages):
        return data
    try:
        budget = BudgetConfig.model_validate(data["budget"])
        budget.check_split(len(stages))
    except (ValidationError, ValueError):
        return data
    if budget.total == "updates":
        return {
            **data,
            "stages": [_cut(s, share) for s, share in zip(stages, budget.whole(len(stages)), strict=True)],
        }
    silent = [i for i, stage in enumerate(stages) if "updates" not in stage]
    if silent:
        raise ConfigError(
            f"the budget is in {budget.total}, and stage {silent[0]} does not say how many updates it may make at most",
            f"stages.{silent[0]}.updates = an upper bound (schedules run over it)",
        )
    return data


def _cut(stage: dict[str, Any], share: int) -> dict[str, Any]:
    stated = stage.get("updates", share)
    return {**stage, "updates": min(stated, share) if isinstance(stated, int) else stated}
