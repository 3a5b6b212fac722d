from __future__ import annotations

import numpy as np
import pytest

from broaden.errors import MetricError
from broaden.metrics import (
    Interval,
    Ratio,
    bootstrap_over_problems,
    changes,
    intervals,
    joint_bootstrap,
    mcnemar,
    paired_difference,
    paired_differences,
    seed_problem_difference,
    seed_problem_interval,
    sign_flip_test,
    wilson,
)
from broaden.metrics.seedwise import t_quantile


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_the_bootstrap_interval_is_two_standard_errors_wide() -> None:
    values = rng().normal(3.0, 2.0, size=400)
    got = bootstrap_over_problems(values, seed=1)
    half = 1.96 * values.std() / 20
    assert got.value == pytest.approx(values.mean())
    assert got.low == pytest.approx(got.value - half, abs=0.1 * half)
    assert got.high == pytest.approx(got.value + half, abs=0.1 * half)


def test_it_is_seeded_by_name() -> None:
    values = rng().random(50)
    assert bootstrap_over_problems(values, seed=1) == bootstrap_over_problems(values, seed=1)
    assert bootstrap_over_problems(values, seed=1) != bootstrap_over_problems(values, seed=2)
    assert bootstrap_over_problems(values, seed=1, what="a") != bootstrap_over_problems(
        values, seed=1, what="b"
    )


def test_pairing_removes_what_problems_share() -> None:
    hardness = rng().random(200)
    a, b = hardness, hardness + rng(1).normal(0.02, 0.01, 200)
    got = paired_difference(a, b, seed=0)
    assert 0.0 < got.low < 0.02 < got.high < 0.03
    assert got.high - got.low < 0.01
    single = bootstrap_over_problems(b, seed=0)
    assert single.high - single.low > 0.05
    assert got.excludes_zero()
    assert not Interval(0.1, -0.1, 0.2).excludes_zero()


def test_ratios_weigh_tokens_not_problems() -> None:
    entropy = Ratio(np.array([10.0, 1.0]), np.array([10.0, 100.0]))
    assert entropy.value == 0.1
    got = intervals({"h": entropy}, seed=0)["h"]
    assert (got.low, got.high) == (0.01, 1.0)


def test_excluded_problems_stay_out_of_both_arms() -> None:
    a = Ratio(np.array([1.0, 0.0, 0.0]), np.array([1.0, 1.0, 0.0]))
    b = Ratio(np.array([1.0, 0.0, 1.0]), np.array([1.0, 0.0, 1.0]))
    got = paired_differences({"m": a, "x": a}, {"m": b}, seed=0)
    assert set(got) == {"m"}
    assert got["m"] == Interval(0.0, 0.0, 0.0)  # only problem 0 is in both
    with pytest.raises(MetricError, match="no problem has a value"):
        _ = Ratio(np.zeros(2), np.zeros(2)).value


def test_tiny_and_degenerate_sets_get_wilson() -> None:
    few = bootstrap_like([1.0, 0.0, 1.0])
    assert few.low == pytest.approx(0.2077, abs=1e-4)
    assert few.high == pytest.approx(0.9385, abs=1e-4)
    never = bootstrap_like([0.0] * 100)
    assert (never.value, never.low) == (0.0, 0.0)
    assert never.high == pytest.approx(0.0370, abs=1e-4)
    assert bootstrap_like([1.0] * 30).low == pytest.approx(0.8865, abs=1e-4)


def bootstrap_like(values: list[float]) -> Interval:
    return intervals({"m": Ratio.mean(values, bounded=True)}, seed=0)["m"]


def test_aime_prints_its_fifteen_points() -> None:
    got = bootstrap_like([1.0] * 10 + [0.0] * 20)
    assert 0.13 < got.value - got.low < 0.19
    assert 0.13 < got.high - got.value < 0.19


def test_wilson_literals() -> None:
    got = wilson(8, 10)
    assert (got.value, round(got.low, 4), round(got.high, 4)) == (0.8, 0.4902, 0.9433)
    for bad in ((1, 0), (-1, 5), (6, 5)):
        with pytest.raises(MetricError):
            wilson(*bad)


def test_joint_bootstrap_keeps_the_axes_together() -> None:
    x = rng().random(300)
    got = joint_bootstrap(Ratio.mean(x), Ratio.mean(1 - x), seed=3)
    assert got.correlation == pytest.approx(-1.0)
    assert got.draws_R2.shape == (2000, 2)
    np.testing.assert_allclose(got.draws_R2.sum(1), 1.0)
    assert joint_bootstrap(Ratio.mean([1.0, 1.0]), Ratio.mean([0.0, 1.0]), seed=3).correlation == 0.0


