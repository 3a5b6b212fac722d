"""Fresh weights: shapes, scales, keys."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from broaden.models.init import random_weights
from broaden.models.spec import ModelSpec

SPEC = ModelSpec(
    "qwen2", layers=2, hidden=64, heads=4, kv_heads=2, head_dim=16, ffn=128, vocab=50, qkv_bias=True
)


def test_names_and_shapes_are_the_specs() -> None:
    weights = random_weights(SPEC, 1)
    assert {n: tuple(w.shape) for n, w in weights.items()} == SPEC.shapes()
    assert {w.dtype for w in weights.values()} == {torch.float32}
    assert torch.equal(weights["model.norm.weight"], torch.ones(64))
    assert torch.equal(weights["model.layers.0.self_attn.q_proj.bias"], torch.zeros(64))


@pytest.mark.parametrize(
    ("name", "std"),
    [
        ("model.embed_tokens.weight", 0.1),
        ("model.layers.1.self_attn.q_proj.weight", 1 / 8),
        ("model.layers.1.mlp.down_proj.weight", 1 / (128**0.5 * 2)),
        ("lm_head.weight", 1 / 8),
    ],
)
def test_scales(name: str, std: float) -> None:
    w = random_weights(SPEC, 1)[name]
    assert float(w.std()) == pytest.approx(
        std, rel=0.05
    )  # 3,200 numbers or more: 5 % is four standard errors


def test_keyed_by_name_and_key_alone() -> None:
    one, again, other = random_weights(SPEC, 1), random_weights(SPEC, 1), random_weights(SPEC, 2)
    deeper = random_weights(dataclasses.replace(SPEC, vocab=60), 1)
    name = "model.layers.0.mlp.gate_proj.weight"
    assert torch.equal(one[name], again[name])
    assert torch.equal(one[name], deeper[name])
    assert not torch.equal(one[name], other[name])
    assert not torch.equal(one[name], one["model.layers.1.mlp.gate_proj.weight"])
