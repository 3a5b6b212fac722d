"""ModelSpec from config dictionaries: old and new rotary keys, switches, what is not supported."""

from __future__ import annotations

from typing import Any

import pytest
from tests.helpers.tiny import tiny_config
from transformers import AutoConfig

from broaden.errors import ModelError
from broaden.models.spec import ModelSpec, RopeScaling

LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def test_plain_llama_literal() -> None:
    spec = ModelSpec.from_config(tiny_config())
    assert (spec.family, spec.layers, spec.hidden) == ("llama", 2, 32)
    assert (spec.heads, spec.kv_heads, spec.head_dim) == (4, 2, 8)
    assert (spec.ffn, spec.vocab, spec.tied, spec.max_positions, spec.norm_eps) == (48, 96, True, 256, 1e-5)
    assert (spec.qkv_bias, spec.attention_bias, spec.qk_norm, spec.mlp_bias) == (False, False, False, False)
    assert spec.parameters == 96 * 32 + 2 * (64 * 32 + 32 * 32 + 3 * 32 * 48 + 2 * 32) + 32


@pytest.mark.parametrize(
    "keys",
    [
        {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
        {"rope_theta": 5e5, "rope_scaling": {"type": "llama3", **LLAMA3}},
        {"rope_parameters": {"rope_theta": 5e5, "rope_type": "llama3", **LLAMA3}},
    ],
)
def test_rotary_parameters_old_and_new(keys: dict[str, Any]) -> None:
    config = tiny_config()
    del config["rope_theta"]
    spec = ModelSpec.from_config(config | keys)
    assert spec.rope_theta == 5e5
    assert spec.rope_scaling == RopeScaling("llama3", 8.0, 1.0, 4.0, 64)


def test_default_and_linear_rotary() -> None:
    assert ModelSpec.from_config(tiny_config()).rope_scaling is None
    plain = tiny_config(rope_parameters={"rope_type": "default", "rope_theta": 123.0})
    assert (ModelSpec.from_config(plain).rope_theta, ModelSpec.from_config(plain).rope_scaling) == (
        123.0,
        None,
    )
    linear = ModelSpec.from_config(tiny_config(rope_scaling={"type": "linear", "factor": 4.0}))
    assert linear.rope_scaling == RopeScaling("linear", 4.0)


@pytest.mark.parametrize(
    ("family", "qkv", "output", "norm"),
    [("llama", False, False, False), ("qwen2", True, False, False), ("qwen3", False, False, True)],
)
def test_family_switches(family: str, qkv: bool, output: bool, norm: bool) -> None:
    spec = ModelSpec.from_config(tiny_config(family))
    assert (spec.qkv_bias, spec.attention_bias, spec.qk_norm) == (qkv, output, norm)


def test_attention_bias_of_llama_and_qwen3() -> None:
    for family in ("llama", "qwen3"):
        spec = ModelSpec.from_config(tiny_config(family, attention_bias=True))
        assert spec.qkv_bias
        assert spec.attention_bias


def test_head_dim_defaults() -> None:
    config = tiny_config()
    del config["head_dim"]
    assert ModelSpec.from_config(config).head_dim == 8
    qwen3 = tiny_config("qwen3")
    del qwen3["head_dim"]
    assert ModelSpec.from_config(qwen3).head_dim == 128


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model_type": "gpt2"}, "gpt2"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "yarn"),
        ({"quantization_config": {"bits": 4}}, "quantised"),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial"),
    ],
)
def test_what_is_not_understood_is_other(changes: dict[str, Any], reason: str) -> None:
    spec = ModelSpec.from_config(tiny_config() | changes)
    assert spec.family == "other"
    assert reason in spec.unsupported
    with pytest.raises(ModelError, match="not known"):
        spec.shapes()


def test_sliding_window_only_where_used() -> None:
    unused = tiny_config("qwen2", sliding_window=128, use_sliding_window=False, max_window_layers=1)
    assert ModelSpec.from_config(unused).family == "qwen2"
    assert ModelSpec.from_config(unused | {"use_sliding_window": True}).family == "other"
    assert (
        ModelSpec.from_config(unused | {"use_sliding_window": True, "max_window_layers": 2}).family == "qwen2"
    )


def test_other_families_need_no_llama_keys() -> None:
    assert ModelSpec.from_config({"model_type": "gpt2", "n_embd": 8, "vocab_size": 10}).family == "other"


def test_missing_keys_are_named() -> None:
    config = tiny_config()
    del config["intermediate_size"]
    with pytest.raises(ModelError, match="intermediate_size"):
        ModelSpec.from_config(config)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_transformers_own_dictionaries(family: str) -> None:
    config = AutoConfig.for_model(
        family, **{k: v for k, v in tiny_config(family).items() if k != "model_type"}
    )
    assert ModelSpec.from_config(config.to_dict()) == ModelSpec.from_config(tiny_config(family))
