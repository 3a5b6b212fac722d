"""Eq. 6: (1 / (N sigma)) sum_i R_i eps_i estimates the gradient of F_sigma, on a function whose gradient is known."""

from __future__ import annotations

import numpy as np
import pytest

from broaden.es.estimator import coefficients
from broaden.perturb import NoiseSpec, normal

SIGMA, D = 0.1, 4
SLOPE = np.array([0.5, -1.0, 2.0, 0.0])
CURVE = np.array([1.0, 0.2, -0.5, 0.3])


def f(theta: np.ndarray) -> float:
    """Linear plus quadratic: the gradient of F_sigma at 0 is SLOPE, for every sigma."""
    return float(SLOPE @ theta + 0.5 * CURVE @ theta**2)


def eps(member: int) -> np.ndarray:
    return normal(NoiseSpec(11, 0, SIGMA, ("w",)).key(member, "w"), 0, D).astype(np.float64)


TOLERANCE = 0.09  # four standard errors of the one-point estimate


@pytest.mark.parametrize(("estimator", "members"), [("one_point", 20_000), ("antithetic", 5_000)])
def test_the_estimate_is_the_gradient(estimator: str, members: int) -> None:
    draws = np.stack([eps(i) for i in range(members)])
    signs = (1, -1) if estimator == "antithetic" else (1,)
    rewards: list[float | None] = [f(s * SIGMA * e) for e in draws for s in signs]
    c = np.array(coefficients(rewards, "none", estimator))
    gradient = c @ draws / (members * SIGMA)
    assert gradient == pytest.approx(SLOPE, abs=TOLERANCE)
    assert not np.allclose(-gradient, SLOPE, atol=TOLERANCE)
