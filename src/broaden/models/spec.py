"""What a decoder-only model is, in numbers: `ModelSpec`, read from a Hugging Face `config.json`.

Three families have a decode path of their own (llama, qwen2, qwen3: one block with options). Whatever is
not understood completely (sliding windows, other rotary scalings, other activations, quantised weights)
is family "other" with the reason in `unsupported`, and runs through transformers' `generate`.
Not here: weights (`checkpoint`) and the arithmetic (`decoder`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from broaden.errors import ModelError

Family = Literal["llama", "qwen2", "qwen3", "other"]
FAMILIES: tuple[Family, ...] = ("llama", "qwen2", "qwen3")
_MAX_POSITIONS = {"llama": 2048, "qwen2": 32768, "qwen3": 32768}  # transformers' defaults for an absent key


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How rotary frequencies are stretched: "linear" (all by `factor`) or "llama3" (only the slow ones)."""

    kind: Literal["linear", "llama3"]
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_positions: int = 8192


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Shapes and switches of a decoder-only transformer.

    Attributes:
        family: "other" where there is no own decode path; `unsupported` then says why.
        heads, kv_heads: query heads and key/value heads (`heads % kv_heads == 0`).
        qkv_bias: q, k and v projections have a bias; attention_bias: the output projection too.
        qk_norm: RMSNorm over each head's q and k before the rotation (qwen3).
        tied: the head is the embedding, and `lm_head.weight` does not exist.
    """

    family: Family
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    rope_theta: float = 10000.0
    rope_scaling: RopeScaling | None = None
    norm_eps: float = 1e-6
    tied: bool = False
    qkv_bias: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    max_positions: int = 2048
    unsupported: str = ""

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> ModelSpec:
        """Read a `config.json` (old and transformers-5 forms of the rotary parameters).

        Raises:
            ModelError: a key that every decoder has is missing, or the numbers contradict each other.
        """
        kind = str(config.get("model_type", ""))
        rope_theta, scaling, rope_reason = _rope(config)
        reason = _reason(config, kind) or rope_reason
        heads = _number(config, "num_attention_heads", optional=bool(reason))
        hidden = _number(config, "hidden_size", optional=bool(reason))
        bias = bool(config.get("attention_bias", False)) and kind != "qwen2"
        return cls(
            family=_family(kind, reason),
            layers=_number(config, "num_hidden_layers", optional=bool(reason)),
            hidden=hidden,
            heads=heads,
            kv_heads=int(config.get("num_key_value_heads") or heads),
            head_dim=_head_dim(config, kind, hidden, heads, bool(reason)),
            ffn=_number(config, "intermediate_size", optional=bool(reason)),
            vocab=_number(config, "vocab_size", optional=bool(reason)),
            rope_theta=rope_theta,
            rope_scaling=scaling,
            norm_eps=float(config.get("rms_norm_eps", 1e-6)),
            tied=bool(config.get("tie_word_embeddings", False)),
            qkv_bias=kind == "qwen2" or bias,
            attention_bias=bias,
            mlp_bias=kind == "llama" and bool(config.get("mlp_bias", False)),
            qk_norm=kind == "qwen3",
            max_positions=int(config.get("max_position_embeddings") or _MAX_POSITIONS.get(kind, 2048)),
            unsupported=reason,
        )

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every tensor by canonical name, in the order of the model (a tied head is absent).

        Raises ModelError for family "other", whose tensors only the checkpoint knows.
        """
        if self.family == "other":
            raise ModelError(f"the tensors of this architecture are not known: {self.unsupported}")
        out: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (self.vocab, self.hidden)}
        for layer in range(self.layers):
            out |= self._layer_shapes(f"model.layers.{layer}.")
        out["model.norm.weight"] = (self.hidden,)
        if not self.tied:
            out["lm_head.weight"] = (self.vocab, self.hidden)
        return out

    def _layer_shapes(self, prefix: str) -> dict[str, tuple[int, ...]]:
        width = {"q": self.heads * self.head_dim, "k": self.kv_width, "v": self.kv_width}
        out: dict[str, tuple[int, ...]] = {f"{prefix}input_layernorm.weight": (self.hidden,)}
        for name, rows in width.items():
            out[f"{prefix}self_attn.{name}_proj.weight"] = (rows, self.hidden)
            if self.qkv_bias:
                out[f"{prefix}self_attn.{name}_proj.bias"] = (rows,)
        out[f"{prefix}self_attn.o_proj.weight"] = (self.hidden, width["q"])
        if self.attention_bias:
            out[f"{prefix}self_attn.o_proj.bias"] = (self.hidden,)
        if self.qk_norm:
            out |= {f"{prefix}self_attn.{name}_norm.weight": (self.head_dim,) for name in "qk"}
        out[f"{prefix}post_attention_layernorm.weight"] = (self.hidden,)
        mlp = {
            "gate": (self.ffn, self.hidden),
            "up": (self.ffn, self.hidden),
            "down": (self.hidden, self.ffn),
        }
        for name, shape in mlp.items():
            out[f"{prefix}mlp.{name}_proj.weight"] = shape
            if self.mlp_bias:
                out[f"{prefix}mlp.{name}_proj.bias"] = shape[:1]
        return out

    @property
    def kv_width(self) -> int:
        """Numbers a token's keys (or values) take in one layer."""
        return self.kv_heads * self.head_dim

    @property
    def qkv_width(self) -> int:
        """Output width of the fused query, key and value projection."""
        return self.heads * self.head_dim + 2 * self.kv_width

    @property
    def parameters(self) -> int:
        """Number of weights (a tied head counted once)."""
        total = 0
        for shape in self.shapes().values():
            size = 1
            for extent in shape:
                size *= extent
            total += size
        return total


