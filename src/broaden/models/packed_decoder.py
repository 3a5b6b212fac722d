"""The transformer over a `Pack`, for training on the CPU: the function of `decoder.forward`, prompts once a group.

Norms, SwiGLU and attention round where the engine's kernels do, so that the trainer's log-probabilities are the
sampler's up to the order of sums.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from broaden.errors import ModelError, UsageError
from broaden.models.decoder import rope_tables
from broaden.models.pack import Pack
from broaden.models.pack_attention import PackAttention, Rotation
from broaden.models.rowops import RmsNorm, SwiGlu
from broaden.models.softmax_rows import DTYPES
from broaden.models.spec import ModelSpec

Weights = Mapping[str, Tensor]


def packable(weights: Weights) -> bool:
    """Whether these weights can be passed here: on the CPU, in float32 or bfloat16."""
    first = next(iter(weights.values()))
    return first.device.type == "cpu" and first.dtype in DTYPES


def forward_packed(
    spec: ModelSpec, weights: Weights, pack: Pack, *, checkpoint_layers: bool = False
) -> Tensor:
    """Final normed hidden states [S, hidden] of a pack.

    Args:
        weights: by canonical name, all of one dtype, which is that of the products.
        checkpoint_layers: recompute each layer in the backward pass instead of keeping its activations.

    Raises:
        ModelError: family "other". UsageError: a position above the model's.
    """
    if spec.family == "other":
        raise ModelError(f"no own forward for this model: {spec.unsupported}")
    length = int(pack.positions_S.max()) + 1
    if length > spec.max_positions:
        raise UsageError(f"a row of {length} tokens, but the model has {spec.max_positions} positions")
    rotation = Rotation(*rope_tables(spec, length), pack.positions_S)
    h = F.embedding(pack.ids_S, weights["model.embed_tokens.weight"])
    for index in range(spec.layers):
        if checkpoint_layers and torch.is_grad_enabled():
            h = checkpoint(_layer, spec, weights, index, h, pack, rotation, use_reentrant=False)
        else:
            h = _layer(spec, weights, index, h, pack, rotation)
    return _norm(h, weights["model.norm.weight"], spec)


def _layer(
    spec: ModelSpec, weights: Weights, index: int, h: Tensor, pack: Pack, rotation: Rotation
) -> Tensor:
    prefix = f"model.layers.{index}."
    x = _norm(h, weights[prefix + "input_layernorm.weight"], spec)
    h = h + _attention(spec, weights, prefix + "self_attn.", x, pack, rotation)
    x = _norm(h, weights[prefix + "post_attention_layernorm.weight"], spec)
    gate, up = _project(weights, prefix + "mlp.gate_proj", x), _project(weights, prefix + "mlp.up_proj", x)
    return h + _project(weights, prefix + "mlp.down_proj", SwiGlu.apply(gate, up))


def _attention(
    spec: ModelSpec, weights: Weights, prefix: str, x: Tensor, pack: Pack, rotation: Rotation
) -> Tensor:
    q, k, v = (_project(weights, f"{prefix}{name}_proj", x).view(len(x), -1, spec.head_dim) for name in "qkv")
    if spec.qk_norm:
        q, k = (
            _head_norm(t, weights[f"{prefix}{name}_norm.weight"], spec) for name, t in (("q", q), ("k", k))
        )
    mixed = PackAttention.apply(q, k, v, pack.blocks, rotation)
    return _project(weights, prefix + "o_proj", mixed.view(len(x), -1))


def _head_norm(x: Tensor, weight: Tensor, spec: ModelSpec) -> Tensor:
    return _norm(x.reshape(-1, spec.head_dim), weight, spec).view(x.shape)


def _norm(x: Tensor, weight: Tensor, spec: ModelSpec) -> Tensor:
    out: Tensor = RmsNorm.apply(x, weight, spec.norm_eps)
    return out


def _project(weights: Weights, name: str, x: Tensor) -> Tensor:
    return F.linear(x, weights[name + ".weight"], weights.get(name + ".bias"))
