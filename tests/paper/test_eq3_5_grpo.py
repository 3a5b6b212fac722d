"""Eq. 3-5 of arXiv 2608.27351: advantages, ratios and the clipped loss against a brute force in plain Python.

The brute force reads the equations for groups of responses over a tabular policy (one row of logits a
position); gradients are compared with central differences of the brute force.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from broaden.grpo.advantage import group_advantages
from broaden.grpo.loss import LossSettings, row_weights, token_losses

EPSILON, BETA = 0.2, 0.001
VOCAB, POSITIONS, GROUP = 5, 4, 3
PROMPTS = 3
RNG = np.random.Generator(np.random.Philox(key=20))
LENGTHS = [[4, 2, 1], [3, 3, 4], [1, 4, 2]]
TOKENS = [[[int(t) for t in RNG.integers(VOCAB, size=n)] for n in row] for row in LENGTHS]
REWARDS = [[1.0, 0.1, 0.0], [0.1, 0.1, 0.1], [0.0, 1.0, 1.0]]  # the second group has s = 0
THETA = RNG.normal(size=(PROMPTS, POSITIONS, VOCAB))
OLD = THETA + 0.4 * RNG.normal(size=THETA.shape)
REFERENCE = THETA + 0.4 * RNG.normal(size=THETA.shape)


def log_softmax(row: np.ndarray, token: int) -> float:
    top = max(row)
    return float(row[token]) - top - math.log(sum(math.exp(v - top) for v in row))


def brute_force(theta: np.ndarray) -> float:
    """-(1/P) sum over prompts of the paper's objective, minus nothing that has s = 0, plus the k3 penalty."""
    total = 0.0
    for p in range(PROMPTS):
        mean = sum(REWARDS[p]) / GROUP
        s = math.sqrt(sum((r - mean) ** 2 for r in REWARDS[p]) / GROUP)
        for i in range(GROUP):
            advantage = (REWARDS[p][i] - mean) / s if max(REWARDS[p]) > min(REWARDS[p]) else 0.0
            response = 0.0
            for t, token in enumerate(TOKENS[p][i]):
                logp = log_softmax(theta[p, t], token)
                ratio = math.exp(logp - log_softmax(OLD[p, t], token))
                clipped = min(max(ratio, 1 - EPSILON), 1 + EPSILON)
                log_inverse = log_softmax(REFERENCE[p, t], token) - logp
                k3 = math.exp(log_inverse) - log_inverse - 1
                response += -min(ratio * advantage, clipped * advantage) + BETA * k3
            total += response / len(TOKENS[p][i])
    return total / (PROMPTS * GROUP)


def ours(theta: torch.Tensor, max_new_tokens: int = POSITIONS) -> torch.Tensor:
    settings = LossSettings(clip_low=EPSILON, clip_high=EPSILON, kl=BETA, aggregation="sequence")
    rewards = [r for row in REWARDS for r in row]
    groups = [p for p in range(PROMPTS) for _ in range(GROUP)]
    advantage_R = group_advantages(rewards, groups, scale="population").values_R
    lengths_R = np.array([n for row in LENGTHS for n in row])
    where = [
        (p, t, token) for p in range(PROMPTS) for i in range(GROUP) for t, token in enumerate(TOKENS[p][i])
    ]
    row_N = np.repeat(np.arange(PROMPTS * GROUP), lengths_R)
    p, t, token = (torch.tensor(x) for x in zip(*where, strict=True))

    def logp(table: torch.Tensor) -> torch.Tensor:
        return torch.log_softmax(table, -1)[p, t, token]

    old, reference = logp(torch.from_numpy(OLD)), logp(torch.from_numpy(REFERENCE))
    out = token_losses(logp(theta), old, reference, torch.from_numpy(advantage_R[row_N]), None, settings)
    weight_N = torch.from_numpy(row_weights(lengths_R, "sequence", max_new_tokens)[row_N])
    return (weight_N * out.loss_N).sum()


def test_loss_is_the_papers() -> None:
    assert float(ours(torch.from_numpy(THETA))) == pytest.approx(brute_force(THETA), rel=1e-12)


def test_gradient_is_the_papers() -> None:
    theta = torch.from_numpy(THETA.copy()).requires_grad_(True)
    (got,) = torch.autograd.grad(ours(theta), theta)
    h = 1e-6
    for index in np.ndindex(*THETA.shape):
        up, down = THETA.copy(), THETA.copy()
        up[index] += h
        down[index] -= h
        want = (brute_force(up) - brute_force(down)) / (2 * h)
        # central differences: error h^2 times the third derivative, and rounding 1e-16 / h
        assert float(got[index]) == pytest.approx(want, abs=2e-9)


def test_the_group_without_variance_contributes_only_its_kl() -> None:
    theta = torch.from_numpy(THETA.copy()).requires_grad_(True)
    (got,) = torch.autograd.grad(ours(theta), theta)
    assert float(got[1].abs().max()) < 2 * BETA
    assert float(got[0].abs().max()) > 0.01
