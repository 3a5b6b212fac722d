"""The paper's theory of population diversity and coverage as pure functions (its Section 3.1, Appendix A).

N member policies over a finite response set, as rows of probabilities, or their success probabilities p_i.
Logarithms are natural. Not here: estimating p_i from samples.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from broaden.errors import MetricError
from broaden.metrics._arrays import FloatArray, floats


def entropy(policies: Any) -> FloatArray:
    """H(pi) = -sum_y pi(y) log pi(y) along the last axis, 0 log 0 = 0."""
    p = np.asarray(policies, dtype=np.float64)
    return np.asarray(-np.sum(np.where(p > 0, p * np.log(np.where(p > 0, p, 1.0)), 0.0), axis=-1))


def kl(p: Any, q: Any) -> float:
    """KL(p || q) = sum_y p log(p/q); infinite support mismatch raises MetricError."""
    a, b = floats(p, "p", 1), floats(q, "q", 1)
    if np.any((a > 0) & (b <= 0)):
        raise MetricError("KL is infinite: q is zero where p is not")
    on = a > 0
    return float(np.sum(a[on] * (np.log(a[on]) - np.log(b[on]))))


def binary_entropy(p: Any) -> FloatArray:
    """h(p) = -p log p - (1 - p) log(1 - p), elementwise."""
    p = np.asarray(p, dtype=np.float64)
    return entropy(np.stack([p, 1.0 - p], axis=-1))


def js_policy(policies_NY: Any) -> float:
    """JS_pol = (1/N) sum_i KL(pi_i || pibar) = H(pibar) - mean_i H(pi_i), in [0, log N]."""
    p_NY = _distributions(policies_NY)
    return max(float(entropy(p_NY.mean(0)) - entropy(p_NY).mean()), 0.0)


def js_success(p_N: Any) -> float:
    """JS_succ = h(pbar) - mean_i h(p_i): the diversity that the verifier can see; at most JS_pol."""
    p = _probabilities(p_N)
    return max(float(binary_entropy(p.mean()) - binary_entropy(p).mean()), 0.0)


def expected_js_policy(sigma: float, members: int, fisher_trace: float) -> float:
    """Lemma 1: E[JS_pol] = (sigma^2/2)(1 - 1/N) tr I_x(theta) + O(sigma^4)."""
    return sigma * sigma / 2.0 * (1.0 - 1.0 / members) * fisher_trace


def coverage_population(p_N: Any) -> float:
    """P_pop = 1 - prod_i (1 - p_i): one response of each of N members."""
    p = _probabilities(p_N)
    return 1.0 - float(np.prod(1.0 - p))


def coverage_same(p_N: Any) -> float:
    """P_same = 1 - (1 - pbar)^N: N responses of the average policy; at most P_pop."""
    p = _probabilities(p_N)
    return 1.0 - (1.0 - float(p.mean())) ** len(p)


def coverage_gain_local(p_N: Any) -> float:
    """P_pop - P_same to second order: N pbar (1 - pbar)^(N-1) JS_succ + O(|xi|^3)."""
    p = _probabilities(p_N)
    mean, n = float(p.mean()), len(p)
    return n * mean * (1.0 - mean) ** (n - 1) * js_success(p)


def js_success_local(p_N: Any) -> float:
    """JS_succ to second order: sum_i xi_i^2 / (2 N pbar (1 - pbar)), xi_i = p_i - pbar."""
    p = _probabilities(p_N)
    mean = float(p.mean())
    return float(np.sum((p - mean) ** 2)) / (2.0 * len(p) * mean * (1.0 - mean))


def weighted_gain(weights_N: Any, p_N: Any) -> float:
    """Lemma 3: p_w - pbar = N Cov_i(w_i, p_i) for weights w_i >= 0 with sum 1 (population covariance)."""
    w, p = floats(weights_N, "weights", 1), _probabilities(p_N)
    if w.shape != p.shape or np.any(w < 0) or abs(float(w.sum()) - 1.0) > 1e-9:
        raise MetricError("weights must be non-negative, sum to 1 and be as many as the members")
    return len(p) * float(np.mean((w - w.mean()) * (p - p.mean())))


def oracle_gate(p_N: Any, strength: float) -> FloatArray:
    """w_i proportional to exp(lambda p_i); then p_w - pbar = 2 lambda pbar (1 - pbar) JS_succ + O(|xi|^3)."""
    p = _probabilities(p_N)
    raw = np.exp(strength * (p - p.max()))
    out: FloatArray = raw / raw.sum()
    return out


def coverage(p_X: Any, k: int) -> float:
    """J_K = E_x[1 - (1 - p(x))^K] for prompt-wise success probabilities."""
    return float(np.mean(1.0 - (1.0 - _probabilities(p_X)) ** k))


def bernoulli_kl(p: Any, q: Any) -> FloatArray:
    """KL(Bernoulli(p) || Bernoulli(q)) elementwise; MetricError where infinite."""
    a, b = np.atleast_1d(_probabilities(p)), np.atleast_1d(_probabilities(q))
    return np.array([kl([x, 1 - x], [y, 1 - y]) for x, y in zip(a, b, strict=True)])


def transfer_bound(weighted_X: Any, center_X: Any, updated_X: Any, k: int) -> tuple[float, bool]:
    """Proposition 1: a lower bound on the updated center's J_K, and whether it guarantees a gain.

    epsilon = E_x KL(B_w || B_updated),  J_K(updated) >= J_K(w) - K sqrt(epsilon/2),
    a gain over the old center where m_K = J_K(w) - J_K(center) > K sqrt(epsilon/2).
    """
    epsilon = float(bernoulli_kl(weighted_X, updated_X).mean())
    slack = k * math.sqrt(epsilon / 2.0)
    reached = coverage(weighted_X, k)
    return reached - slack, reached - coverage(center_X, k) > slack


def _probabilities(p: Any) -> FloatArray:
    out = floats(np.atleast_1d(np.asarray(p, dtype=np.float64)), "p", 1)
    if np.any((out < 0) | (out > 1)):
        raise MetricError("success probabilities must lie in [0, 1]")
    return out


def _distributions(policies_NY: Any) -> FloatArray:
    p = floats(policies_NY, "policies", 2)
    if np.any(p < 0) or np.any(np.abs(p.sum(1) - 1.0) > 1e-9):
        raise MetricError("each policy must be non-negative and sum to 1")
    return p
