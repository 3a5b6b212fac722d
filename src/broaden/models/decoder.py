"""The transformer as functions of (spec, weights): the full forward that trainers differentiate.

    h = E[ids];  h += O attn(rope(Q n1(h)), rope(K n1(h)), V n1(h));  h += D (silu(G n2(h)) * U n2(h));  logits = W n(h)

with n = RMSNorm. Norms and rotation are in float32, matrix products in the weights' dtype.
Rows are padded on the right: causal attention keeps padding from every real token, so there is no mask.
Not here: log-probabilities in chunks (`logprobs`); caches, sampling, members (`engines`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from broaden.errors import ModelError, UsageError
from broaden.models.spec import ModelSpec

Weights = Mapping[str, Tensor]


def inverse_frequencies(spec: ModelSpec) -> Tensor:
    """Rotary frequencies, float32 [head_dim / 2]: theta^(-2i / head_dim), stretched by the spec's scaling.

    llama3 (transformers' rule): wavelengths longer than original / low are divided by `factor`, shorter than
    original / high are kept, and those between are blended linearly in original / wavelength.
    """
    exponent = torch.arange(0, spec.head_dim, 2, dtype=torch.int64).to(torch.float32) / spec.head_dim
    plain = 1.0 / (spec.rope_theta**exponent)
    scaling = spec.rope_scaling
    if scaling is None:
        return plain
    if scaling.kind == "linear":
        return plain / scaling.factor
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    wavelength = 2 * math.pi / plain
    slow = torch.where(wavelength > scaling.original_positions / low, plain / scaling.factor, plain)
    blend = (scaling.original_positions / wavelength - low) / (high - low)
    blended = (1 - blend) * slow / scaling.factor + blend * slow
    between = (wavelength >= scaling.original_positions / high) & (
        wavelength <= scaling.original_positions / low
    )
    return torch.where(between, blended, slow)


def rope_tables(spec: ModelSpec, positions: int, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
    """(cos, sin) of position * frequency, float32 [positions, head_dim / 2]; the two halves share them."""
    angle = torch.outer(torch.arange(positions, dtype=torch.float32), inverse_frequencies(spec))
    return angle.cos().to(device), angle.sin().to(device)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of x [..., head_dim] by cos, sin [..., head_dim / 2] (halves, not pairs), in float32."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis, in float32, rounded once to x's dtype."""
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.float()).to(x.dtype)


def forward(spec: ModelSpec, weights: Weights, ids_BT: Tensor, *, checkpoint_layers: bool = False) -> Tensor:
    """Final normed hidden states [B, T, hidden] of right-padded token ids [B, T] (int64).

    Args:
        weights: by canonical name; their dtype is the dtype of the arithmetic.
        checkpoint_layers: recompute each layer in the backward pass instead of keeping its activations.

    Raises:
        ModelError: family "other". UsageError: T above the model's positions.
    """
    if spec.family == "other":
        raise ModelError(f"no own forward for this model: {spec.unsupported}")
    length = ids_BT.shape[1]
    if length > spec.max_positions:
        raise UsageError(f"a row of {length} tokens, but the model has {spec.max_positions} positions")
    cos, sin = rope_tables(spec, length, ids_BT.device)
    h = F.embedding(ids_BT, weights["model.embed_tokens.weight"])
    for index in range(spec.layers):
        if checkpoint_layers and torch.is_grad_enabled():
            h = checkpoint(layer, spec, weights, index, h, cos, sin, use_reentrant=False)
        else:
            h = layer(spec, weights, index, h, cos, sin)
    return rms_norm(h, weights["model.norm.weight"], spec.norm_eps)


def layer(spec: ModelSpec, weights: Weights, index: int, h: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """One block: h [B, T, hidden] -> h + attention + MLP."""
    prefix = f"model.layers.{index}."
    h = h + _attention(spec, weights, prefix, rms_norm(h, weights[prefix + "input_layernorm.weight"], spec.norm_eps),
                       cos, sin)  # fmt: skip
    x = rms_norm(h, weights[prefix + "post_attention_layernorm.weight"], spec.norm_eps)
    gate, up = _project(weights, prefix + "mlp.gate_proj", x), _project(weights, prefix + "mlp.up_proj", x)
    return h + _project(weights, prefix + "mlp.down_proj", F.silu(gate) * up)


def _attention(spec: ModelSpec, weights: Weights, prefix: str, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Causal grouped-query attention of normed x [B, T, hidden]."""
    rows, length, _ = x.shape
    q, k, v = (
        _project(weights, f"{prefix}self_attn.{name}_proj", x).view(rows, length, -1, spec.head_dim)
        for name in "qkv"
    )
    if spec.qk_norm:
        q = rms_norm(q, weights[prefix + "self_attn.q_norm.weight"], spec.norm_eps)
        k = rms_norm(k, weights[prefix + "self_attn.k_norm.weight"], spec.norm_eps)
    q, k = rotate(q, cos[:, None], sin[:, None]), rotate(k, cos[:, None], sin[:, None])
    grouped = spec.heads != spec.kv_heads
    mixed = F.scaled_dot_product_attention(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True, enable_gqa=grouped
    )
    return _project(weights, prefix + "self_attn.o_proj", mixed.transpose(1, 2).reshape(rows, length, -1))


def _project(weights: Weights, name: str, x: Tensor) -> Tensor:
    return F.linear(x, weights[name + ".weight"], weights.get(name + ".bias"))


def head_weight(spec: ModelSpec, weights: Weights) -> Tensor:
    """The output matrix [vocab, hidden]: the embedding where tied."""
    return weights["model.embed_tokens.weight" if spec.tied else "lm_head.weight"]


def logits(spec: ModelSpec, weights: Weights, hidden: Tensor) -> Tensor:
    """Next-token logits [..., vocab] of normed hidden states [..., hidden], in the weights' dtype."""
    return F.linear(hidden, head_weight(spec, weights))
