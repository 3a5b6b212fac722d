"""Rewards to coefficients: literal values, ties, and the gate that leaves equal rewards alone."""

from __future__ import annotations

import numpy as np
import pytest

from broaden.es.shaping import centered_ranks, shape, zscore


def test_zscore_uses_the_population_standard_deviation() -> None:
    # mean 0.125, population std sqrt(7)/8 = 0.33072; the sample std would give 2.4749 and -0.3536
    z = zscore(np.array([1.0] + [0.0] * 7))
    assert z == pytest.approx([2.6457512] + [-0.3779645] * 7, abs=1e-6)


@pytest.mark.parametrize("value", [0.0, 0.1, 0.3, 1.0, 1 / 3])
@pytest.mark.parametrize("how", ["zscore", "centered_ranks", "none"])
def test_equal_rewards_give_exact_zeros(value: float, how: str) -> None:
    assert shape([value] * 7, how) == [0.0] * 7  # type: ignore[arg-type]


def test_ties_share_the_mean_of_their_ranks() -> None:
    # ranks 1, (2+3)/2, (2+3)/2, 4 -> (r - 1) / 3 - 1/2
    assert centered_ranks(np.array([0.1, 0.5, 0.5, 0.9])) == pytest.approx([-0.5, 0.0, 0.0, 0.5])
    assert centered_ranks(np.array([3.0, 1.0, 1.0])) == pytest.approx([0.5, -0.25, -0.25])


def test_none_keeps_the_rewards() -> None:
    assert shape([0.1, 0.4], "none") == [0.1, 0.4]


def test_an_unscorable_member_is_left_out_of_mean_and_spread() -> None:
    with_gap = shape([1.0, None, 0.0, 0.5], "zscore")
    without = shape([1.0, 0.0, 0.5], "zscore")
    assert with_gap == [without[0], 0.0, without[1], without[2]]
    assert shape([None, None], "zscore") == [0.0, 0.0]
