"""One-point and antithetic coefficients, and the two null controls."""

from __future__ import annotations

import pytest

from broaden.es.estimator import coefficients, evaluations, mean_reward, random_coefficients, shuffled
from broaden.records import MemberResult


def result(*rewards: float | None) -> MemberResult:
    return MemberResult(0, rewards, rewards, 1, 1, 0)


def test_antithetic_pairs_are_plus_then_minus() -> None:
    assert [tuple(m) for m in evaluations(2, "antithetic")] == [(0, 1), (0, -1), (1, 1), (1, -1)]
    assert [tuple(m) for m in evaluations(2, "one_point")] == [(0, 1), (1, 1)]


def test_antithetic_coefficient_is_half_the_difference() -> None:
    # raw rewards: (0.9 - 0.1) / 2 and (0.2 - 0.6) / 2
    assert coefficients([0.9, 0.1, 0.2, 0.6], "none", "antithetic") == pytest.approx([0.4, -0.2])


def test_a_pair_with_an_unscorable_half_counts_nothing() -> None:
    assert coefficients([0.9, None, 0.2, 0.6], "none", "antithetic") == pytest.approx([0.0, -0.2])


def test_mean_reward_leaves_unscorable_samples_out() -> None:
    assert mean_reward(result(1.0, None, 0.1)) == pytest.approx(0.55)
    assert mean_reward(result(None, None)) is None


def test_random_coefficients_have_the_spread_of_z_scores_and_are_keyed() -> None:
    z = random_coefficients(32, "zscore", 5, 3)
    assert sum(x * x for x in z) == pytest.approx(32, rel=1e-6)
    assert sum(z) == pytest.approx(0, abs=1e-9)
    assert z == random_coefficients(32, "zscore", 5, 3)
    assert z != random_coefficients(32, "zscore", 5, 4)
    assert z != random_coefficients(32, "zscore", 6, 3)


def test_shuffled_rewards_are_the_same_rewards_in_another_order() -> None:
    rewards: list[float | None] = [float(i) for i in range(20)]
    dealt = shuffled(rewards, 0, 1)
    assert sorted(x for x in dealt if x is not None) == rewards
    assert dealt != rewards
