from __future__ import annotations

import numpy as np
import pytest

from broaden.errors import MetricError
from broaden.metrics import maj_at_k, pass_at_k, pass_profile, vote
from broaden.metrics.majk import expected_maj_at_k, mixed_classes
from broaden.metrics.rates import distinct_fraction, distinct_rate, is_degenerate


def test_literal_values() -> None:
    assert pass_at_k(32, 1, 16) == 0.5
    assert pass_at_k(32, 1, 32) == 1.0
    assert pass_at_k(32, 31, 2) == 1.0
    assert pass_at_k(32, 16, 2) == pytest.approx(1 - 120 / 496, abs=1e-15)
    assert isinstance(pass_at_k(4, 2, 1), float)


def test_large_counts_stay_accurate() -> None:
    assert pass_at_k(10**6, 1, 1) == 1e-6
    assert pass_at_k(10**6, 2, 1000) == pytest.approx(1 - (999000 / 10**6) * (998999 / 999999), rel=1e-10)
    assert pass_at_k(100_000, 50_000, 2000) == pytest.approx(1.0)


def test_arrays_and_profiles() -> None:
    np.testing.assert_allclose(pass_at_k([4, 8, 32], [2, 0, 1], 4), [1.0, 0.0, 0.125])
    np.testing.assert_allclose(
        pass_profile([4, 8], [2, 1], [1, 2, 4]), [[0.5, 0.125], [5 / 6, 0.25], [1.0, 0.5]]
    )


@pytest.mark.parametrize(
    ("n", "c", "k", "message"),
    [
        (2, 0, 5, "needs at least 5 scored samples"),
        ([8, 2, 1], [0, 0, 0], 2, r"1 of 3 have fewer \(problem 2 has 1\)"),
        (4, 5, 1, "c=5, n=4"),
        (4, -1, 1, "c=-1"),
        (4, 1, 0, "at least 1"),
        (4, 1, True, "at least 1"),
        (4.5, 1, 1, "must be integers"),
    ],
)
def test_what_is_refused(n: object, c: object, k: int, message: str) -> None:
    with pytest.raises(MetricError, match=message):
        pass_at_k(n, c, k)


def test_first_seen_breaks_ties_and_only_the_first_k_vote() -> None:
    assert maj_at_k(["3", "4"], [0, 1], 2) == 0.0
    assert maj_at_k(["4", "3"], [1, 0], 2) == 1.0
    assert maj_at_k(["7"] * 3 + ["9"] * 5, [1] * 3 + [0] * 5, 3) == 1.0
    got = vote(["3", None, "4", "4", "3"], [0, 0, 1, 1, 0], 5)
    assert (got.winner, got.tied, got.votes, got.abstained, got.mixed) == ("3", True, 2, 1, False)


def test_mixed_classes_are_flagged_and_scored_by_their_first_response() -> None:
    assert mixed_classes(["7", "7", "8"], [0, 1, 1]) == ["7"]
    got = vote(["7", "7", "8"], [0, 1, 1], 3)
    assert got.mixed
    assert got.score == 0.0
    assert expected_maj_at_k(["7", "7"], [0, 1], 2) == 0.5


def test_unscored_responses_abstain() -> None:
    assert vote(["7", "7", "8"], [None, None, 1], 3).winner == "8"


def test_maj_refuses_k_above_m() -> None:
    for function in (maj_at_k, expected_maj_at_k):
        with pytest.raises(MetricError, match="needs 3 retained samples, there are 2"):
            function(["a", "b"], [1, 0], 3)
        with pytest.raises(MetricError, match="2 ballots and 1 verdicts"):
            function(["a", "b"], [1], 1)
    assert maj_at_k([None, None], [0, 0], 2) == 0.0


def test_expected_maj_on_many_samples_is_fast_and_exact_at_the_ends() -> None:
    names = [str(i % 9) for i in range(200)]
    right = [float(n == "3") for n in names]
    assert expected_maj_at_k(names, right, 1) == pytest.approx(np.mean(right))
    assert 0.0 < expected_maj_at_k(names, right, 100) < 1.0


def test_distinct() -> None:
    assert distinct_fraction([[1, 2]] * 32) == 1 / 32
    assert distinct_rate([[1, 2]] * 32) == 0.0
    assert distinct_rate([[1], [2], [3]]) == 1.0
    assert is_degenerate([1] * 10, 32, 1.0, None)
    assert is_degenerate([1] * 10, 32, 0.1, 5.0)
    assert not is_degenerate([1] * 9 + [2], 32, 1.0, None)
    assert not is_degenerate([1] * 10, 32, 0.1, None)
    assert not is_degenerate([1] * 10, 32, 0.0, 5.0)
    assert not is_degenerate([1] * 10, 1, 1.0, None)
    with pytest.raises(MetricError):
        distinct_fraction([])