def _family(kind: str, reason: str) -> Family:
    for family in FAMILIES:
        if family == kind and not reason:
            return family
    return "other"


def _number(config: Mapping[str, Any], key: str, optional: bool) -> int:
    value = config.get(key)
    if value is None:
        if optional:
            return 0
        raise ModelError(f"the model's config has no {key}", "give a folder with a complete config.json")
    return int(value)


def _head_dim(config: Mapping[str, Any], kind: str, hidden: int, heads: int, optional: bool) -> int:
    given = config.get("head_dim")
    if given is not None:
        return int(given)
    if kind == "qwen3":
        return 128
    if heads and hidden % heads == 0:
        return hidden // heads
    if optional:
        return 0
    raise ModelError(
        f"hidden_size {hidden} is no multiple of num_attention_heads {heads}, and head_dim is not given"
    )


def _reason(config: Mapping[str, Any], kind: str) -> str:
    """Why there is no own decode path for this config ("" where there is one)."""
    if kind not in FAMILIES:
        return f"model_type {kind!r}"
    if config.get("quantization_config"):
        return "quantised weights"
    if config.get("hidden_act", "silu") not in ("silu", "swish"):
        return f"activation {config['hidden_act']!r}"
    if _slides(config, kind):
        return "sliding-window attention"
    heads, kv_heads = config.get("num_attention_heads"), config.get("num_key_value_heads")
    if heads and kv_heads and heads % kv_heads:
        return f"{heads} heads over {kv_heads} key/value heads"
    return ""


def _slides(config: Mapping[str, Any], kind: str) -> bool:
    """Whether any layer attends through a sliding window."""
    types = config.get("layer_types")
    if types:
        return any(t != "full_attention" for t in types)
    if kind == "llama" or not config.get("use_sliding_window") or config.get("sliding_window") is None:
        return False
    return int(config.get("max_window_layers", 0)) < int(config.get("num_hidden_layers", 0))


def _rope(config: Mapping[str, Any]) -> tuple[float, RopeScaling | None, str]:
    """(theta, scaling, reason it is not understood) from `rope_parameters` or `rope_theta`/`rope_scaling`."""
    given = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = float(given.get("rope_theta") or config.get("rope_theta") or 10000.0)
    kind = given.get("rope_type") or given.get("type") or "default"
    partial = given.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
    if partial not in (None, 1, 1.0):
        return theta, None, f"partial rotary factor {partial}"
    if kind == "default":
        return theta, None, ""
    if kind == "linear":
        return theta, RopeScaling("linear", float(given["factor"])), ""
    if kind == "llama3":
        original = (
            given.get("original_max_position_embeddings") or config.get("max_position_embeddings") or 8192
        )
        return theta, RopeScaling(
            "llama3", float(given["factor"]), float(given["low_freq_factor"]),
            float(given["high_freq_factor"]), int(original),
        ), ""  # fmt: skip
    return theta, None, f"rotary scaling {kind!r}"
