"""Tiny random checkpoints made on the fly: real folders that transformers loads too, in milliseconds.

The tokenizer has one token a character (and four special ones); the chat template writes
`<s><u>question<a>`. Weights are keyed random numbers, so a tiny model is the same everywhere.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from broaden.models.spec import ModelSpec
from broaden.seeds import numpy_generator, stream

SPECIAL = ("<s>", "</s>", "<u>", "<a>")
BOS, EOS = 0, 1
CHARACTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 .,:;!?+-*/=()<>_#$%'\"\\\n"
VOCAB = 96
TEMPLATE = (
    "<s>{% for m in messages %}{% if m['role'] == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
    "{{ '<u>' if m['role'] != 'assistant' else '<a>' }}{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<a>{% endif %}"
)


def tiny_config(family: str = "llama", *, tied: bool = True, **changes: Any) -> dict[str, Any]:
    """A config.json of two layers, width 32, four heads of 8 over two key/value heads."""
    config: dict[str, Any] = {
        "architectures": [f"{family.capitalize()}ForCausalLM"],
        "model_type": family,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 256,
        "vocab_size": VOCAB,
        "tie_word_embeddings": tied,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "pad_token_id": EOS,
        "dtype": "float32",
    }  # fmt: skip
    return config | changes


def tiny_weights(config: dict[str, Any], seed: int = 0) -> dict[str, torch.Tensor]:
    """Random fp32 weights of a config: norms near 1, everything else N(0, 0.2)."""
    weights = {}
    for name, shape in ModelSpec.from_config(config).shapes().items():
        values = numpy_generator(stream(seed, "tiny", name)).standard_normal(shape, dtype="float32") * 0.2
        weights[name] = torch.from_numpy(values) + (1.0 if "norm" in name else 0.0)
    return weights


def tiny_tokenizer() -> Tokenizer:
    """One token a character."""
    vocab = {token: i for i, token in enumerate([*SPECIAL, *CHARACTERS])}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    return tokenizer


def tiny_folder(
    folder: Path,
    family: str = "llama",
    *,
    tied: bool = True,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    weights: dict[str, torch.Tensor] | None = None,
    template: str | None = TEMPLATE,
    generation_config: dict[str, Any] | None = None,
    **config_changes: Any,
) -> Path:
    """Write a complete Hugging Face folder (made if need be) and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    config = tiny_config(family, tied=tied, dtype=str(dtype).removeprefix("torch."), **config_changes)
    plain = tiny_weights(config, seed) if weights is None else weights
    save_file(
        {n: t.to(dtype) for n, t in plain.items()}, folder / "model.safetensors", metadata={"format": "pt"}
    )
    _json(folder / "config.json", config)
    _json(folder / "generation_config.json", generation_config or {"eos_token_id": EOS, "pad_token_id": EOS})
    tiny_tokenizer().save(str(folder / "tokenizer.json"))
    _json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<s>",
            "eos_token": "</s>",
            "clean_up_tokenization_spaces": False,
            "model_max_length": 256,
        },
    )
    if template is not None:
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    return folder


def _json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
