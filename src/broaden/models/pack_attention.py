"""Causal attention over a `Pack`, differentiable, on the CPU: products by torch, the rest compiled.

    o = softmax(q k^T / sqrt(d)) v,    q, k rotated by their positions

A block's scores exist only while it is worked on; the backward pass makes them again. Arithmetic is float32 (keys are
rounded to the storage type after the rotation, as the engine's cache holds them), sums over rows that share a prompt
are taken in float32. Gradient of the softmax: ds = p (dp - sum_j p_j dp_j) / sqrt(d).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from broaden.jit import Array, Scalar, host, narrow, reduction, strict, strict_inline, widen
from broaden.jit.mathfn import exp32
from broaden.jit.rows import over_rows
from broaden.models.pack import Block, Ints

ONE, ZERO = np.float32(1.0), np.float32(0.0)


@strict_inline
def _rotated(x: Array, place: int, head: int, cos: Array, sin: Array, at: int, out: Array) -> None:
    half = out.shape[0] // 2
    for i in range(half):
        a, b = widen(x[place, head, i]), widen(x[place, head, half + i])
        out[i] = a * cos[at, i] - b * sin[at, i]
        out[half + i] = b * cos[at, i] + a * sin[at, i]


@strict
def _gather(
    x: Array, places: Array, positions: Array, cos: Array, sin: Array, rotate: bool, as_stored: bool,
    first: int, last: int, out: Array,
) -> None:  # fmt: skip
    """out [B, K, R, T, d] <- heads k R + r of x [S, heads, d] at places [B, T]; zeros where a place is -1."""
    for b in range(first, last):
        for k in range(out.shape[1]):
            for r in range(out.shape[2]):
                for t in range(out.shape[3]):
                    place, row = places[b, t], out[b, k, r, t]
                    if place < 0:
                        row[:] = ZERO
                        continue
                    head = k * out.shape[2] + r
                    if rotate:
                        _rotated(x, place, head, cos, sin, positions[place], row)
                        if as_stored:
                            for i in range(row.shape[0]):
                                row[i] = widen(narrow(row[i], x[place, head, i]))
                    else:
                        for i in range(row.shape[0]):
                            row[i] = widen(x[place, head, i])


@strict
def _scatter_queries(
    source: Array, places: Array, positions: Array, cos: Array, sin: Array, rotate_back: bool,
    first: int, last: int, out: Array,
) -> None:  # fmt: skip
    """Inverse of `_gather` for places that occur once: out [S, heads, d] in its own storage."""
    row = np.empty(source.shape[4], np.float32)
    for b in range(first, last):
        for k in range(source.shape[1]):
            for r in range(source.shape[2]):
                for t in range(source.shape[3]):
                    place, head = places[b, t], k * source.shape[2] + r
                    if place < 0:
                        continue
                    for i in range(row.shape[0]):
                        row[i] = source[b, k, r, t, i]
                    _write(row, rotate_back, cos, sin, positions[place], out, place, head)


@strict_inline
def _write(
    row: Array, rotate_back: bool, cos: Array, sin: Array, at: int, out: Array, place: int, head: int
) -> None:
    if not rotate_back:
        for i in range(row.shape[0]):
            out[place, head, i] = narrow(row[i], out[place, head, i])
        return
    half = row.shape[0] // 2
    for i in range(half):
        a, b, c, s = row[i], row[half + i], cos[at, i], sin[at, i]
        out[place, head, i] = narrow(a * c + b * s, out[place, head, i])
        out[place, head, half + i] = narrow(b * c - a * s, out[place, head, half + i])


@strict
def _add_keys(source: Array, places: Array, first: int, last: int, out: Array) -> None:
    """out [S, K, d] += source [B, K, T, d] for the key heads first .. last."""
    for b in range(source.shape[0]):
        for k in range(first, last):
            for t in range(source.shape[2]):
                place = places[b, t]
                if place >= 0:
                    for i in range(source.shape[3]):
                        out[place, k, i] += source[b, k, t, i]


@strict
def _finish_keys(
    total: Array,
    rotate_back: bool,
    positions: Array,
    cos: Array,
    sin: Array,
    first: int,
    last: int,
    out: Array,
) -> None:
    for place in range(first, last):
        for k in range(total.shape[1]):
            _write(total[place, k], rotate_back, cos, sin, positions[place], out, place, k)


@reduction
def _largest(x: Array, n: int) -> Scalar:
    top = x[0]
    for j in range(n):
        top = max(top, x[j])
    return top


@reduction
def _sum(x: Array, n: int) -> Scalar:
    total = ZERO
    for j in range(n):
        total += x[j]
    return total


@reduction
def _dot(x: Array, y: Array, n: int) -> Scalar:
    total = ZERO
    for j in range(n):
        total += x[j] * y[j]
    return total


@strict
def _softmax(scores: Array, queries: Array, before: Array, scale: Scalar, first: int, last: int) -> None:
    """scores [B, K, R, T, N] become probabilities; zero beyond what a query sees, and for padding."""
    for b in range(first, last):
        for k in range(scores.shape[1]):
            for r in range(scores.shape[2]):
                for t in range(scores.shape[3]):
                    row, n = scores[b, k, r, t], before[b] + t + 1
                    if queries[b, t] < 0:
                        row[:] = ZERO
                        continue
                    top = _largest(row, n)
                    for j in range(n):
                        row[j] = exp32((row[j] - top) * scale)
                    share = ONE / _sum(row, n)
                    for j in range(n):
                        row[j] *= share
                    for j in range(n, row.shape[0]):
                        row[j] = ZERO


@strict
def _softmax_gradient(p: Array, d: Array, scale: Scalar, first: int, last: int) -> None:
    """d [B, K, R, T, N], the gradient of p, becomes that of the scores, in place."""
    for b in range(first, last):
        for k in range(p.shape[1]):
            for r in range(p.shape[2]):
                for t in range(p.shape[3]):
                    chance, row = p[b, k, r, t], d[b, k, r, t]
                    mean = _dot(chance, row, row.shape[0])
                    for j in range(row.shape[0]):
                        row[j] = chance[j] * (row[j] - mean) * scale


class Rotation:
    """cos and sin [positions, d / 2] and the position of every place, as arrays."""

    def __init__(self, cos: Tensor, sin: Tensor, positions_S: Ints) -> None:
        self.cos, self.sin, self.positions = host(cos), host(sin), positions_S


class _Tile:
    """A block's queries, keys, values [B, K, R or 1, T or N, d] and probabilities [B, K, R, T, N], float32."""

    def __init__(self, block: Block, rotation: Rotation, q: Tensor, k: Tensor, v: Tensor) -> None:
        self.block, self.rotation = block, rotation
        self.rows, self.kv, self.d = len(block.first_B), k.shape[1], k.shape[2]
        self.group = q.shape[1] // self.kv
        self.scale = np.float32(1.0) / np.sqrt(np.float32(self.d))
        self.q = self.gather(q, self.group, block.queries_BT, rotate=True)
        self.k = self.gather(k, 1, block.keys_BK, rotate=True, as_stored=True)
        self.v = self.gather(v, 1, block.keys_BK)
        self.p = torch.bmm(self.flat(self.q), self.flat(self.k).transpose(1, 2))
        scores = self.wide(self.p)
        over_rows(
            self.rows,
            lambda a, b: _softmax(scores, block.queries_BT, block.first_B, self.scale, a, b),
            1,
        )

    def gather(
        self, x: Tensor, group: int, places: Ints, rotate: bool = False, as_stored: bool = False
    ) -> Tensor:
        out = torch.empty(self.rows, self.kv, group, places.shape[1], self.d)
        r, a, o = self.rotation, host(x), host(out)
        over_rows(
            self.rows,
            lambda i, j: _gather(a, places, r.positions, r.cos, r.sin, rotate, as_stored, i, j, o),
            1,
        )
        return out

    def scatter(self, x: Tensor, out: Tensor, rotate_back: bool = False) -> None:
        r, a, o = self.rotation, host(x.view(self.q.shape)), host(out)
        places = self.block.queries_BT
        over_rows(
            self.rows,
            lambda i, j: _scatter_queries(a, places, r.positions, r.cos, r.sin, rotate_back, i, j, o),
            1,
        )

    def add_keys(self, x: Tensor, total: Tensor) -> None:
        a, o = host(x.view(self.rows, self.kv, -1, self.d)), host(total)
        places = self.block.keys_BK
        over_rows(self.kv, lambda i, j: _add_keys(a, places, i, j, o), 1)

    def score_gradient_(self, d_p: Tensor) -> None:
        p, d = self.wide(self.p), self.wide(d_p)
        over_rows(self.rows, lambda a, b: _softmax_gradient(p, d, self.scale, a, b), 1)

    def flat(self, x: Tensor) -> Tensor:
        return x.view(self.rows * self.kv, -1, x.shape[-1])

    def wide(self, scores: Tensor) -> Array:
        return host(scores).reshape(self.rows, self.kv, self.group, -1, scores.shape[-1])


