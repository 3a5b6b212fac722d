"""The packed forward pass against the padded one (`decoder.forward`, plain autograd): values and every gradient."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.helpers.tiny import tiny_config, tiny_weights

from broaden.errors import UsageError
from broaden.models import pack as packing
from broaden.models.decoder import forward
from broaden.models.pack import Pack, pack
from broaden.models.packed_decoder import forward_packed
from broaden.models.rows import Examples, predicting_positions
from broaden.models.spec import ModelSpec

GROUPS = np.array([0, 0, 0, 1, 1, 2, 3, 3])
LENGTHS = [5, 1, 12, 3, 3, 7, 40, 2]
PROMPTS = [4, 9, 1, 30]


def rows() -> Examples:
    g = np.random.default_rng(2)
    prompts = [g.integers(0, 96, n).tolist() for n in PROMPTS]
    return Examples.of(
        (prompts[group], g.integers(0, 96, n).tolist()) for group, n in zip(GROUPS, LENGTHS, strict=True)
    )


def length(laid: Pack) -> int:
    """Places that are no padding."""
    return int((laid.positions_S >= 0).sum())


def weighted(hidden_N: torch.Tensor) -> torch.Tensor:
    return (hidden_N * torch.linspace(-1, 1, hidden_N.numel()).view(hidden_N.shape)).sum()


def padded(spec: ModelSpec, weights: dict[str, torch.Tensor], at: np.ndarray) -> torch.Tensor:
    """Hidden states that predict the completions' tokens, row by row."""
    batch = rows().batch(at)
    return forward(spec, weights, batch.ids_BT)[predicting_positions(batch)]


CONFIGS = [
    tiny_config("llama"),
    tiny_config("qwen2", tied=False),
    tiny_config("qwen3"),
    tiny_config("llama", num_key_value_heads=4, attention_bias=True, mlp_bias=True),
    tiny_config("llama", num_key_value_heads=1),
]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: f"{c['model_type']}-kv{c['num_key_value_heads']}")
@pytest.mark.parametrize("at", [np.arange(8), np.array([6, 1, 0, 3]), np.array([1])], ids=str)
@pytest.mark.parametrize(("scores", "threads"), [(packing.SCORES, 1), (64, 2)], ids=["whole", "pieces"])
def test_equals_the_padded_pass(
    monkeypatch: pytest.MonkeyPatch, config: dict, at: np.ndarray, scores: int, threads: int
) -> None:
    monkeypatch.setattr(packing, "SCORES", scores)
    spec = ModelSpec.from_config(config)
    ours = {n: w.requires_grad_() for n, w in tiny_weights(config).items()}
    theirs = {n: w.requires_grad_() for n, w in tiny_weights(config).items()}
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        laid = pack(rows(), at, GROUPS)
        a = forward_packed(spec, ours, laid)[laid.predict_N]
        b = padded(spec, theirs, at)
        torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-5)
        weighted(a).backward()
        weighted(b).backward()
    finally:
        torch.set_num_threads(before)
    for name in ours:
        if theirs[name].grad is not None and name != "lm_head.weight":
            torch.testing.assert_close(ours[name].grad, theirs[name].grad, rtol=1e-4, atol=2e-4, msg=name)


def test_targets_and_places() -> None:
    laid = pack(rows(), np.array([3, 2, 0]), GROUPS)
    everything, at = rows(), np.array([3, 2, 0])
    batch = everything.batch(at)
    keep = predicting_positions(batch)
    assert laid.targets_N.tolist() == batch.ids_BT[:, 1:][keep[:, :-1]].tolist()
    assert laid.ids_S[laid.predict_N].tolist() == batch.ids_BT[keep].tolist()
    # two prompts once each (9 and 4), and 3, 12 and 5 completion tokens less the last of each
    assert length(laid) == 9 + 4 + 2 + 11 + 4
    assert len(laid.ids_S) == 32


def test_a_prompt_stands_once_a_group_and_once_a_row_without_groups() -> None:
    assert length(pack(rows(), np.arange(3), GROUPS)) == 4 + 5 + 1 + 12 - 3
    assert length(pack(rows(), np.arange(3))) == 3 * 4 + 5 + 1 + 12 - 3


def test_every_place_is_a_query_once_and_sees_its_own_row_only() -> None:
    laid = pack(rows(), np.arange(8), GROUPS)
    seen = np.concatenate([b.queries_BT[b.queries_BT >= 0] for b in laid.blocks])
    assert sorted(seen.tolist()) == list(range(length(laid)))
    for block in laid.blocks:
        for b, first in enumerate(block.first_B):
            for t, place in enumerate(block.queries_BT[b]):
                if place >= 0:
                    visible = block.keys_BK[b, : first + t + 1]
                    assert laid.positions_S[visible].tolist() == list(range(laid.positions_S[place] + 1))
                    assert visible[-1] == place


def test_checkpointed_layers_give_the_same_gradients() -> None:
    config = CONFIGS[0]
    spec, laid = ModelSpec.from_config(config), pack(rows(), np.arange(8), GROUPS)
    grads = []
    for checkpoint in (False, True):
        weights = {n: w.requires_grad_() for n, w in tiny_weights(config).items()}
        weighted(forward_packed(spec, weights, laid, checkpoint_layers=checkpoint)[laid.predict_N]).backward()
        grads.append({n: w.grad for n, w in weights.items()})
    assert all(torch.equal(grads[0][n], grads[1][n]) for n in grads[0])


def test_bfloat16_is_near_float32() -> None:
    config = CONFIGS[0]
    spec, laid = ModelSpec.from_config(config), pack(rows(), np.arange(8), GROUPS)
    wide = {n: w.bfloat16().float() for n, w in tiny_weights(config).items()}
    exact = forward_packed(spec, wide, laid)
    found = forward_packed(spec, {n: w.bfloat16() for n, w in wide.items()}, laid)
    assert found.dtype == torch.bfloat16
    assert float((found.float() - exact).norm() / exact.norm()) < 0.02


def test_too_long_a_row_is_refused() -> None:
    spec = ModelSpec.from_config(tiny_config(max_position_embeddings=16))
    with pytest.raises(UsageError, match="16 positions"):
        forward_packed(spec, tiny_weights(tiny_config()), pack(rows(), [6], GROUPS))
