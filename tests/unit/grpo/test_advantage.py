"""Advantages: literal values, gates, keys."""

from __future__ import annotations

import inspect
import math

import numpy as np
import pytest

from broaden.errors import ConfigError, RewardError
from broaden.grpo.advantage import group_advantages, informative_share_by_chance, permuted

ONE_RIGHT = [1.0] + [0.0] * 7


def test_population_and_sample_deviation() -> None:
    population = group_advantages(ONE_RIGHT, [0] * 8).values_R
    sample = group_advantages(ONE_RIGHT, [0] * 8, scale="sample").values_R
    assert population[:2] == pytest.approx([2.6457513, -0.3779645], rel=1e-7)
    assert sample[:2] == pytest.approx([2.4748737, -0.3535534], rel=1e-7)
    trl = group_advantages(ONE_RIGHT, [0] * 8, scale="sample", eps=1e-4).values_R
    assert trl[0] == pytest.approx(0.875 / (math.sqrt(0.125) + 1e-4), rel=1e-12)
    assert group_advantages(ONE_RIGHT, [0] * 8, scale="none").values_R[:2].tolist() == [0.875, -0.125]


@pytest.mark.parametrize("value", [0.0, 0.1, 0.3, 1.0])
@pytest.mark.parametrize("scale", ["population", "sample", "none"])
@pytest.mark.parametrize("size", [1, 3, 7, 8])
def test_equal_rewards_give_exactly_zero(value: float, scale: str, size: int) -> None:
    out = group_advantages([value] * size, [4] * size, scale=scale, eps=1e-4)  # type: ignore[arg-type]
    assert out.values_R.tolist() == [0.0] * size
    assert (out.groups, out.informative) == (1, 0)


def test_groups_are_what_they_are_called_not_where_they_stand() -> None:
    rewards, groups = [1.0, 0.0, 0.0, 1.0, 0.1, 0.1], [5, 9, 5, 9, 5, 9]
    mixed = group_advantages(rewards, groups)
    for g in (5, 9):
        at = [i for i, x in enumerate(groups) if x == g]
        alone = group_advantages([rewards[i] for i in at], [0] * len(at))
        assert mixed.values_R[at] == pytest.approx(alone.values_R, rel=1e-12)
    assert mixed.informative == 2


def test_duplicate_prompts_are_separate_groups() -> None:
    apart = group_advantages([1.0, 1.0, 0.0, 0.0], [0, 0, 1, 1])
    assert apart.values_R.tolist() == [0.0] * 4
    assert group_advantages([1.0, 1.0, 0.0, 0.0], [0, 0, 0, 0]).informative == 1


def test_unscored_samples_take_no_part() -> None:
    out = group_advantages([1.0, None, 0.0, None], [0, 0, 0, 1])
    assert out.values_R.tolist() == [1.0, 0.0, -1.0, 0.0]
    assert (out.groups, out.informative, out.unscored) == (1, 1, 2)


def test_refuses() -> None:
    with pytest.raises(RewardError, match="2 rewards for 1"):
        group_advantages([1.0, 0.0], [0])
    with pytest.raises(RewardError, match="finite"):
        group_advantages([float("nan"), 0.0], [0, 0])
    unchecked = inspect.unwrap(group_advantages)  # as a script calls it: without the tests' type checks
    with pytest.raises(ConfigError, match="scale"):
        unchecked([1.0], [0], scale="std")  # type: ignore[arg-type]


def test_chance_share_by_hand() -> None:
    # two right of four, groups of two: a group is equal with 2 * C(2,2) / C(4,2) = 1/3
    assert informative_share_by_chance([1.0, 0.0, 1.0, 0.0], [0, 0, 1, 1]) == pytest.approx(2 / 3)
    assert informative_share_by_chance([1.0, 1.0], [0, 0]) == 0.0
    assert informative_share_by_chance([None], [0]) is None


def test_chance_share_is_the_mean_over_deals() -> None:
    rng = np.random.Generator(np.random.Philox(key=1))
    rewards, groups = [1.0] * 5 + [0.1] * 3 + [0.0] * 4, [0] * 3 + [1] * 4 + [2] * 5
    shares = []
    for _ in range(4000):
        dealt = list(rng.permutation(rewards))
        out = group_advantages(dealt, groups)
        shares.append(out.informative / out.groups)
    error = np.std(shares) / math.sqrt(len(shares))
    assert informative_share_by_chance(rewards, groups) == pytest.approx(
        np.mean(shares), abs=4 * error + 1e-12
    )


def test_permuted_moves_eligible_values_only() -> None:
    values = np.arange(20.0)
    eligible = values % 4 != 0
    out = permuted(values, eligible, run_seed=3, step=5)
    assert out[~eligible].tolist() == values[~eligible].tolist()
    assert sorted(out) == values.tolist()
    assert out.tolist() != values.tolist()
    assert out.tolist() == permuted(values, eligible, 3, 5).tolist()
    assert out.tolist() != permuted(values, eligible, 3, 6).tolist()
