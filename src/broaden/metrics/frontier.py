"""Pass@1 against Pass@K: Pareto fronts, and coverage at equal Pass@1 against a temperature frontier.

Lowering the sampling temperature alone raises Pass@1 and lowers Pass@K, so an arm is compared with what
the base reaches at the arm's own Pass@1 by choosing its temperature. Both axes, the arm and the base
are resampled together over problems. Not here: how the per-problem values come about (`evaluation`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from broaden.errors import MetricError
from broaden.metrics._arrays import BoolArray, FloatArray, floats
from broaden.metrics.intervals import LEVEL, RESAMPLES, Interval, bootstrap_weights, percentile
from broaden.records import Record
from broaden.seeds import stream


def pareto_front(x: Any, y: Any) -> BoolArray:
    """Which points are not dominated (larger is better on both axes; equal points stand together)."""
    x_A, y_A = floats(x, "x", 1), floats(y, "y", 1)
    no_worse = (x_A[None, :] >= x_A[:, None]) & (y_A[None, :] >= y_A[:, None])
    better = (x_A[None, :] > x_A[:, None]) | (y_A[None, :] > y_A[:, None])
    front: BoolArray = ~np.any(no_worse & better, axis=1)
    return front


def coverage_at(frontier_x: Any, frontier_y: Any, x: float) -> tuple[float, bool]:
    """Best y that a frontier offers at a given x, and whether x lies beyond its end.

    Between neighbouring points of the Pareto front the value is linear in x: tossing a coin between two
    temperatures for each problem reaches it. Left of the front its highest y holds (a point that is better
    on both axes is there). Beyond its right end the last y is returned with True: no temperature reaches
    that x, and the front, falling, would only be lower there.
    """
    x_T, y_T = floats(frontier_x, "frontier_x", 1), floats(frontier_y, "frontier_y", 1)
    keep = pareto_front(x_T, y_T)
    order = np.argsort(x_T[keep], kind="stable")
    front_x, front_y = x_T[keep][order], y_T[keep][order]
    return float(np.interp(x, front_x, front_y)), bool(x > front_x[-1])


@dataclass(frozen=True, slots=True)
class CoverageGap(Record):
    """An arm against the base's frontier at the arm's Pass@1.

    `gap` = arm's Pass@K - the frontier's there; where the arm is beyond the frontier's end, against the
    frontier's last point, which errs in the base's favour. `beyond`: share of resamples in which it is.
    """

    pass_1: Interval
    pass_k: Interval
    frontier: Interval
    gap: Interval
    beyond: float


def coverage_gap(
    arm_pass_1: Any,
    arm_pass_k: Any,
    base_pass_1: Any,
    base_pass_k: Any,
    *,
    seed: int,
    what: str = "problems",
    resamples: int = RESAMPLES,
    level: float = LEVEL,
) -> CoverageGap:
    """Coverage at equal Pass@1 with a joint bootstrap over problems.

    Args:
        arm_pass_1, arm_pass_k: (P,) per-problem values of the arm.
        base_pass_1, base_pass_k: (T, P) of the base at each of T temperatures, on the same problems.
    """
    a1, ak = floats(arm_pass_1, "arm_pass_1", 1), floats(arm_pass_k, "arm_pass_k", 1)
    b1, bk = floats(base_pass_1, "base_pass_1", 2), floats(base_pass_k, "base_pass_k", 2)
    if not (a1.shape == ak.shape == b1.shape[1:] == bk.shape[1:] and b1.shape == bk.shape):
        raise MetricError(
            f"arm and base must be over the same problems: {a1.shape}, {ak.shape}, {b1.shape}, {bk.shape}"
        )
    stack = np.concatenate([a1[None], ak[None], b1, bk])
    draws = [
        _points(stack, w) for w in bootstrap_weights(len(a1), stream(seed, "bootstrap", what), resamples)
    ]
    rows = np.concatenate(draws, axis=1).T
    here = _gap(stack.mean(1), len(b1))
    there = np.array([_gap(row, len(b1)) for row in rows])
    return CoverageGap(
        percentile(float(stack[0].mean()), rows[:, 0], level),
        percentile(float(stack[1].mean()), rows[:, 1], level),
        percentile(here[0], there[:, 0], level),
        percentile(here[1], there[:, 1], level),
        float(there[:, 2].mean()),
    )


def _points(stack_MP: FloatArray, weights_RP: Any) -> FloatArray:
    """Means of every row under each resample: (rows, resamples)."""
    out: FloatArray = stack_MP @ weights_RP.T.astype(np.float64) / stack_MP.shape[1]
    return out


def _gap(row: FloatArray, temperatures: int) -> tuple[float, float, float]:
    """(frontier there, gap, 1.0 if beyond) from [arm x, arm y, base x..., base y...]."""
    there, beyond = coverage_at(row[2 : 2 + temperatures], row[2 + temperatures :], float(row[0]))
    return there, float(row[1]) - there, float(beyond)
