"""The warm-start trainer on a small causal stand-in: it learns, resumes bit for bit, and knows its noise."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

from broaden.errors import ConfigError, DivergedError
from broaden.models.init import random_weights
from broaden.models.optimizer import AdamW, Weights
from broaden.models.rows import Examples
from broaden.models.spec import ModelSpec
from broaden.seeds import numpy_generator, stream
from broaden.sft.examples import Feed
from broaden.sft.trainer import SftSettings, gradients, noisy_leaves, optimizer_for, train

EXAMPLES = Examples.of([([1, 2 + i % 5], [3 + i % 4, 7, 0][: 2 + i % 2]) for i in range(23)])
BASE = SftSettings(updates=12, batch=8, learning_rate=0.05, warmup=3)


SPEC = ModelSpec("llama", layers=2, hidden=16, heads=2, kv_heads=1, head_dim=8, ffn=24, vocab=9, tied=True)
MATRIX = "model.layers.0.mlp.down_proj.weight"


def center() -> Weights:
    return random_weights(SPEC, key=2)


def run(weights: Weights, settings: SftSettings, optimizer: AdamW, start: int = 0) -> list[dict[str, Any]]:
    records = train(
        SPEC,
        weights,
        EXAMPLES,
        settings,
        run_seed=4,
        optimizer=optimizer,
        start_step=start,
    )
    return [r.values for r in records]


def test_loss_falls_and_records_count() -> None:
    weights = center()
    values = run(weights, dataclasses.replace(BASE, updates=60), optimizer_for(weights, BASE))
    assert len(values) == 60
    assert values[-1]["loss"] < 0.5 * values[0]["loss"]
    assert values[0]["learning_rate"] == pytest.approx(0.05 / 3)
    assert values[3]["epoch"] == pytest.approx(24 / 23)
    assert 16 <= values[0]["tokens"] <= 24


@pytest.mark.parametrize("noise", [0.0, 0.1])
@pytest.mark.parametrize("cut", [1, 5])
def test_interrupted_and_resumed_is_bit_equal(noise: float, cut: int) -> None:
    settings = dataclasses.replace(BASE, weight_noise=noise, weight_noise_warmup=3, micro_batch=3)
    straight, resumed = center(), center()
    run(straight, settings, optimizer_for(straight, settings))

    optimizer = optimizer_for(resumed, settings)
    records = train(SPEC, resumed, EXAMPLES, settings, run_seed=4, optimizer=optimizer)
    for _ in range(cut):
        next(records)
    records.close()
    weights = {n: w.clone() for n, w in resumed.items()}
    state = {n: t.clone() for n, t in optimizer.state().items()}
    again = optimizer_for(weights, settings)
    again.load(state)
    run(weights, settings, again, start=cut)
    assert all(torch.equal(straight[n], weights[n]) for n in straight)


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_gradient_does_not_depend_on_micro_batches(size: int) -> None:
    def grads(micro: int) -> tuple[Weights, float]:
        leaves = {n: w.requires_grad_(True) for n, w in center().items()}
        total, loss, _, _ = gradients(SPEC, leaves, Feed(EXAMPLES, 4, 8).micro_batches(2, micro))
        return total, loss

    whole, loss = grads(8)
    parts, other = grads(size)
    assert other == pytest.approx(loss, rel=1e-6)
    for n in whole:
        torch.testing.assert_close(parts[n], whole[n], rtol=1e-5, atol=1e-7)


def test_weight_noise_moves_the_pass_and_not_the_center() -> None:
    weights = center()
    leaves = noisy_leaves(weights, 0.25, 4, 7)
    g = numpy_generator(stream(4, "weight_noise", 7, MATRIX))
    eps = torch.from_numpy(g.standard_normal((16, 24), dtype="float32"))
    torch.testing.assert_close(leaves[MATRIX].detach(), weights[MATRIX] + 0.25 * eps, rtol=0, atol=0)
    assert torch.equal(weights[MATRIX], center()[MATRIX])
    assert not torch.equal(noisy_leaves(weights, 0.25, 4, 8)[MATRIX], leaves[MATRIX])


def test_weight_noise_grows_over_its_warmup() -> None:
    settings = dataclasses.replace(BASE, weight_noise=0.1, weight_noise_warmup=4)
    assert [settings.weight_noise_at(s) for s in (0, 1, 3, 11)] == pytest.approx([0.025, 0.05, 0.1, 0.1])


def test_gradient_of_the_noisy_weights_is_applied_to_the_clean_ones() -> None:
    settings = dataclasses.replace(BASE, updates=1, weight_noise=0.2, clip=0.0, warmup=0, weight_decay=0.0)
    weights = center()
    run(weights, settings, optimizer_for(weights, settings))
    moved = (weights[MATRIX] - center()[MATRIX]).abs()
    assert float(moved.max()) <= 0.05 * (1 + 1e-4)  # the first AdamW step is lr * sign(g): no noise in it
    assert float(moved.min()) > 0.04


def test_non_finite_loss_leaves_the_state_alone() -> None:
    weights = center()
    weights["model.norm.weight"].fill_(float("inf"))
    before = {n: w.clone() for n, w in weights.items()}
    optimizer = optimizer_for(weights, BASE)
    with pytest.raises(DivergedError, match="step 0"):
        next(train(SPEC, weights, EXAMPLES, BASE, run_seed=4, optimizer=optimizer))
    assert all(torch.equal(weights[n], w) for n, w in before.items())
    assert optimizer.steps == 0


@pytest.mark.parametrize(
    "change",
    [
        {"updates": -1},
        {"batch": 0},
        {"micro_batch": 0},
        {"learning_rate": 0.0},
        {"weight_noise": -1.0},
        {"weight_noise_warmup": -1},
        {"beta2": 1.0},
        {"learning_rate_end": 0.1},
    ],
)
def test_refuses(change: dict[str, float]) -> None:
    make: Callable[..., SftSettings] = dataclasses.replace
    with pytest.raises(ConfigError):
        make(BASE, **change)
