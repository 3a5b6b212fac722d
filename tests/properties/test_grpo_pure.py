"""Properties of advantages and of the loss for any rewards, lengths and splits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from broaden.grpo.advantage import group_advantages
from broaden.grpo.loss import AGGREGATIONS, LossSettings, row_weights, token_losses

reward = st.sampled_from([0.0, 0.1, 0.3, 1.0])
batches = st.lists(st.tuples(reward, st.integers(0, 3)), min_size=1, max_size=24)


@given(batches)
def test_informative_groups_have_mean_zero_and_unit_deviation(rows: list[tuple[float, int]]) -> None:
    rewards, groups = [r for r, _ in rows], [g for _, g in rows]
    out = group_advantages(rewards, groups)
    informative = 0
    for g in set(groups):
        values = out.values_R[[i for i, x in enumerate(groups) if x == g]]
        own = [r for r, x in rows if x == g]
        if max(own) == min(own):
            assert not values.any()
            continue
        informative += 1
        assert values.mean() == pytest.approx(0.0, abs=1e-12)
        assert values.std() == pytest.approx(1.0, rel=1e-12)
    assert out.informative == informative


@given(batches, st.randoms(use_true_random=False))
def test_order_of_samples_does_not_matter(rows: list[tuple[float, int]], random: object) -> None:
    order = list(range(len(rows)))
    random.shuffle(order)  # type: ignore[attr-defined]
    straight = group_advantages([r for r, _ in rows], [g for _, g in rows]).values_R
    mixed = group_advantages([rows[i][0] for i in order], [rows[i][1] for i in order]).values_R
    assert mixed == pytest.approx(straight[order], rel=1e-12, abs=1e-14)


@given(
    lengths=st.lists(st.integers(0, 6), min_size=1, max_size=8),
    cut=st.integers(1, 8),
    aggregation=st.sampled_from(AGGREGATIONS),
    key=st.integers(0, 2**32),
)
def test_loss_and_gradient_do_not_depend_on_micro_batches(
    lengths: list[int], cut: int, aggregation: str, key: int
) -> None:
    """Any split of the rows, summed, is the whole; equality is up to float64 rounding."""
    rng = np.random.Generator(np.random.Philox(key=key))
    rows, tokens = np.array(lengths), sum(lengths)
    settings = LossSettings(kl=0.1, aggregation=aggregation)  # type: ignore[arg-type]
    row_N = np.repeat(np.arange(len(rows)), rows)
    weights_R = row_weights(rows, settings.aggregation, 6)
    logp, old, ref = (torch.from_numpy(-rng.random(tokens)) for _ in range(3))
    advantage_R = rng.normal(size=len(rows))

    def part(at: np.ndarray) -> tuple[float, torch.Tensor]:
        leaf = logp.clone().requires_grad_(True)
        i = torch.from_numpy(at)
        advantage_N = torch.from_numpy(advantage_R[row_N[at]])
        out = token_losses(leaf[i], old[i], ref[i], advantage_N, None, settings)
        loss = (torch.from_numpy(weights_R[row_N[at]]) * out.loss_N).sum()
        loss.backward()
        gradient = leaf.grad
        return float(loss.detach()), torch.zeros_like(logp) if gradient is None else gradient

    whole_loss, whole_gradient = part(np.arange(tokens))
    losses, gradients = [], []
    for a in range(0, len(rows), cut):
        loss, gradient = part(np.flatnonzero((row_N >= a) & (row_N < a + cut)))
        losses.append(loss)
        gradients.append(gradient)
    assert sum(losses) == pytest.approx(whole_loss, rel=1e-12, abs=1e-14)
    torch.testing.assert_close(sum(gradients), whole_gradient, rtol=1e-12, atol=1e-14)


@given(lengths=st.lists(st.integers(1, 6), min_size=1, max_size=8), aggregation=st.sampled_from(AGGREGATIONS))
def test_masked_rows_change_nothing(lengths: list[int], aggregation: str) -> None:
    alone = row_weights(np.array(lengths), aggregation, 6)  # type: ignore[arg-type]
    beside = row_weights(np.array([0, *lengths, 0]), aggregation, 6)  # type: ignore[arg-type]
    assert beside[1:-1].tolist() == alone.tolist()
    assert beside[[0, -1]].tolist() == [0.0, 0.0]
