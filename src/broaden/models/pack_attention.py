"""Causal attention over a `Pack`, differentiable, on the CPU.

    o = softmax(q k^T / sqrt(d)) v,    q, k = rope(norm(x + bias)),    v = x + bias

The forward pass runs the sampler's own kernel over a cache of one layer, so that a row has the sampler's bits. The
backward pass makes the scores of a block of rows again, by products in float32 (keys and values as the cache holds
them), and sums over rows that share a prompt in float32. Of the softmax: ds = p (dp - sum_j p_j dp_j) / sqrt(d).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from broaden.kernels import Array, host, tiles
from broaden.kernels.attention import TILE, attend, copy_slots, value_width
from broaden.kernels.rows import over_rows
from broaden.models.pack import Block, Ints, Pack


@dataclass(slots=True)
class Context:
    """What the layers of a pass share: pack, rotary tables [positions, d / 2], the norms' eps, a cache of one layer."""

    pack: Pack
    cos: Tensor
    sin: Tensor
    eps: float
    cache: tuple[Tensor, Tensor] | None = field(default=None, init=False)

    def rotation(self) -> tuple[Ints, Array, Array]:
        """(position of every place, cos, sin) as arrays."""
        return self.pack.positions_S, host(self.cos), host(self.sin)

    def room(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of one layer for all runs of the pack, in the type of `like` [S, kv, d]; contents are old."""
        if self.cache is None:
            tiles_each = -(-len(self.cos) // TILE)
            outer, width = (len(self.pack.prompts_Q), like.shape[1], tiles_each), like.shape[2]
            self.cache = (
                like.new_zeros((*outer, width, TILE)),
                like.new_zeros((*outer, TILE, value_width(width))),
            )
        return self.cache


def sampler_attention(
    qkv: Tensor, k_like: Tensor, extras: tuple[Tensor, Tensor, Tensor], c: Context
) -> Tensor:
    """The engine's kernel over a pack: prompts first, each copied for its completions, then these.

    Args:
        qkv: [S, heads + 2 kv, d]. extras: bias [heads + 2 kv, d], q_norm [d], k_norm [d], empty where there is none.

    Returns:
        [S, heads, d]; zeros for padding.
    """
    pack = c.pack
    out = qkv.new_zeros((len(qkv), qkv.shape[1] - 2 * k_like.shape[1], qkv.shape[2]))
    keys, values = c.room(k_like)
    positions, cos, sin = c.rotation()
    bias, q_norm, k_norm = (host(e[None]) for e in extras)
    x, o, k, v, starts = host(qkv), host(out), host(keys), host(values), pack.starts_Q
    runs = np.repeat(np.arange(len(pack.prompts_Q)), np.diff(starts))

    def run(which: Ints) -> None:
        def some(first: int, last: int) -> None:
            for q in which[first:last]:
                part = slice(starts[q], starts[q + 1])
                attend(x[part], bias, q_norm, k_norm, len(x), c.eps, cos, sin, positions[part], runs[part], k, v, False,
                       o[part])  # fmt: skip

        over_rows(len(which), some, 1)

    run(np.flatnonzero(pack.prompts_Q < 0))
    targets = np.flatnonzero(pack.prompts_Q >= 0)
    if len(targets):
        sources = pack.prompts_Q[targets]
        for array in (k, v):
            flat = array.reshape(1, *array.shape[:3], -1)
            copy_slots(flat, flat, sources, targets, np.diff(starts)[sources])
        run(targets)
    return out


class Tile:
    """A block's queries, keys and values, float32 [B, kv, R or 1, T or N, d], and probabilities [B kv, R T, N]."""

    def __init__(
        self, block: Block, c: Context, q: Tensor, k: Tensor, v: Tensor, stored: torch.dtype
    ) -> None:
        self.block, self.rotation = block, c.rotation()
        self.rows, self.kv, self.d = len(block.first_B), k.shape[1], k.shape[2]
        self.group = q.shape[1] // self.kv
        self.scale = np.float32(1.0) / np.sqrt(np.float32(self.d))
        self.q = self.gather(q, self.group, block.queries_BT, rotate=True)
        self.k = self.gather(k, 1, block.keys_BK, rotate=True).to(stored).float()
        self.v = self.gather(v, 1, block.keys_BK)
        self.p = torch.bmm(self.flat(self.q), self.flat(self.k).transpose(1, 2))
        scores = self.wide(self.p)
        over_rows(
            self.rows,
            lambda a, b: tiles.softmax(scores, block.queries_BT, block.first_B, self.scale, a, b),
            1,
        )

    def gather(self, x: Tensor, group: int, places: Ints, rotate: bool = False) -> Tensor:
        """Rows of x [S, heads, d] at places, rotated by their positions where asked for."""
        out = torch.empty(self.rows, self.kv, group, places.shape[1], self.d)
        a, o = host(x), host(out)
        over_rows(self.rows, lambda i, j: tiles.gather(a, places, *self.rotation, rotate, i, j, o), 1)
        return out

    def scatter(self, x: Tensor, out: Tensor) -> None:
        """Gradients of rotated queries [B kv, R T, d] to those of the queries, out [S, heads, d]."""
        a, o, places = host(x.view(self.q.shape)), host(out), self.block.queries_BT
        over_rows(self.rows, lambda i, j: tiles.scatter_queries(a, places, *self.rotation, True, i, j, o), 1)

    def add_keys(self, x: Tensor, total: Tensor) -> None:
        """total [S, kv, d] += x [B kv, N, d] at the keys' places."""
        a, o, places = host(x.view(self.rows, self.kv, -1, self.d)), host(total), self.block.keys_BK
        over_rows(self.kv, lambda i, j: tiles.add_keys(a, places, i, j, o), 1)

    def score_gradient_(self, d_p: Tensor) -> None:
        """Overwrite the gradient of the probabilities with that of the scores."""
        p, d = self.wide(self.p), self.wide(d_p)
        over_rows(self.rows, lambda a, b: tiles.softmax_gradient(p, d, self.scale, a, b), 1)

    def flat(self, x: Tensor) -> Tensor:
        """[B kv, R T, d] of [B, kv, R, T, d]."""
        return x.view(self.rows * self.kv, -1, x.shape[-1])

    def wide(self, scores: Tensor) -> Array:
        """[B, kv, R, T, N] of [B kv, R T, N], as an array."""
        return host(scores).reshape(self.rows, self.kv, self.group, -1, scores.shape[-1])


def attention_gradients(
    d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, stored: torch.dtype, c: Context
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q [S, heads, d], k and v [S, kv, d] (after bias and norm, before the rotation), in their types."""
    d_q = torch.zeros_like(q)
    sum_k, sum_v = (torch.zeros(x.shape, dtype=torch.float32) for x in (k, v))
    for block in c.pack.blocks:
        tile = Tile(block, c, q, k, v, stored)
        d_o = tile.flat(tile.gather(d_out, tile.group, block.queries_BT))
        tile.add_keys(torch.bmm(tile.p.transpose(1, 2), d_o), sum_v)
        d_p = torch.bmm(d_o, tile.flat(tile.v).transpose(1, 2))
        tile.score_gradient_(d_p)
        tile.scatter(torch.bmm(d_p, tile.flat(tile.k)), d_q)
        tile.add_keys(torch.bmm(d_p.transpose(1, 2), tile.flat(tile.q)), sum_k)
    return d_q, _stored(sum_k, k, c, rotate_back=True), _stored(sum_v, v, c)


def _stored(total: Tensor, like: Tensor, c: Context, rotate_back: bool = False) -> Tensor:
    """A float32 sum [S, K, d] in the storage type of `like`; padding is left at zero."""
    out = torch.zeros_like(like)
    a, o, end = host(total), host(out), int(c.pack.starts_Q[-1])
    over_rows(end, lambda i, j: tiles.finish_keys(a, rotate_back, *c.rotation(), i, j, o))
    return out


class PackAttention(torch.autograd.Function):
    """(q [S, heads, d], k, v [S, kv, d], bias [heads + 2 kv, d], q_norm [d], k_norm [d], Context) -> o [S, heads, d].

    One type, float32 or bfloat16; bias and norms are empty where the model has none.
    """

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor, q_norm: Tensor, k_norm: Tensor, c: Context
    ) -> Tensor:
        ctx.save_for_backward(q, k, v, bias, q_norm, k_norm)
        ctx.context = c
        return sampler_attention(torch.cat((q, k, v), 1), k, (bias, q_norm, k_norm), c)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, *extras = ctx.saved_tensors
        d_out, c, stored = grads[0].contiguous(), ctx.context, q.dtype
        if not any(extra.numel() for extra in extras):
            return (*attention_gradients(d_out, q, k, v, stored, c), None, None, None, None)
        with torch.enable_grad():
            leaves = tuple(t.detach().requires_grad_() for t in ctx.saved_tensors)
            prepared = _prepared(leaves, c.eps)
        found = attention_gradients(
            d_out, prepared[0].detach(), prepared[1].detach(), prepared[2].detach(), stored, c
        )
        return (*torch.autograd.grad(prepared, leaves, found, allow_unused=True), None)


def _prepared(inputs: tuple[Tensor, ...], eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """norm(x + bias) of queries and keys and x + bias of values, in float32 (values rounded to their type)."""
    q, k, v, bias, q_norm, k_norm = inputs
    wide = [t.float() for t in (q, k, v)]
    if bias.numel():
        parts = bias.float().split([t.shape[1] for t in wide])
        wide = [t + b for t, b in zip(wide, parts, strict=True)]
    for at, weight in ((0, q_norm), (1, k_norm)):
        if weight.numel():
            scale = torch.rsqrt(wide[at].square().mean(-1, keepdim=True) + eps)
            wide[at] = wide[at] * scale * weight.float()
    return wide[0].contiguous(), wide[1].contiguous(), wide[2].to(v.dtype).float().contiguous()
