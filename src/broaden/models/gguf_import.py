"""A GGUF file of a Llama model turned into a Hugging Face folder: weights, tokenizer, configuration.

Why not transformers' own GGUF loading: what it loads cannot be saved again, and its tokenizer loses the
splitting of digits. Not here: fetching the file (`sources`); architectures other than llama.

Saved as bfloat16: the weights were trained in it and the hub's checkpoint has it; what its rounding adds
(0.2 % of a weight) is far below what four-bit quantisation took away (some 5 %). And the base is then exact
in the precision that members are rolled out in, so that "changed weights" counts training only.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from broaden.errors import ModelError
from broaden.models.tensor_files import write_tensors

RECIPE = 1  # part of the cache folder's name: another recipe, another folder

_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_CONTROL, _USER_DEFINED = 3, 4  # llama.cpp's token types


def convert(gguf_file: Path, folder: Path, *, expected_parameters: int | None = None) -> None:
    """Write `folder` (new) from a GGUF of architecture llama with a byte-level BPE tokenizer.

    Raises:
        ModelError: the gguf package is missing, or the file is not what is expected here.
    """
    try:
        import gguf
    except ImportError as error:
        raise ModelError(
            "reading a GGUF file needs the gguf package",
            "pip install 'broaden[smollm2]' (or pip install gguf)",
        ) from error
    reader = gguf.GGUFReader(str(gguf_file))
    values = {name: field.contents() for name, field in reader.fields.items()}
    if values.get("general.architecture") != "llama" or values.get("tokenizer.ggml.model") != "gpt2":
        raise ModelError(
            f"{gguf_file.name}: expected architecture llama with a byte-level BPE tokenizer, found "
            f"{values.get('general.architecture')!r} with {values.get('tokenizer.ggml.model')!r}"
        )
    heads = int(values["llama.attention.head_count"])
    kv_heads = int(values.get("llama.attention.head_count_kv", heads))
    weights = {}
    for tensor in reader.tensors:
        name = hugging_face_name(tensor.name)
        plain = np.array(
            gguf.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32
        )  # a copy: the file is mapped
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            plain = unpermute(plain, heads if "q_proj" in name else kv_heads)
        weights[name] = torch.from_numpy(np.ascontiguousarray(plain)).to(torch.bfloat16)
    found = sum(t.numel() for t in weights.values())
    if expected_parameters is not None and found != expected_parameters:
        raise ModelError(f"{gguf_file.name}: expected {expected_parameters} parameters, found {found}")
    folder.mkdir(parents=True)
    _write_tokenizer(values, folder)
    _write_json(folder / "config.json", config_of(values, tied="lm_head.weight" not in weights))
    _write_json(folder / "generation_config.json", _generation_config(values))
    write_tensors(folder, weights)


def hugging_face_name(name: str) -> str:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`."""
    parts = name.split(".")
    if parts[0] == "blk" and len(parts) == 4 and parts[2] in _BLOCK:
        return f"model.layers.{parts[1]}.{_BLOCK[parts[2]]}.{parts[3]}"
    if len(parts) == 2 and parts[0] in _TOP:
        return f"{_TOP[parts[0]]}.{parts[1]}"
    raise ModelError(f"the GGUF file holds a tensor that a llama model does not have: {name}")


def unpermute(weight: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """Undo llama.cpp's row order of q and k.

    llama.cpp rotates neighbouring pairs (2i, 2i+1), Hugging Face the halves (i, i + d/2); so its converter
    moves row i + h d/2 of each head (h = 0, 1) to row 2i + h. Here the way back.
    """
    rows = weight.shape[0]
    return (
        weight.reshape(heads, rows // heads // 2, 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)
    )


def config_of(values: dict[str, Any], *, tied: bool) -> dict[str, Any]:
    """`config.json` of the GGUF's metadata."""
    hidden, heads = int(values["llama.embedding_length"]), int(values["llama.attention.head_count"])
    theta = float(values.get("llama.rope.freq_base", 10000.0))
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": int(values["tokenizer.ggml.bos_token_id"]),
        "dtype": "bfloat16",
        "eos_token_id": int(values["tokenizer.ggml.eos_token_id"]),
        "head_dim": int(values.get("llama.rope.dimension_count", hidden // heads)),
        "hidden_act": "silu",
        "hidden_size": hidden,
        "initializer_range": 0.041666666666666664,
        "intermediate_size": int(values["llama.feed_forward_length"]),
        "max_position_embeddings": int(values["llama.context_length"]),
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": heads,
        "num_hidden_layers": int(values["llama.block_count"]),
        "num_key_value_heads": int(values.get("llama.attention.head_count_kv", heads)),
        "pad_token_id": int(
            values.get("tokenizer.ggml.padding_token_id", values["tokenizer.ggml.eos_token_id"])
        ),
        # GGUF stores it in float32: 1e-5 comes as 9.999999747378752e-06
        "rms_norm_eps": float(f"{float(values['llama.attention.layer_norm_rms_epsilon']):.6g}"),
        # both forms: transformers 5 reads the first, everything older the second
        "rope_parameters": {"rope_theta": theta, "rope_type": "default"},
        "rope_theta": theta,
        "tie_word_embeddings": tied,
        "use_cache": True,
        "vocab_size": len(values["tokenizer.ggml.tokens"]),
    }


def _generation_config(values: dict[str, Any]) -> dict[str, Any]:
    config = config_of(values, tied=True)
    return {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}


def _write_tokenizer(values: dict[str, Any], folder: Path) -> None:
    """Byte-level BPE in which every digit is a token of its own, as the "smollm" pre-tokenizer has it."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    if values.get("tokenizer.ggml.pre") != "smollm":
        raise ModelError(f"expected the pre-tokenizer 'smollm', found {values.get('tokenizer.ggml.pre')!r}")
    tokens: list[str] = values["tokenizer.ggml.tokens"]
    kinds: list[int] = values["tokenizer.ggml.token_type"]
    merges = [(left, right) for left, _, right in (m.partition(" ") for m in values["tokenizer.ggml.merges"])]
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [t for t, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL]
    plain = [t for t, kind in zip(tokens, kinds, strict=True) if kind == _USER_DEFINED]
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t in plain])
    tokenizer.save(str(folder / "tokenizer.json"))

    def named(key: str) -> str:
        return tokens[int(values[f"tokenizer.ggml.{key}_token_id"])]

    _write_json(
        folder / "tokenizer_config.json",
        {
            "add_bos_token": False,
            "add_prefix_space": False,
            "bos_token": named("bos"),
            "clean_up_tokenization_spaces": False,
            "eos_token": named("eos"),
            "model_max_length": int(values["llama.context_length"]),
            "pad_token": named("padding"),
            # the class that takes tokenizer.json as it is; GPT2Tokenizer would build its own pre-tokenizer
            "tokenizer_class": "PreTrainedTokenizerFast",
            "unk_token": named("unknown"),
        },
    )
    (folder / "chat_template.jinja").write_text(values["tokenizer.chat_template"], encoding="utf-8")


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
