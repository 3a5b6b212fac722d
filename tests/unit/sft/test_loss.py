"""Completion cross-entropy against a literal brute force, padding and micro-batch invariance."""

from __future__ import annotations

import math

import numpy as np
import torch

from broaden.models.rows import Examples, predicting_positions
from broaden.sft.loss import completion_nll

PAIRS = [([1, 2], [3]), ([4], [5, 6, 7]), ([0, 1, 2], [3, 4])]


def hidden_for(ids_BT: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    return table[ids_BT]


def test_positions_predict_completion_tokens_only() -> None:
    batch = Examples.of(PAIRS).batch(np.array([0, 1]))
    assert predicting_positions(batch).tolist() == [[False, True, False, False], [True, True, True, False]]


def test_equals_brute_force() -> None:
    g = torch.Generator().manual_seed(0)
    table, head = torch.randn(8, 5, generator=g), torch.randn(8, 5, generator=g)
    batch = Examples.of(PAIRS).batch(np.arange(3))
    nll, entropy = completion_nll(hidden_for(batch.ids_BT, table), head, batch)
    want, want_entropy = 0.0, 0.0
    for prompt, completion in PAIRS:
        row = [*prompt, *completion]
        for t in range(len(prompt), len(row)):
            logits = [float(v) for v in head.double() @ table[row[t - 1]].double()]
            z = math.log(sum(math.exp(v) for v in logits))
            want -= logits[row[t]] - z
            want_entropy -= sum(math.exp(v - z) * (v - z) for v in logits)
    assert math.isclose(float(nll), want, rel_tol=1e-5)
    assert math.isclose(float(entropy), want_entropy, rel_tol=1e-5)


def test_padding_never_enters() -> None:
    g = torch.Generator().manual_seed(1)
    table, head = torch.randn(8, 5, generator=g), torch.randn(8, 5, generator=g)
    examples = Examples.of(PAIRS)
    single = examples.batch(np.array([0]))
    alone, _ = completion_nll(hidden_for(single.ids_BT, table), head, single)
    padded = examples.batch(np.array([0, 1, 2]))
    garbage = padded.ids_BT.clone()
    garbage[0, 3:] = 7
    hidden = hidden_for(garbage, table)
    hidden[0, 3:] = float("nan")
    both, _ = completion_nll(hidden, head, padded)
    rest = examples.batch(np.array([1, 2]))
    others, _ = completion_nll(hidden_for(rest.ids_BT, table), head, rest)
    torch.testing.assert_close(both, alone + others, rtol=1e-5, atol=0)
