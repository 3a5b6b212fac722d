"""Stops a run that collapses: a pure function of the rewards so far."""

from __future__ import annotations

from collections.abc import Sequence

from broaden.errors import DivergedError

WEIGHT = 0.8
MIN_STEPS = 10


def smoothed(values: Sequence[float], weight: float = WEIGHT) -> list[float]:
    """Debiased exponential smoothing: s_t = sum_k w^(t-k) v_k / sum_k w^(t-k)."""
    out, num, den = [], 0.0, 0.0
    for v in values:
        num, den = weight * num + v, weight * den + 1.0
        out.append(num / den)
    return out


def check_collapse(rewards: Sequence[float], share: float) -> None:
    """Raise DivergedError when the smoothed mean reward is below `share` of its best (0: never)."""
    if share <= 0 or len(rewards) < MIN_STEPS:
        return
    line = smoothed(rewards)
    best = max(line[MIN_STEPS // 2 :])
    if line[-1] < share * best:
        raise DivergedError(
            f"the smoothed reward fell to {line[-1]:.4f}, under {share:g} of its best {best:.4f}",
            "lower stages.N.sigma or stages.N.alpha, or set stages.N.collapse = 0; the last checkpoint is intact",
        )