def test_bad_values_are_refused() -> None:
    for values, message in (([], "empty"), ([np.nan], "NaN"), ([[1.0]], "1 axes")):
        with pytest.raises(MetricError, match=message):
            bootstrap_over_problems(values, seed=0)
    with pytest.raises(MetricError, match="same problems"):
        paired_difference([1.0, 2.0], [1.0], seed=0)


def test_coverage_of_the_problem_bootstrap() -> None:
    hits = 0
    for trial in range(200):
        got = bootstrap_over_problems(rng(trial).beta(0.5, 1.0, 60), seed=trial, resamples=400)
        hits += got.low <= 1 / 3 <= got.high
    assert 0.89 <= hits / 200 <= 0.99


def two_level(trial: int, seeds: int, mean: float = 0.0, hard: np.ndarray | None = None) -> np.ndarray:
    r = rng(trial)
    problem = r.normal(0, 0.3, 50) if hard is None else hard
    return mean + r.normal(0, 0.05, (seeds, 1)) + problem + r.normal(0, 0.2, (seeds, 50))


def test_three_seeds_cover_where_problem_intervals_do_not() -> None:
    covered = narrow = 0
    for trial in range(300):
        y = two_level(trial, 3, hard=rng(10_000 + trial).normal(0, 0.02, 50))
        got = seed_problem_interval(y)
        covered += got.low <= 0.0 <= got.high
        naive = y.mean(0)
        half = 1.96 * naive.std(ddof=1) / np.sqrt(50)
        narrow += abs(naive.mean()) <= half
    assert covered / 300 >= 0.93
    assert narrow / 300 <= 0.85


def test_difference_of_methods_with_their_own_seeds() -> None:
    covered = 0
    for trial in range(300):
        hard = rng(20_000 + trial).normal(0, 0.3, 50)
        a, b = two_level(trial, 3, hard=hard), two_level(trial + 5_000, 4, mean=0.1, hard=hard)
        got = seed_problem_difference(a, b)
        covered += got.low <= 0.1 <= got.high
        assert got.high - got.low < 0.8  # the problems' spread of 0.3 is paired away
    assert covered / 300 >= 0.93


def test_the_width_is_that_of_seed_means_plus_problem_means_less_the_residual() -> None:
    y = two_level(1, 4)
    rest = y - y.mean(1, keepdims=True) - y.mean(0) + y.mean()
    residual = np.sum(rest**2) / (3 * 49)
    parts = np.array([y.mean(1).var(ddof=1) / 4, y.mean(0).var(ddof=1) / 50, -residual / 200])
    df = parts.sum() ** 2 / np.sum(parts**2 / np.array([3, 49, 147]))
    got = seed_problem_interval(y)
    assert got.high - got.value == pytest.approx(t_quantile(0.975, df) * np.sqrt(parts.sum()))
    assert got.value - got.low == pytest.approx(got.high - got.value)


def test_seeds_without_variance_and_too_few() -> None:
    assert seed_problem_interval(np.full((3, 4), 0.5)) == Interval(0.5, 0.5, 0.5)
    with pytest.raises(MetricError, match="at least 3 training seeds"):
        seed_problem_interval(np.zeros((2, 10)))
    with pytest.raises(MetricError, match="10 and 9 problems"):
        seed_problem_difference(np.zeros((3, 10)), np.zeros((3, 9)))


@pytest.mark.parametrize(
    ("probability", "df", "expected"),
    [
        (0.975, 2, 4.30265), (0.975, 1, 12.7062), (0.975, 30, 2.04227),
        (0.9, 2.5, 1.73025), (0.025, 10, -2.22814), (0.975, 1e6, 1.95997),
    ],
)  # fmt: skip
def test_t_quantiles(probability: float, df: float, expected: float) -> None:
    assert t_quantile(probability, df) == pytest.approx(expected, rel=1e-5)


def test_progressions_and_regressions() -> None:
    got = changes([True, False, False, True], [True, True, True, False])
    assert got.progressions == (1, 2)
    assert got.regressions == (3,)
    assert got.p_value == 1.0
    assert mcnemar(10, 0) == 2 / 1024
    assert mcnemar(0, 0) == 1.0
    with pytest.raises(MetricError):
        changes([True], [True, False])
    with pytest.raises(MetricError):
        mcnemar(-1, 2)


def test_sign_flips_exact_and_sampled_agree() -> None:
    d = rng().normal(0.3, 1.0, 16)
    exact = sign_flip_test(np.zeros(16), d, seed=0)
    longer = np.concatenate([d, [1e-9]])
    assert sign_flip_test(np.zeros(17), longer, seed=0) == pytest.approx(exact, abs=0.02)
    assert sign_flip_test([1.0], [1.0], seed=0) == 1.0
