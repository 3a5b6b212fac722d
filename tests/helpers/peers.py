"""transformers models with random weights: the independent computation that ours is held against."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from broaden.models.spec import ModelSpec
from broaden.seeds import numpy_generator, stream

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
# name -> (model_type, changes): every switch of the three families is on in at least one
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-gqa": ("llama", {}),
    "llama-mqa-tied-bias": (
        "llama",
        {"num_key_value_heads": 1, "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True},
    ),
    "llama-mha-wide-heads": ("llama", {"num_key_value_heads": 4, "head_dim": 24}),
    "llama-llama3-rope": ("llama", {"rope_parameters": LLAMA3_ROPE}),
    "llama-linear-rope": ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0}}),
    "qwen2": ("qwen2", {}),
    "qwen2-tied": ("qwen2", {"tie_word_embeddings": True, "num_attention_heads": 6, "num_key_value_heads": 2,
                             "hidden_size": 96}),
    "qwen3": ("qwen3", {"head_dim": 32}),
    "qwen3-tied-bias": ("qwen3", {"head_dim": 16, "tie_word_embeddings": True, "attention_bias": True}),
}  # fmt: skip


def peer(name: str, seed: int = 0) -> tuple[ModelSpec, dict[str, torch.Tensor], Any]:
    """(spec, weights, transformers model) of a named config with keyed random weights, sharing memory."""
    kind, changes = CONFIGS[name]
    shape: dict[str, Any] = {
        "vocab_size": 97, "hidden_size": 64, "intermediate_size": 112, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256, "rms_norm_eps": 1e-6,
    }  # fmt: skip
    config = AutoConfig.for_model(kind, **(shape | changes))
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    weights = {n: p.detach() for n, p in model.named_parameters()}
    for tensor_name, tensor in weights.items():
        drawn = numpy_generator(stream(seed, "peer", name, tensor_name)).standard_normal(
            tuple(tensor.shape), "float32"
        )
        scale = 0.1 if tensor.dim() > 1 else 0.3
        tensor.copy_(torch.from_numpy(drawn) * scale + (1.0 if "norm" in tensor_name else 0.0))
    return ModelSpec.from_config(config.to_dict()), weights, model
