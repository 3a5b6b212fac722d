"""Eq. 42-45 (second version): one-point and two-point estimators; then the paired-subtraction diagnostic.

42: one-point over N directions. 43: multi-direction two-point. 44: eps and -eps have one distribution.
45: hence both have the mean grad F_sigma. Appendix E: kappa_base, kappa_pair and correlations follow.
"""

from __future__ import annotations

import numpy as np
import pytest

from broaden.errors import MetricError
from broaden.metrics.variance import (
    one_point,
    stratified_subtraction,
    subtraction,
    subtraction_intervals,
    two_over_one,
    two_point,
)

D, SIGMA = 3, 0.3
B = np.array([0.5, -1.0, 2.0])
A = np.array([[1.0, 0.2, 0.0], [0.2, -0.5, 0.3], [0.0, 0.3, 0.8]])
THETA = np.array([0.3, -0.2, 0.1])


def objective(theta: np.ndarray) -> np.ndarray:
    """1 + b theta + theta A theta / 2; its smoothing has the gradient b + A theta."""
    return 1.0 + theta @ B + 0.5 * np.einsum("...i,ij,...j->...", theta, A, theta)


def gauss_hermite() -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights of E over N(0, I_3): exact for polynomials up to degree 11."""
    x, w = np.polynomial.hermite_e.hermegauss(6)
    nodes = np.stack(np.meshgrid(x, x, x, indexing="ij"), -1).reshape(-1, D)
    weights = np.einsum("i,j,k->ijk", w, w, w).ravel()
    return nodes, weights / weights.sum()


def test_42_one_point_has_the_mean_of_the_smoothed_gradient() -> None:
    nodes, weights = gauss_hermite()
    each = np.stack([one_point([objective(THETA + SIGMA * e)], [e], SIGMA) for e in nodes])
    np.testing.assert_allclose(weights @ each, B + A @ THETA, atol=1e-12)


def test_45_two_point_has_the_same_mean() -> None:
    nodes, weights = gauss_hermite()
    each = np.stack(
        [two_point([objective(THETA + SIGMA * e)], [objective(THETA - SIGMA * e)], [e], SIGMA) for e in nodes]
    )
    np.testing.assert_allclose(weights @ each, B + A @ THETA, atol=1e-12)


def test_43_two_point_is_one_point_over_the_mirrored_directions() -> None:
    eps = np.random.default_rng(0).normal(size=(16, D))
    plus, minus = objective(THETA + SIGMA * eps), objective(THETA - SIGMA * eps)
    both = one_point(np.concatenate([plus, minus]), np.concatenate([eps, -eps]), SIGMA)
    np.testing.assert_allclose(two_point(plus, minus, eps, SIGMA), both, rtol=1e-13)
    by_hand = sum((p - m) * e for p, m, e in zip(plus, minus, eps, strict=True)) / (2 * 16 * SIGMA)
    np.testing.assert_allclose(two_point(plus, minus, eps, SIGMA), by_hand, rtol=1e-13)


def test_44_flipping_every_direction_flips_the_two_point_terms_into_themselves() -> None:
    eps = np.random.default_rng(1).normal(size=(8, D))
    plus, minus = objective(THETA + SIGMA * eps), objective(THETA - SIGMA * eps)
    np.testing.assert_array_equal(two_point(plus, minus, eps, SIGMA), two_point(minus, plus, -eps, SIGMA))


def correlated(corr: float, n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    r = np.random.default_rng(seed)
    common, own = r.normal(size=n), r.normal(size=(3, n))
    plus, base, minus = np.sqrt(corr) * common + np.sqrt(1 - corr) * own
    return plus, base, minus


@pytest.mark.parametrize("corr", [0.0, 0.13, 0.5, 0.92])
def test_kappas_of_equal_variances(corr: float) -> None:
    got = subtraction(*correlated(corr, 200_000))
    assert got.kappa_pair == pytest.approx(2 * (1 - corr), abs=0.02)
    assert got.kappa_base == pytest.approx(2 * (1 - corr), abs=0.02)
    assert got.corr_pair == pytest.approx(corr, abs=0.01)


def test_kappa_below_one_iff_the_covariance_exceeds_half_the_variance() -> None:
    for seed in range(50):
        r = np.random.default_rng(seed)
        plus = r.normal(size=30)
        minus = r.normal(size=30) * r.uniform(0.3, 2) + plus * r.uniform(0, 1.5)
        got = subtraction(plus, r.normal(size=30), minus)
        cov = np.cov(plus, minus)
        assert (got.kappa_pair < 1) == (cov[0, 1] > 0.5 * cov[1, 1])
        assert got.kappa_pair == pytest.approx(np.var(plus - minus, ddof=1) / np.var(plus, ddof=1))


@pytest.mark.parametrize("kappa", [0.5, 1.2, 2.0, 2.8])
def test_break_even_is_at_two(kappa: float) -> None:
    """Simulated: E evaluations as E one-point directions or E/2 pairs; variances compared."""
    r = np.random.default_rng(5)
    trials, evaluations = 40_000, 8
    rho = 1 - kappa / 2
    shape = (trials, evaluations)
    one = np.mean(r.normal(size=shape) * r.normal(size=shape), axis=1)
    plus, other = r.normal(size=(2, trials, evaluations // 2))
    minus = rho * plus + np.sqrt(1 - rho**2) * other
    two = np.mean((plus - minus) / 2 * r.normal(size=plus.shape), axis=1)
    assert two.var() / one.var() == pytest.approx(two_over_one(kappa), rel=0.05)
    assert two_over_one(2.0) == 1.0


def test_the_published_near_tie() -> None:
    assert two_over_one(1.987) == pytest.approx(0.9935)


def test_pooling_mixes_prompts_in_and_stratifying_takes_them_out() -> None:
    r = np.random.default_rng(2)
    prompt = r.normal(0, 3.0, size=(16, 4, 1))
    plus, base, minus = prompt + r.normal(size=(3, 16, 4, 64))
    assert subtraction(plus, base, minus).kappa_pair == pytest.approx(2 / 10, abs=0.05)
    inside = stratified_subtraction(plus, base, minus)
    assert inside.kappa_pair == pytest.approx(2.0, abs=0.1)
    assert inside.corr_pair == pytest.approx(0.0, abs=0.05)
    assert inside.two_over_one == inside.kappa_pair / 2


def test_intervals_want_sixteen_directions() -> None:
    plus, base, minus = (x.reshape(20, 30) for x in correlated(0.4, 600))
    got = subtraction_intervals(plus, base, minus, seed=0, resamples=200)
    assert got["kappa_pair"].low < 1.2 < got["kappa_pair"].high
    assert got["kappa_pair"].value == subtraction(plus, base, minus).kappa_pair
    with pytest.raises(MetricError, match="at least 16 directions, got 4"):
        subtraction_intervals(plus[:4], base[:4], minus[:4], seed=0)


def test_what_is_refused() -> None:
    with pytest.raises(MetricError, match="does not vary"):
        subtraction([1.0, 1.0], [0.0, 1.0], [0.0, 1.0])
    with pytest.raises(MetricError, match="two repeats"):
        subtraction([1.0], [1.0], [1.0])
    with pytest.raises(MetricError, match="one value a direction"):
        one_point([1.0, 2.0], [[1.0]], 0.1)
