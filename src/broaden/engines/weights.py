"""The weights of N members in fused buffers [N, out, in], with live views under canonical names.

q, k and v (and gate and up) share a matrix, so that a layer is four products; a view of one of them is a
range of its rows, hence contiguous, and noise drawn under the canonical name lands in the right slice.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from broaden.engines.base import Weights
from broaden.models.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class LayerBuffers:
    """One layer of all members; biases and norms that the model lacks are empty [N, 0]."""

    input_norm: Tensor  # [N, H]
    qkv: Tensor  # [N, (heads + 2 kv) d, H]
    qkv_bias: Tensor
    q_norm: Tensor  # [N, d]
    k_norm: Tensor
    output: Tensor  # [N, H, heads d]
    output_bias: Tensor
    mlp_norm: Tensor  # [N, H]
    gate_up: Tensor  # [N, 2 F, H]
    gate_up_bias: Tensor
    down: Tensor  # [N, H, F]
    down_bias: Tensor

    def members(self, part: slice) -> LayerBuffers:
        """The same buffers, a range of members (views)."""
        return LayerBuffers(*(getattr(self, name)[part] for name in self.__slots__))


@dataclass(frozen=True, slots=True)
class Buffers:
    """All weights of N members. A tied head is the embedding."""

    spec: ModelSpec
    embedding: Tensor  # [N, V, H]
    layers: tuple[LayerBuffers, ...]
    norm: Tensor  # [N, H]
    head: Tensor  # [N, V, H]

    @classmethod
    def allocate(cls, spec: ModelSpec, members: int, dtype: torch.dtype, device: torch.device) -> Buffers:
        """Zeroed buffers for `members` weight sets."""

        def new(*shape: int) -> Tensor:
            return torch.zeros((members, *shape), dtype=dtype, device=device)

        embedding = new(spec.vocab, spec.hidden)
        layers = tuple(
            LayerBuffers(
                input_norm=new(spec.hidden),
                qkv=new(spec.qkv_width, spec.hidden),
                qkv_bias=new(spec.qkv_width if spec.qkv_bias else 0),
                q_norm=new(spec.head_dim if spec.qk_norm else 0),
                k_norm=new(spec.head_dim if spec.qk_norm else 0),
                output=new(spec.hidden, spec.heads * spec.head_dim),
                output_bias=new(spec.hidden if spec.attention_bias else 0),
                mlp_norm=new(spec.hidden),
                gate_up=new(2 * spec.ffn, spec.hidden),
                gate_up_bias=new(2 * spec.ffn if spec.mlp_bias else 0),
                down=new(spec.hidden, spec.ffn),
                down_bias=new(spec.hidden if spec.mlp_bias else 0),
            )
            for _ in range(spec.layers)
        )
        head = embedding if spec.tied else new(spec.vocab, spec.hidden)
        return cls(spec, embedding, layers, new(spec.hidden), head)

    @property
    def count(self) -> int:
        """Members held."""
        return self.embedding.shape[0]

    def members(self, part: slice) -> Buffers:
        """The same buffers, a range of members (views)."""
        layers = tuple(b.members(part) for b in self.layers)
        return Buffers(self.spec, self.embedding[part], layers, self.norm[part], self.head[part])

    def views(self, member: int) -> Weights:
        """Contiguous live views of one member by canonical name."""
        out: Weights = {"model.embed_tokens.weight": self.embedding[member]}
        for index, buffers in enumerate(self.layers):
            out |= _layer_views(self.spec, buffers, f"model.layers.{index}.", member)
        out["model.norm.weight"] = self.norm[member]
        if not self.spec.tied:
            out["lm_head.weight"] = self.head[member]
        return {name: out[name] for name in self.spec.shapes()}


def _layer_views(spec: ModelSpec, b: LayerBuffers, prefix: str, member: int) -> Weights:
    """Views of one layer; those the model lacks are empty and left out by the caller."""
    q, kv = spec.heads * spec.head_dim, spec.kv_width
    qkv, gate_up = {"q": slice(0, q), "k": slice(q, q + kv), "v": slice(q + kv, q + 2 * kv)}, {
        "gate": slice(0, spec.ffn), "up": slice(spec.ffn, 2 * spec.ffn),
    }  # fmt: skip
    out: Weights = {
        "input_layernorm.weight": b.input_norm[member],
        "self_attn.q_norm.weight": b.q_norm[member],
        "self_attn.k_norm.weight": b.k_norm[member],
        "self_attn.o_proj.weight": b.output[member],
        "self_attn.o_proj.bias": b.output_bias[member],
        "post_attention_layernorm.weight": b.mlp_norm[member],
        "mlp.down_proj.weight": b.down[member],
        "mlp.down_proj.bias": b.down_bias[member],
    }
    for name, part in qkv.items():
        out[f"self_attn.{name}_proj.weight"] = b.qkv[member, part]
        out[f"self_attn.{name}_proj.bias"] = b.qkv_bias[member, part]
    for name, part in gate_up.items():
        out[f"mlp.{name}_proj.weight"] = b.gate_up[member, part]
        out[f"mlp.{name}_proj.bias"] = b.gate_up_bias[member, part]
    return {prefix + name: tensor for name, tensor in out.items()}
