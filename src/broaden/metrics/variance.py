"""One-point and two-point estimators, and the paired-subtraction diagnostic (Appendix E).

Numbering, second version of the paper: Eq. 42 is the one-point estimator over N directions, Eq. 43 the
multi-direction two-point estimator, Eq. 44-45 the symmetry argument by which both have the mean grad F_sigma;
the diagnostic follows (raw difference variances, kappa_base, kappa_pair). Not here: running evaluations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from broaden.errors import MetricError
from broaden.metrics._arrays import FloatArray, floats, same_shape
from broaden.metrics.intervals import LEVEL, RESAMPLES, Interval, bootstrap_weights, percentile
from broaden.records import Record
from broaden.seeds import stream

BREAK_EVEN = 2.0  # kappa_pair at which two-point equals one-point at matched evaluations
MIN_DIRECTIONS = 16


def one_point(values_N: Any, directions_ND: Any, sigma: float) -> FloatArray:
    """Eq. 42: g_1 = 1/(N sigma) sum_i F(theta + sigma eps_i) eps_i; N evaluations."""
    f, eps = floats(values_N, "values", 1), floats(directions_ND, "directions", 2)
    _check(len(f), len(eps), sigma)
    return f @ eps / (len(f) * sigma)


def two_point(plus_N: Any, minus_N: Any, directions_ND: Any, sigma: float) -> FloatArray:
    """Eq. 43: g_2 = 1/(2 N sigma) sum_i [F(theta + sigma eps_i) - F(theta - sigma eps_i)] eps_i; 2N evaluations.

    This is antithetic ES: the one-point estimator over the 2N directions (eps, -eps). N counts directions.
    """
    up, down = floats(plus_N, "plus", 1), floats(minus_N, "minus", 1)
    same_shape(up, down, "the two signs")
    eps = floats(directions_ND, "directions", 2)
    _check(len(up), len(eps), sigma)
    return (up - down) @ eps / (2 * len(up) * sigma)


@dataclass(frozen=True, slots=True)
class Subtraction(Record):
    """Variance ratios and correlations of X+, X0, X-."""

    kappa_base: float
    kappa_pair: float
    corr_base: float
    corr_pair: float

    @property
    def two_over_one(self) -> float:
        """Var(two-point)/Var(one-point) at matched evaluations."""
        return two_over_one(self.kappa_pair)


def two_over_one(kappa_pair: float) -> float:
    """Variance of the two-point over the one-point estimator at E evaluations: kappa_pair/2.

    One-point: Var(X+)/(E sigma^2) a coordinate. Two-point: E/2 directions, each with
    Var(X+ - X-)/(4 sigma^2): kappa_pair Var(X+)/(2 E sigma^2). So they tie at kappa_pair = 2, not at 1.
    (X+ with its total variance, over directions too.)
    """
    return kappa_pair / BREAK_EVEN


def subtraction(plus: Any, base: Any, minus: Any) -> Subtraction:
    """Pooled over all entries, as the published table does.

        kappa_base = Var(X+ - X0)/Var(X+),   kappa_pair = Var(X+ - X-)/Var(X+),   Corr(X+, X0), Corr(X+, X-)

    kappa_pair < 1 exactly where Cov(X+, X-) > Var(X-)/2.
    """
    p, b, m = (np.asarray(x, dtype=np.float64).ravel() for x in (plus, base, minus))
    return _from_moments(_moments(p[None], b[None], m[None]))


def stratified_subtraction(plus: Any, base: Any, minus: Any) -> Subtraction:
    """Within strata: arrays (strata..., repeats); variances over the last axis, averaged over strata.

    Separates the noise of an evaluation from differences between prompts and directions, which pooling mixes.
    """
    p, b, m = (np.asarray(x, dtype=np.float64) for x in (plus, base, minus))
    repeats = p.shape[-1]
    return _from_moments(_moments(p.reshape(-1, repeats), b.reshape(-1, repeats), m.reshape(-1, repeats)))


def subtraction_intervals(
    plus_DX: Any, base_DX: Any, minus_DX: Any, *, seed: int, resamples: int = RESAMPLES, level: float = LEVEL
) -> dict[str, Interval]:
    """Pooled figures with intervals from resampling whole directions.

    Args:
        plus_DX, base_DX, minus_DX: (directions, everything else flattened); at least 16 directions.
    """
    arrays = [np.asarray(x, dtype=np.float64) for x in (plus_DX, base_DX, minus_DX)]
    arrays = [a.reshape(len(a), -1) for a in arrays]
    directions = len(arrays[0])
    if directions < MIN_DIRECTIONS:
        raise MetricError(
            f"an interval needs at least {MIN_DIRECTIONS} directions, got {directions}",
            "evaluate more directions; the point value alone comes from `subtraction`",
        )
    value = subtraction(*arrays)
    blocks = bootstrap_weights(directions, stream(seed, "bootstrap", "directions"), resamples)
    weights = np.concatenate(list(blocks))
    draws = [subtraction(*(np.repeat(a, w, axis=0) for a in arrays)) for w in weights]
    names = ("kappa_base", "kappa_pair", "corr_base", "corr_pair")
    return {n: percentile(getattr(value, n), np.array([getattr(d, n) for d in draws]), level) for n in names}


def _moments(p_SR: FloatArray, b_SR: FloatArray, m_SR: FloatArray) -> FloatArray:
    """Mean over strata of the 3 x 3 covariance of (X+, X0, X-) over repeats (ddof 1)."""
    same_shape(p_SR, b_SR, "X+ and X0")
    same_shape(p_SR, m_SR, "X+ and X-")
    if p_SR.shape[1] < 2:
        raise MetricError("a variance needs at least two repeats")
    x_3SR = np.stack([p_SR, b_SR, m_SR])
    x_3SR = x_3SR - x_3SR.mean(2, keepdims=True)
    out: FloatArray = np.einsum("isr,jsr->ij", x_3SR, x_3SR) / (p_SR.shape[0] * (p_SR.shape[1] - 1))
    return out


def _from_moments(cov: FloatArray) -> Subtraction:
    if min(np.diag(cov)) <= 0.0:
        raise MetricError("an evaluation does not vary: variance ratios are not defined")

    def kappa(j: int) -> float:
        return float((cov[0, 0] + cov[j, j] - 2 * cov[0, j]) / cov[0, 0])

    def corr(j: int) -> float:
        return float(cov[0, j] / np.sqrt(cov[0, 0] * cov[j, j]))

    return Subtraction(kappa(1), kappa(2), corr(1), corr(2))


def _check(values: int, directions: int, sigma: float) -> None:
    if values != directions or sigma <= 0.0:
        raise MetricError(f"one value a direction and sigma > 0: got {values}, {directions}, sigma {sigma}")
