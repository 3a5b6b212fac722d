"""Comparing methods: training seeds x problems.

One checkpoint's interval over problems says nothing about the method that made it. With S >= 3 training
seeds evaluated on the same P problems, a two-way random-effects model separates seed from problem
variance. A bootstrap of three seeds covers far too little, so the interval is Student's t with
Satterthwaite degrees of freedom. Not here: intervals over problems (`intervals`).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from broaden.errors import MetricError
from broaden.metrics._arrays import FloatArray, floats
from broaden.metrics.intervals import LEVEL, Interval

MIN_SEEDS = 3


def seed_problem_interval(values: Any, level: float = LEVEL) -> Interval:
    """Grand mean of values (S seeds, P problems) with a seed x problem interval.

        y_sp = mu + a_s + b_p + e_sp,   Var(mean) = (MS_s + MS_p - MS_e)/(S P)
        df = (MS_s + MS_p - MS_e)^2 / (MS_s^2/(S-1) + MS_p^2/(P-1) + MS_e^2/((S-1)(P-1)))

    where the sum is not allowed under the largest of the three mean squares. `values` may be differences
    to a common base (es_sp - base_p): then the interval is of the paired gain.
    """
    y_SP = _seeds_by_problems(values, "values")
    ms_seed, ms_problem, ms_rest = _mean_squares(y_SP)
    s, p = y_SP.shape
    dfs = (s - 1, p - 1, (s - 1) * (p - 1))
    return _t_interval(float(y_SP.mean()), (ms_seed, ms_problem, -ms_rest), dfs, s * p, level)


def seed_problem_difference(base: Any, other: Any, level: float = LEVEL) -> Interval:
    """other - base for two methods with their own (independent) training seeds on the same problems.

        Var = Var_p(d_p)/P + sum over both arms of (MS_s - MS_e)/(S P)

    with d_p the difference of seed means on problem p: both seed variances, and the problem variance of the
    difference, each residual counted once.
    """
    a_SP, b_SP = _seeds_by_problems(base, "base"), _seeds_by_problems(other, "other")
    if a_SP.shape[1] != b_SP.shape[1]:
        raise MetricError(f"the methods were evaluated on {a_SP.shape[1]} and {b_SP.shape[1]} problems")
    p = a_SP.shape[1]
    d_P = b_SP.mean(0) - a_SP.mean(0)
    terms, dfs = [float(d_P.var(ddof=1))], [p - 1]
    for y_SP in (a_SP, b_SP):
        ms_seed, _, ms_rest = _mean_squares(y_SP)
        s = y_SP.shape[0]
        terms += [ms_seed / s, -ms_rest / s]
        dfs += [s - 1, (s - 1) * (p - 1)]
    return _t_interval(float(d_P.mean()), tuple(terms), tuple(dfs), p, level)


def t_quantile(probability: float, df: float) -> float:
    """Quantile of Student's t (df > 0) by bisection on its distribution function."""
    if not 0.0 < probability < 1.0 or df <= 0.0:
        raise MetricError(f"no t quantile for probability {probability}, df {df}")
    if probability < 0.5:
        return -t_quantile(1.0 - probability, df)
    low, high = 0.0, 1.0
    while _t_cdf(high, df) < probability:
        high *= 2.0
    for _ in range(200):
        mid = (low + high) / 2
        low, high = (mid, high) if _t_cdf(mid, df) < probability else (low, mid)
    return (low + high) / 2


def _t_cdf(t: float, df: float) -> float:
    """P(T <= t), t >= 0: 1 - I_x(df/2, 1/2)/2 with x = df/(df + t^2)."""
    return 1.0 - 0.5 * _beta_inc(df / 2, 0.5, df / (df + t * t))


def _beta_inc(a: float, b: float, x: float) -> float:
    """Regularised incomplete beta I_x(a, b) (continued fraction, modified Lentz)."""
    if x <= 0.0 or x >= 1.0:
        return 0.0 if x <= 0.0 else 1.0
    if x > (a + 1) / (a + b + 2):
        return 1.0 - _beta_inc(b, a, 1.0 - x)
    front = (
        math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
        / a
    )
    tiny = 1e-300
    c, d = 1.0, 1.0 / max(1.0 - (a + b) * x / (a + 1), tiny)
    out = d
    for m in range(1, 500):
        for numerator in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1.0 + numerator * d
            d = 1.0 / (d if abs(d) > tiny else tiny)
            c = 1.0 + numerator / c
            c = c if abs(c) > tiny else tiny
            out *= c * d
        if abs(c * d - 1.0) < 1e-15:
            break
    return front * out


def _mean_squares(y_SP: FloatArray) -> tuple[float, float, float]:
    """MS of seeds, problems and residual of a full two-way table."""
    s, p = y_SP.shape
    grand, seed_S, problem_P = y_SP.mean(), y_SP.mean(1), y_SP.mean(0)
    rest = y_SP - seed_S[:, None] - problem_P[None, :] + grand
    return (
        float(p * np.sum((seed_S - grand) ** 2) / (s - 1)),
        float(s * np.sum((problem_P - grand) ** 2) / (p - 1)),
        float(np.sum(rest**2) / ((s - 1) * (p - 1))),
    )


def _t_interval(
    value: float, terms: tuple[float, ...], dfs: tuple[int, ...], count: int, level: float
) -> Interval:
    """value +- t sqrt(sum(terms)/count), the sum floored at its largest positive term."""
    total = max(sum(terms), *terms)
    if total <= 0.0:
        return Interval.exact(value)
    df = total**2 / sum(m * m / d for m, d in zip(terms, dfs, strict=True))
    half = t_quantile((1 + level) / 2, df) * math.sqrt(total / count)
    return Interval(value, value - half, value + half)


def _seeds_by_problems(values: Any, name: str) -> FloatArray:
    y_SP = floats(values, name, 2)
    if y_SP.shape[0] < MIN_SEEDS or y_SP.shape[1] < 2:
        raise MetricError(
            f"{name}: a claim about a method needs at least {MIN_SEEDS} training seeds and 2 problems, "
            f"got {y_SP.shape[0]} seeds and {y_SP.shape[1]} problems",
            "train with more seeds, or compare checkpoints with intervals over problems",
        )
    return y_SP
