"""Section 3.1 and Appendix A: Lemmas 1-3, coverage, Proposition 1, on random policies."""

from __future__ import annotations

import math

import numpy as np
import pytest

from broaden.errors import MetricError
from broaden.metrics import diversity as d


def policies(members: int = 5, responses: int = 7, seed: int = 0, spread: float = 1.0) -> np.ndarray:
    r = np.random.default_rng(seed)
    logits = r.normal(size=responses) + spread * r.normal(size=(members, responses))
    p = np.exp(logits)
    return p / p.sum(1, keepdims=True)


def successes(spread: float, members: int = 6, seed: int = 0) -> np.ndarray:
    xi = np.random.default_rng(seed).normal(size=members)
    return 0.3 + spread * (xi - xi.mean())


def test_js_is_the_mean_kl_to_the_mixture_and_the_entropy_identity() -> None:
    p = policies()
    mixture = p.mean(0)
    assert d.js_policy(p) == pytest.approx(np.mean([d.kl(row, mixture) for row in p]), abs=1e-14)
    assert d.entropy(mixture) == pytest.approx(d.entropy(p).mean() + d.js_policy(p), abs=1e-14)


def test_one_policy_has_no_diversity_and_disjoint_ones_have_log_n() -> None:
    assert d.js_policy(np.tile(policies()[:1], (4, 1))) == pytest.approx(0.0, abs=1e-15)
    assert d.js_policy(np.eye(4)) == pytest.approx(math.log(4))
    assert d.js_success([1.0, 0.0]) == pytest.approx(math.log(2))


@pytest.mark.parametrize("seed", range(20))
def test_lemma_2_the_verifier_sees_no_more_than_there_is(seed: int) -> None:
    p = policies(seed=seed, spread=2.0)
    right = np.random.default_rng(seed).random(p.shape[1]) < 0.4
    assert -1e-15 <= d.js_success(p[:, right].sum(1)) <= d.js_policy(p) + 1e-15
    assert d.js_policy(p) <= math.log(len(p))


def test_lemma_1_against_a_softmax_population() -> None:
    """tr I = sum of p(1 - p) for a softmax in its logits; E over 400 populations."""
    logits = np.array([0.4, -0.2, 0.1, -1.0])
    base = np.exp(logits) / np.exp(logits).sum()
    fisher_trace = float(np.sum(base * (1 - base)))
    r = np.random.default_rng(0)
    members, sigma = 8, 0.1
    draws = []
    for _ in range(2000):
        shifted = np.exp(logits + sigma * r.normal(size=(members, 4)))
        draws.append(d.js_policy(shifted / shifted.sum(1, keepdims=True)))
    expected = d.expected_js_policy(sigma, members, fisher_trace)
    assert np.mean(draws) == pytest.approx(expected, rel=0.03)
    assert expected == pytest.approx(0.5 * sigma**2 * (7 / 8) * fisher_trace)


def test_kl_is_the_fisher_quadratic_form_locally() -> None:
    logits = np.array([0.4, -0.2, 0.1, -1.0])
    base = np.exp(logits) / np.exp(logits).sum()
    fisher = np.diag(base) - np.outer(base, base)
    for size, tolerance in ((1e-1, 0.1), (1e-2, 0.01), (1e-3, 0.001)):
        delta = size * np.array([1.0, -2.0, 0.5, 1.5])
        moved = np.exp(logits + delta) / np.exp(logits + delta).sum()
        assert d.kl(moved, base) == pytest.approx(0.5 * delta @ fisher @ delta, rel=tolerance)


@pytest.mark.parametrize("seed", range(10))
def test_coverage_of_a_population_is_at_least_that_of_its_mean(seed: int) -> None:
    p = np.random.default_rng(seed).random(6)
    assert d.coverage_population(p) > d.coverage_same(p)
    assert d.coverage_population([0.3] * 6) == pytest.approx(d.coverage_same([0.3] * 6), abs=1e-15)
    assert d.coverage_population([0.5, 0.5]) == 0.75


def test_the_local_relations_hold_to_third_order() -> None:
    errors = []
    for spread in (0.04, 0.02, 0.01):
        p = successes(spread)
        gain = d.coverage_population(p) - d.coverage_same(p)
        errors.append(abs(gain - d.coverage_gain_local(p)))
        assert d.js_success(p) == pytest.approx(d.js_success_local(p), rel=4 * spread)
    assert errors[1] < errors[0] / 6
    assert errors[2] < errors[1] / 6
    assert errors[2] < 0.05 * (d.coverage_population(p) - d.coverage_same(p))


def test_lemma_3_reward_weighting_is_a_covariance() -> None:
    p = successes(0.1)
    w = np.random.default_rng(4).random(6)
    w /= w.sum()
    assert d.weighted_gain(w, p) == pytest.approx(float(w @ p - p.mean()), abs=1e-15)
    with pytest.raises(MetricError):
        d.weighted_gain([0.5, 0.6], [0.1, 0.2])


def test_the_oracle_gate_exploits_success_diversity() -> None:
    for spread in (0.02, 0.01):
        p = successes(spread)
        mean = float(p.mean())
        gain = d.weighted_gain(d.oracle_gate(p, 1.5), p)
        assert gain == pytest.approx(2 * 1.5 * mean * (1 - mean) * d.js_success(p), rel=6 * spread)


@pytest.mark.parametrize("seed", range(20))
def test_proposition_1_is_a_lower_bound(seed: int) -> None:
    r = np.random.default_rng(seed)
    center, k = 0.8 * r.random(50), 4
    weighted = np.clip(center + 0.15, 0, 1)
    updated = np.clip(weighted + r.normal(0, 0.02, 50), 1e-3, 1 - 1e-3)
    bound, guaranteed = d.transfer_bound(weighted, center, updated, k)
    assert d.coverage(updated, k) >= bound
    if guaranteed:
        assert d.coverage(updated, k) > d.coverage(center, k)
    assert d.transfer_bound(weighted, center, weighted, k) == (d.coverage(weighted, k), True)


def test_what_is_refused() -> None:
    with pytest.raises(MetricError, match="infinite"):
        d.kl([0.5, 0.5], [1.0, 0.0])
    with pytest.raises(MetricError, match=r"\[0, 1\]"):
        d.js_success([1.2])
    with pytest.raises(MetricError, match="sum to 1"):
        d.js_policy([[0.5, 0.4]])
