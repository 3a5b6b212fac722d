"""The bundled model's shape and tokenizer: an ordinary Llama folder, but for the weights.

Printable ASCII one character a token, a newline, and the fixed phrases of the Countdown prompt and of a
trace as tokens of their own, so that a prompt is about 14 tokens and a completion 28. head_dim is 32, the smallest
that vLLM's CPU attention takes. Not here: weights (`init.random_weights`, the warm-start config).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

UNK, PAD, USER, ASSISTANT, END = "<unk>", "<|pad|>", "<|user|>", "<|assistant|>", "<|end|>"
SPECIAL = (PAD, USER, ASSISTANT, END)
PHRASES = (
    "Using the numbers [", ", ", "], write an expression that equals ",
    ". Use + - * / and each number exactly once. "
    "Show your steps, then give the expression in <answer></answer>.",
    " + ", " - ", " * ", " / ", " = ", "<answer>", "</answer>",
)  # fmt: skip
CHARACTERS = ("\n", *map(chr, range(32, 127)))
TOKENS = (UNK, *CHARACTERS, *SPECIAL, *PHRASES)
IDS = {token: index for index, token in enumerate(TOKENS)}
POSITIONS = 128
CHAT_TEMPLATE = (
    "{% for m in messages %}{% if m['role'] == 'assistant' %}<|assistant|>{% else %}<|user|>{% endif %}"
    "{{ m['content'] }}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def config(
    *, layers: int = 2, hidden: int = 64, heads: int = 2, kv_heads: int = 1, ffn: int = 192
) -> dict[str, Any]:
    """`config.json` of the model (defaults: the bundled one's shape)."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(TOKENS),
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": 32,
        "hidden_act": "silu",
        "max_position_embeddings": POSITIONS,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        "tie_word_embeddings": True,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "bos_token_id": None,
        "eos_token_id": IDS[END],
        "pad_token_id": IDS[PAD],
        "dtype": "float32",
    }


def generation_config() -> dict[str, Any]:
    """`generation_config.json`: stop and pad ids, the temperature that the model was made for."""
    return {"do_sample": True, "temperature": 0.6, "eos_token_id": IDS[END], "pad_token_id": IDS[PAD]}


def tokenizer_config() -> dict[str, Any]:
    """`tokenizer_config.json` with the chat template."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": UNK,
        "pad_token": PAD,
        "eos_token": END,
        "clean_up_tokenization_spaces": False,
        "model_max_length": POSITIONS,
        "padding_side": "left",
        "add_bos_token": False,
        "add_eos_token": False,
        "chat_template": CHAT_TEMPLATE,
    }


def tokenizer_json() -> str:
    """`tokenizer.json`: characters as words, phrases and special tokens cut out beforehand."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

    words = {token: IDS[token] for token in (UNK, *CHARACTERS)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token=UNK))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in PHRASES])
    return str(tokenizer.to_str(pretty=True))


def write_folder(folder: Path, **shape: int) -> None:
    """Write everything of the model folder but the weights.

    Args:
        folder: created where it does not exist; files of the same names are replaced.
        shape: keywords of `config`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    parts = {
        "config.json": config(**shape),
        "generation_config.json": generation_config(),
        "tokenizer_config.json": tokenizer_config(),
    }
    for name, content in parts.items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    (folder / "tokenizer.json").write_text(tokenizer_json() + "\n", encoding="utf-8")