class PackAttention(torch.autograd.Function):
    """q [S, heads, d], k and v [S, kv, d] (float32 or bfloat16, not yet rotated) to o [S, heads, d]."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, blocks: tuple[Block, ...], rotation: Rotation
    ) -> Tensor:
        out = torch.empty_like(q)
        for block in blocks:
            tile = _Tile(block, rotation, q, k, v)
            tile.scatter(torch.bmm(tile.p, tile.flat(tile.v)), out)
        ctx.save_for_backward(q, k, v)
        ctx.blocks, ctx.rotation = blocks, rotation
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v = ctx.saved_tensors
        d_out = grads[0].contiguous()
        d_q = torch.empty_like(q)
        sum_k, sum_v = (torch.zeros(x.shape, dtype=torch.float32) for x in (k, v))
        r = ctx.rotation
        for block in ctx.blocks:
            tile = _Tile(block, r, q, k, v)
            d_o = tile.flat(tile.gather(d_out, tile.group, block.queries_BT))
            tile.add_keys(torch.bmm(tile.p.transpose(1, 2), d_o), sum_v)
            d_p = torch.bmm(d_o, tile.flat(tile.v).transpose(1, 2))
            tile.score_gradient_(d_p)
            tile.scatter(torch.bmm(d_p, tile.flat(tile.k)), d_q, rotate_back=True)
            tile.add_keys(torch.bmm(d_p.transpose(1, 2), tile.flat(tile.q)), sum_k)
        return d_q, _stored(sum_k, k, r, rotate_back=True), _stored(sum_v, v, r), None, None


def _stored(total: Tensor, like: Tensor, r: Rotation, rotate_back: bool = False) -> Tensor:
    """A float32 sum [S, K, d] in the storage type of `like`."""
    out = torch.empty_like(like)
    a, o = host(total), host(out)
    over_rows(len(a), lambda i, j: _finish_keys(a, rotate_back, r.positions, r.cos, r.sin, i, j, o))
    return out
