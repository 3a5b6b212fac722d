from __future__ import annotations

import numpy as np
import pytest

from broaden.errors import MetricError
from broaden.metrics.frontier import coverage_at, coverage_gap, pareto_front


def test_pareto_front() -> None:
    assert pareto_front([1, 2, 3, 2], [3, 2, 1, 1]).tolist() == [True, True, True, False]
    assert pareto_front([1, 1], [1, 1]).tolist() == [True, True]


def test_interpolation_on_the_front() -> None:
    x, y = [0.3, 0.5, 0.4, 0.2], [0.9, 0.7, 0.6, 0.8]  # (0.4, 0.6) and (0.2, 0.8) are dominated
    assert coverage_at(x, y, 0.4) == (pytest.approx(0.8), False)
    assert coverage_at(x, y, 0.1) == (0.9, False)
    assert coverage_at(x, y, 0.5) == (pytest.approx(0.7), False)
    assert coverage_at(x, y, 0.6) == (pytest.approx(0.7), True)


def sampled(p: np.ndarray, k: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    c = np.random.default_rng(seed).binomial(32, p)
    return c / 32, 1 - (1 - c / 32) ** k


def kinds(problems: int, easy: float, hard: float) -> np.ndarray:
    return np.where(np.arange(problems) % 2 == 0, easy, hard)


def base(problems: int) -> tuple[np.ndarray, np.ndarray]:
    """Three temperatures: as it falls, easy problems get easier and hard ones are lost."""
    rates = [(0.60, 0.15), (0.75, 0.08), (0.92, 0.02)]
    arms = [sampled(kinds(problems, *r), 8, i) for i, r in enumerate(rates)]
    return np.stack([a[0] for a in arms]), np.stack([a[1] for a in arms])


def test_a_sharpened_base_has_no_gap_and_a_broader_one_has() -> None:
    b1, bk = base(400)
    none = coverage_gap(*sampled(kinds(400, 0.84, 0.045), 8, 77), b1, bk, seed=0)
    assert none.gap.low < 0.0 < none.gap.high
    assert none.beyond == 0.0
    some = coverage_gap(*sampled(kinds(400, 0.70, 0.15), 8, 78), b1, bk, seed=0)
    assert some.gap.low > 0.05
    assert some.pass_1.low < some.pass_1.value < some.pass_1.high


def test_the_base_itself_lies_on_its_frontier() -> None:
    b1, bk = base(200)
    got = coverage_gap(b1[1], bk[1], b1, bk, seed=0)
    assert got.gap.value == pytest.approx(0.0, abs=1e-12)
    assert got.beyond == 0.0
    assert got.gap.low <= 0.0 <= got.gap.high


def test_beyond_the_end_is_said() -> None:
    b1, bk = base(200)
    got = coverage_gap(np.ones(200), np.ones(200), b1, bk, seed=0)
    assert got.beyond == 1.0
    assert got.frontier.value == pytest.approx(bk.mean(1)[np.argmax(b1.mean(1))])


def test_problems_are_resampled_jointly() -> None:
    b1, bk = base(300)
    joint = coverage_gap(b1[1], bk[1], b1[[0, 2]], bk[[0, 2]], seed=0).gap
    mixed = np.random.default_rng(1).permutation(300)
    apart = coverage_gap(b1[1][mixed], bk[1][mixed], b1[[0, 2]], bk[[0, 2]], seed=0).gap
    assert apart.value == pytest.approx(joint.value)
    assert joint.high - joint.low < 0.9 * (apart.high - apart.low)


def test_other_problems_are_refused() -> None:
    with pytest.raises(MetricError, match="same problems"):
        coverage_gap([0.1, 0.2], [0.1, 0.2], [[0.1]], [[0.1]], seed=0)
