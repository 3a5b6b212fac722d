"""The JSON object that `demo`, `eval` and `compare` print with --json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broaden.evaluation.compare import Comparison
from broaden.evaluation.summary import ArmSummary
from broaden.ledger.budget import Budget
from broaden.metrics.intervals import Interval


def arm_json(arm: ArmSummary, budget: Budget | None = None) -> dict[str, Any]:
    """{"pass@1": {"value", "low", "high"}, ..., "counts": {...}, "budget": {...}} of one arm."""
    out: dict[str, Any] = {name: interval.to_json() for name, interval in arm.metrics.items()}
    out["problems"], out["samples"] = arm.problems, arm.samples
    out["counts"] = dict(arm.counts)
    if budget is not None:
        out["budget"] = budget.to_json()
    return out


def document(
    arms: Mapping[str, ArmSummary],
    paired: Mapping[str, Comparison | Mapping[str, Interval]],
    conditions: Mapping[str, Any],
    budgets: Mapping[str, Budget] | None = None,
) -> dict[str, Any]:
    """The whole object: arms by name, paired differences by "NAME-base", shared conditions.

    A pair may be a plain mapping of intervals (the mean of several nulls, say).
    """
    return {
        "arms": {name: arm_json(arm, (budgets or {}).get(name)) for name, arm in arms.items()},
        "paired": {name: _pair_json(pair) for name, pair in paired.items()},
        "conditions": dict(conditions),
    }


def _pair_json(pair: Comparison | Mapping[str, Interval]) -> dict[str, Any]:
    if not isinstance(pair, Comparison):
        return {name: interval.to_json() for name, interval in pair.items()}
    out: dict[str, Any] = {name: interval.to_json() for name, interval in pair.metrics.items()}
    out["progressions"], out["regressions"] = len(pair.progressions), len(pair.regressions)
    out["mcnemar_p"] = pair.mcnemar_p
    if pair.conditions_differ:
        out["conditions_differ"] = pair.conditions_differ
    return out
