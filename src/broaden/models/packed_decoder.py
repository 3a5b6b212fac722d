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
from broaden.kernels.softmax_rows import DTYPES
from broaden.models.decoder import rope_tables
from broaden.models.pack import Pack
from broaden.models.pack_attention import Context, PackAttention
from broaden.models.rowops import RmsNorm, SwiGlu
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
    context = Context(pack, *rope_tables(spec, length), spec.norm_eps)
    h = F.embedding(pack.ids_S, weights["model.embed_tokens.weight"])
    for index in range(spec.layers):
        if checkpoint_layers and torch.is_grad_enabled():
            h = checkpoint(_layer, spec, weights, index, h, context, use_reentrant=False)
        else:
            h = _layer(spec, weights, index, h, context)
    return _norm(h, weights["model.norm.weight"], spec)


def _layer(spec: ModelSpec, weights: Weights, index: int, h: Tensor, context: Context) -> Tensor:
    prefix = f"model.layers.{index}."
    x = _norm(h, weights[prefix + "input_layernorm.weight"], spec)
    h = h + _attention(spec, weights, prefix + "self_attn.", x, context)
    x = _norm(h, weights[prefix + "post_attention_layernorm.weight"], spec)
    gate, up = _project(weights, prefix + "mlp.gate_proj", x), _project(weights, prefix + "mlp.up_proj", x)
    return h + _project(weights, prefix + "mlp.down_proj", SwiGlu.apply(gate, up))


def _attention(spec: ModelSpec, weights: Weights, prefix: str, x: Tensor, context: Context) -> Tensor:
    q, k, v = (
        F.linear(x, weights[f"{prefix}{name}_proj.weight"]).view(len(x), -1, spec.head_dim) for name in "qkv"
    )
    none = x.new_empty(0)
    biases = [
        weights[n].view(-1, spec.head_dim) for n in (f"{prefix}{c}_proj.bias" for c in "qkv") if n in weights
    ]
    bias = torch.cat(biases) if biases else none.view(0, spec.head_dim)
    norms = [weights.get(f"{prefix}{name}_norm.weight", none) for name in "qk"]
    mixed = PackAttention.apply(q, k, v, bias, *norms, context)
    return _project(weights, prefix + "o_proj", mixed.view(len(x), -1))


def _norm(x: Tensor, weight: Tensor, spec: ModelSpec) -> Tensor:
    out: Tensor = RmsNorm.apply(x, weight, spec.norm_eps)
    return out


def _project(weights: Weights, name: str, x: Tensor) -> Tensor:
    """x W^T, then the bias in the weights' type: rounded as the engine rounds."""
    y = F.linear(x, weights[name + ".weight"])
    return y + weights[name + ".bias"] if name + ".bias" in weights else y
