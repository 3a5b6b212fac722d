"""Rates that stand beside every score: distinct, truncated, and the check for a degenerate run."""

from __future__ import annotations

from collections.abc import Sequence

from broaden.errors import MetricError


def distinct_fraction(completions: Sequence[Sequence[int]]) -> float:
    """Different token sequences among the samples of one problem, over their number: 1/M means copies."""
    if not completions:
        raise MetricError("the distinct fraction of no samples is not defined")
    return len({tuple(c) for c in completions}) / len(completions)


def distinct_rate(completions: Sequence[Sequence[int]]) -> float:
    """From 0 (all M are copies) to 1 (all differ): (distinct - 1)/(M - 1); 1 for M = 1."""
    if not completions:
        raise MetricError("the distinct rate of no samples is not defined")
    if len(completions) == 1:
        return 1.0
    return (len({tuple(c) for c in completions}) - 1) / (len(completions) - 1)


def is_degenerate(distinct: Sequence[int], samples: int, temperature: float, nats: float | None) -> bool:
    """Are a run's samples copies although they should differ?

    Args:
        distinct: number of different completions of each problem.
        samples: M.
        temperature: of the sampling; greedy samples are copies by right.
        nats: mean entropy of a whole completion (mean token entropy x mean length), None if not recorded.
    Returns:
        True where all problems (two or more) have M > 1 identical samples and the policy was not near
        deterministic: with the entropy known, more than one nat a completion; unknown, temperature >= 0.3.
    """
    if samples < 2 or len(distinct) < 2 or temperature <= 0.0 or any(d > 1 for d in distinct):
        return False
    return temperature >= 0.3 if nats is None else nats > 1.0
