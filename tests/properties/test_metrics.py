"""Closed forms against enumeration of all subsets."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations, pairwise, permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broaden.metrics import Ratio, expected_maj_at_k, maj_at_k, paired_differences, pass_at_k, vote
from broaden.metrics.frontier import coverage_at, pareto_front
from broaden.metrics.intervals import bootstrap_weights, intervals, wilson
from broaden.metrics.majk import sampled_maj_at_k
from broaden.metrics.paired import mcnemar, sign_flip_test
from broaden.metrics.signal import signal

counts = st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n)))


@given(counts)
def test_pass_at_k_is_the_share_of_subsets_with_a_hit(ncm: tuple[int, int, int]) -> None:
    n, c, k = ncm
    subsets = list(combinations([True] * c + [False] * (n - c), k))
    exact = Fraction(sum(any(s) for s in subsets), len(subsets))
    assert pass_at_k(n, c, k) == pytest.approx(float(exact), abs=1e-14)


@given(st.lists(counts, min_size=1, max_size=6))
def test_pass_at_k_over_problems_with_differing_n(rows: list[tuple[int, int, int]]) -> None:
    k = min(r[2] for r in rows)
    got = pass_at_k([r[0] for r in rows], [r[1] for r in rows], k)
    assert got.tolist() == [pass_at_k(n, c, k) for n, c, _ in rows]


@given(st.integers(1, 100), st.data())
def test_pass_at_k_grows_with_k_and_c_and_stays_in_bounds(n: int, data: st.DataObject) -> None:
    c = data.draw(st.integers(0, n))
    values = np.array([pass_at_k(n, c, k) for k in range(1, n + 1)])
    assert ((values >= 0) & (values <= 1)).all()
    assert (np.diff(values) >= -1e-12).all()
    assert values[0] == c / n
    assert values[-1] == float(c > 0)
    k = data.draw(st.integers(1, n))
    assert pass_at_k(n, 1, k) == k / n


ballots = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c", "d", None]), st.sampled_from([0.0, 1.0])),
    min_size=1,
    max_size=6,
)


def plurality(picked: list[tuple[str | None, float]]) -> float:
    """A second implementation: count, then walk in order."""
    cast = [b for b in picked if b[0] is not None]
    if not cast:
        return 0.0
    most = max(sum(x[0] == b[0] for x in cast) for b in cast)
    return next(score for name, score in cast if sum(x[0] == name for x in cast) == most)


@given(ballots, st.data())
def test_maj_at_k_is_a_plurality_of_the_first_k(
    rows: list[tuple[str | None, float]], data: st.DataObject
) -> None:
    k = data.draw(st.integers(1, len(rows)))
    assert maj_at_k([r[0] for r in rows], [r[1] for r in rows], k) == plurality(rows[:k])


@given(ballots, st.data())
def test_expected_maj_is_the_mean_over_all_ordered_draws(
    rows: list[tuple[str | None, float]], data: st.DataObject
) -> None:
    k = data.draw(st.integers(1, len(rows)))
    every = [plurality(list(p)) for p in permutations(rows, k)]
    got = expected_maj_at_k([r[0] for r in rows], [r[1] for r in rows], k)
    assert got == pytest.approx(sum(every) / len(every), abs=1e-12)


def test_monte_carlo_agrees_with_the_exact_expectation() -> None:
    names = ["a"] * 5 + ["b"] * 4 + ["c"] * 4 + [None] * 3
    right = [1.0] * 5 + [0.0] * 11
    exact = expected_maj_at_k(names, right, 7)
    drawn = sampled_maj_at_k(names, right, 7, np.random.default_rng(0), draws=4000)
    assert abs(drawn - exact) < 4 * np.sqrt(exact * (1 - exact) / 4000)


@given(ballots)
def test_abstention_changes_no_winner(rows: list[tuple[str | None, float]]) -> None:
    cast = [r for r in rows if r[0] is not None]
    whole = vote([r[0] for r in rows], [r[1] for r in rows], len(rows))
    assert whole.abstained == len(rows) - len(cast)
    if cast:
        assert whole.winner == vote([r[0] for r in cast], [r[1] for r in cast], len(cast)).winner
    else:
        assert (whole.winner, whole.score) == (None, 0.0)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40), st.integers(0, 1000))
def test_intervals_contain_their_value(values: list[float], seed: int) -> None:
    got = intervals({"m": Ratio.mean(values, bounded=True)}, seed=seed, resamples=50)["m"]
    assert 0.0 <= got.low <= got.value <= got.high <= 1.0
    assert got.value == pytest.approx(np.mean(values))


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=2, max_size=30))
def test_paired_differences_are_antisymmetric(rows: list[tuple[float, float]]) -> None:
    a, b = {"m": Ratio.mean([r[0] for r in rows])}, {"m": Ratio.mean([r[1] for r in rows])}
    there = paired_differences(a, b, seed=1, resamples=100)["m"]
    back = paired_differences(b, a, seed=1, resamples=100)["m"]
    assert there.value == pytest.approx(-back.value, abs=1e-12)
    assert there.low == pytest.approx(-back.high, abs=1e-9)


@given(st.integers(1, 50), st.integers(1, 30))
def test_bootstrap_weights_are_resamples(problems: int, resamples: int) -> None:
    weights = np.concatenate(list(bootstrap_weights(problems, 3, resamples)))
    assert weights.shape == (resamples, problems)
    assert (weights.sum(1) == problems).all()


@given(st.integers(1, 60), st.data())
def test_wilson_solves_its_equation(n: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(0, n))
    got = wilson(k, n)
    for end in (got.low, got.high):
        if 0.0 < end < 1.0:
            z = (k / n - end) / np.sqrt(end * (1 - end) / n)
            assert abs(z) == pytest.approx(1.959964, abs=1e-5)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=12))
def test_pareto_front_by_definition(points: list[tuple[int, int]]) -> None:
    front = pareto_front([p[0] for p in points], [p[1] for p in points])
    for point, kept in zip(points, front, strict=True):
        dominated = any(q[0] >= point[0] and q[1] >= point[1] and q != point for q in points)
        assert kept == (not dominated)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=8))
def test_a_frontier_is_never_below_its_points_and_falls(points: list[tuple[int, int]]) -> None:
    x, y = [float(p[0]) for p in points], [float(p[1]) for p in points]
    for px, py in zip(x, y, strict=True):
        there, beyond = coverage_at(x, y, px)
        assert there >= py - 1e-12
        assert not beyond
    grid = [coverage_at(x, y, g)[0] for g in np.linspace(-1, 10, 40)]
    assert all(b <= a + 1e-12 for a, b in pairwise(grid))


@given(st.integers(0, 12), st.integers(0, 12))
def test_mcnemar_by_enumeration(up: int, down: int) -> None:
    n = up + down
    tail = [bin(flips).count("1") for flips in range(2**n)] if n <= 12 else None
    if tail is None:
        assert mcnemar(up, down) == mcnemar(down, up)
        return
    distance = abs(up - n / 2)
    assert mcnemar(up, down) == pytest.approx(sum(abs(t - n / 2) >= distance for t in tail) / 2**n)


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=8))
def test_sign_flip_by_enumeration(differences: list[int]) -> None:
    d = [x for x in differences if x]
    zero = [0.0] * len(differences)
    sums = [
        abs(sum(x if flips >> i & 1 else -x for i, x in enumerate(d))) >= abs(sum(d))
        for flips in range(2 ** len(d))
    ]
    assert sign_flip_test(zero, differences, seed=0) == pytest.approx(sum(sums) / len(sums))


@given(st.integers(2, 5), st.integers(1, 5), st.data())
def test_signal_equals_least_squares_with_missing_cells(
    members: int, prompts: int, data: st.DataObject
) -> None:
    cell = st.one_of(st.none(), st.integers(0, 3))
    table = [[data.draw(cell) for _ in range(prompts)] for _ in range(members)]
    got = signal(table)
    y = np.array(table, dtype=float)
    seen = ~np.isnan(y)
    rows, columns = np.nonzero(seen)
    if len(rows) == 0:
        assert got.df_member == 0
        return
    prompt = (columns[:, None] == np.arange(prompts)).astype(float)
    both = np.hstack([prompt, (rows[:, None] == np.arange(members)).astype(float)])

    def fit(design: np.ndarray) -> tuple[float, int]:
        solution, *_ = np.linalg.lstsq(design, y[seen], rcond=None)
        return float(np.sum((y[seen] - design @ solution) ** 2)), int(np.linalg.matrix_rank(design))

    (rss_prompt, rank_prompt), (rss_both, rank_both) = fit(prompt), fit(both)
    assert got.ss_member == pytest.approx(rss_prompt - rss_both, abs=1e-9)
    assert got.ss_residual == pytest.approx(rss_both, abs=1e-9)
    assert got.df_member == rank_both - rank_prompt
    assert got.df_residual == len(rows) - rank_both
