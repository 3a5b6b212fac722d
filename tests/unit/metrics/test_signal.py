from __future__ import annotations

import json

import numpy as np
import pytest

from broaden.errors import MetricError
from broaden.metrics.signal import (
    Signal,
    advice,
    anova,
    from_values,
    pool,
    prompts_for,
    signal,
    steps_to_detect,
)


def rewards(effect: float, members: int = 32, prompts: int = 64, seed: int = 0) -> np.ndarray:
    """0/1 rewards; prompts differ widely, members by `effect` in probability."""
    r = np.random.default_rng(seed)
    p = r.beta(0.5, 0.5, prompts) + effect * r.normal(size=(members, 1))
    return (r.random((members, prompts)) < p).astype(float)


def test_textbook_table() -> None:
    y = np.array([[3.0, 5.0, 4.0], [4.0, 6.0, 8.0]])
    got = signal(y)
    # means 4 and 6, grand 5: SS_a = 3 (1 + 1) = 6; residuals (+-.5, +-.5, +-1): SS_e = 2 (.25 + .25 + 1) = 3
    assert got.ss_member == pytest.approx(6.0)
    assert got.ss_residual == pytest.approx(3.0)
    assert (got.df_member, got.df_residual) == (1, 2)
    assert pytest.approx(4.0) == got.F
    assert got.rho == pytest.approx(0.75)
    assert (got.members, got.prompts) == (2.0, 3.0)


def test_a_prompt_effect_is_no_signal() -> None:
    y = np.tile([0.0, 1.0, 0.5], (4, 1))
    got = signal(y, key=1)
    assert (got.F, got.rho, got.p_value) == (None, None, None)
    assert got.ss_member == 0.0
    assert got.ss_residual == 0.0


def test_constant_non_dyadic_rewards_are_exactly_nothing() -> None:
    got = signal(np.full((7, 11), np.float32(0.3), dtype=np.float32), key=1)
    assert (got.ss_member, got.ss_residual, got.F, got.p_value) == (0.0, 0.0, None, None)


def test_members_that_differ_and_nothing_else() -> None:
    got = signal(np.arange(4.0)[:, None] + np.arange(3.0)[None, :], key=1, permutations=200)
    assert got.F is None
    assert got.rho == 1.0
    assert got.p_value is not None
    assert got.p_value < 0.02


def test_nulls_are_uniform_and_signals_found() -> None:
    draws = [signal(rewards(0.0, seed=i), key=i, permutations=99).p_value for i in range(200)]
    p = np.array([x for x in draws if x is not None])
    assert 0.01 <= np.mean(p <= 0.05) <= 0.10
    assert 0.4 <= p.mean() <= 0.6
    closed = np.array([signal(rewards(0.0, seed=i)).p_value for i in range(400)], dtype=float)
    assert 0.02 <= np.mean(closed <= 0.05) <= 0.09
    strong = signal(rewards(0.15), key=1)
    assert strong.p_value == 1 / 1001
    assert strong.F is not None
    assert strong.F > 2


def test_null_moments_are_those_of_the_permutations() -> None:
    y = rewards(0.05, members=6, prompts=9)
    y[0, 0] = y[3, 4] = np.nan
    got = signal(y)
    r = np.random.default_rng(3)
    ss = []
    for _ in range(4000):
        moved = y.copy()
        for p in range(9):
            there = np.flatnonzero(~np.isnan(y[:, p]))
            moved[there, p] = y[r.permutation(there), p]
        ss.append(signal(moved).ss_member)
    assert got.null_mean == pytest.approx(np.mean(ss), rel=0.02)
    assert got.null_var == pytest.approx(np.var(ss), rel=0.12)
    assert signal(y, key=5, permutations=2000).p_value == pytest.approx(
        np.mean(np.array(ss) >= got.ss_member), abs=0.03
    )


def test_missing_cells_as_none() -> None:
    y = [[1.0, 0.0, None], [0.0, None, 1.0], [1.0, 1.0, 0.0]]
    got = signal(y, key=2, permutations=100)
    assert got.df_member == 2
    assert got.df_residual == 7 - 3 - 2
    assert got == signal(np.array(y, dtype=float), key=2, permutations=100)


def test_nothing_to_compare_is_no_error_but_shapes_are() -> None:
    for table in ([[None, None], [None, None]], [[1.0, 0.0]], [[1.0, None], [None, 0.0]]):
        got = anova(table)
        assert (got.F, got.p_value, got.df_member, got.df_residual) == (None, None, 0, 0)
    with pytest.raises(MetricError, match="shape"):
        signal([1.0, 2.0])
    with pytest.raises(MetricError, match="infinity"):
        signal([[1.0, np.inf], [0.0, 0.0]])


def test_pooling_finds_what_one_step_cannot() -> None:
    steps = [anova(rewards(0.022, seed=i)) for i in range(40)]
    pooled = pool(steps)
    assert pooled.steps == 40
    assert pooled.df_member == 40 * 31
    assert pooled.F is not None
    assert 1.04 < pooled.F < 1.4
    assert pooled.p_value is not None
    assert pooled.p_value < 1e-3
    assert np.median([s.p_value for s in steps if s.p_value is not None]) > 0.05
    null = pool([anova(rewards(0.0, seed=i)) for i in range(40)])
    assert null.p_value is not None
    assert null.p_value > 0.01
    assert pool(steps[:1]) is steps[0]
    with pytest.raises(MetricError):
        pool([])


def test_from_logged_values() -> None:
    whole = anova(rewards(0.1))
    got = from_values(whole.to_json())
    assert got is not None
    assert got.F == whole.F
    assert got.p_value == whole.p_value
    short = from_values(
        {k: whole.to_json()[k] for k in ("ss_member", "df_member", "ss_residual", "df_residual")}
    )
    assert short is not None
    assert short.null_mean == pytest.approx(whole.null_mean)  # exact for a complete table
    assert (short.members, short.prompts) == (32.0, 64.0)
    assert from_values({"reward": 0.2}) is None
    assert json.loads(json.dumps(whole.to_json()))["df_member"] == 31
    assert Signal.from_json(whole.to_json()) == whole


def test_what_would_help() -> None:
    made = Signal(1.16, 1 - 1 / 1.16, 0.01, 1.0, 310, 1.0, 7905, 1.0, 1.0, 32.0, 256.0, 10)
    assert prompts_for(made) == 1600  # g = 0.16/256
    assert prompts_for(made, 0.2) == 400
    assert steps_to_detect(made) == pytest.approx(9 * 20 * (1 / 310 + 1 / 7905) / 0.16**2, abs=1)
    assert "1600 a member" in advice(made)
    with pytest.raises(MetricError):
        prompts_for(made, 1.0)
    unsure = Signal(1.05, 1 - 1 / 1.05, 0.4, 1.0, 31, 1.0, 7905, 1.0, 1.0, 32.0, 256.0)
    assert "Not told from noise yet" in advice(unsure)
    nothing = Signal(0.9, 1 - 1 / 0.9, 0.6, 1.0, 31, 1.0, 7905, 1.0, 1.0, 32.0, 256.0)
    assert prompts_for(nothing) is None
    assert steps_to_detect(nothing) is None
    assert "No signal" in advice(nothing)
    assert "more members" in advice(Signal(4.0, 0.75, 1e-9, 1.0, 31, 1.0, 7905, 1.0, 1.0, 32.0, 256.0))
    assert "the same rewards" in advice(anova(np.ones((4, 4))))
