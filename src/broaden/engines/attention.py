"""Rotary attention over the cache, compiled: one query a row, exact lengths, no mask.

    o = softmax(q K^T / sqrt(d)) V,   q, k = rope(norm(x + bias)),   over cached positions 0 .. the row's own

The same kernel serves prompts (rows of one sequence in order) and decoding. Keys and values lie in tiles of TILE
positions, each [d, TILE], so that every inner loop runs along positions: it fills vector lanes whatever d is.
Arithmetic is float32; stored numbers are float32 or bfloat16 (uint16 bits). Not here: the projections (`compiled`).
"""

from __future__ import annotations

import numpy as np

from broaden.jit import Array, Scalar, narrow, reduction, strict, strict_inline, widen
from broaden.jit.mathfn import exp32

TILE = 64  # positions in a tile of the cache
DIMENSIONS = 4  # of a head taken at a time; its width must be a multiple
LANES = 16  # loops over positions run to a multiple of this; what lies beyond the length weighs nothing
ONE, ZERO, NOTHING = np.float32(1.0), np.float32(0.0), np.float32(-1e30)


@reduction
def _square_sum(x: Array, n: int) -> Scalar:
    total = ZERO
    for i in range(n):
        total += x[i] * x[i]
    return total


@strict_inline
def _prepare(
    x: Array, row: int, head: int, bias: Array, norm: Array, member: int, eps: Scalar,
    cos: Array, sin: Array, position: int, out: Array,
) -> None:  # fmt: skip
    """out = rope(norm(x + bias)) of one head at one position; an empty bias or norm is left out."""
    width, half = x.shape[2], x.shape[2] // 2
    for i in range(width):
        out[i] = widen(x[row, head, i])
    if bias.size:
        for i in range(width):
            out[i] += widen(bias[member, head, i])
    if norm.size:
        scale = ONE / np.sqrt(_square_sum(out, width) / np.float32(width) + np.float32(eps))
        for i in range(width):
            out[i] = out[i] * scale * widen(norm[member, i])
    for i in range(half):
        first, second = out[i], out[half + i]
        out[i] = first * cos[position, i] - second * sin[position, i]
        out[half + i] = second * cos[position, i] + first * sin[position, i]


@strict_inline
def _score(q: Array, k: Array, tile: int, n: int, scores: Array, block: int) -> None:
    """scores[block, :n] = q . k over the first n positions of a tile, four dimensions at a time."""
    for j in range(n):
        scores[block, j] = ZERO
    for i in range(0, q.shape[0], DIMENSIONS):
        q0, q1, q2, q3 = q[i], q[i + 1], q[i + 2], q[i + 3]
        for j in range(n):
            scores[block, j] += (q0 * widen(k[tile, i, j]) + q1 * widen(k[tile, i + 1, j])) + (
                q2 * widen(k[tile, i + 2, j]) + q3 * widen(k[tile, i + 3, j])
            )


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


@strict_inline
def _softmax(scores: Array, length: int, scale: Scalar) -> Scalar:
    """Scores become exp(scale * (score - max)), zero from `length` to the end of its lanes; returns 1 / sum."""
    padded = (length + LANES - 1) // LANES * LANES
    for t in range(length, padded):
        scores[t] = NOTHING
    top = _largest(scores, padded)
    for t in range(padded):
        scores[t] = exp32((scores[t] - top) * scale)
    return ONE / _sum(scores, padded)


@reduction
def _mix_four(
    p: Array, block: int, v: Array, tile: int, i: int, n: int
) -> tuple[Scalar, Scalar, Scalar, Scalar]:
    a, b, c, d = ZERO, ZERO, ZERO, ZERO
    for j in range(n):
        weight = p[block, j]
        a += weight * widen(v[tile, i, j])
        b += weight * widen(v[tile, i + 1, j])
        c += weight * widen(v[tile, i + 2, j])
        d += weight * widen(v[tile, i + 3, j])
    return a, b, c, d


@strict_inline
def _mix(p: Array, block: int, v: Array, tile: int, n: int, out: Array) -> None:
    """out += sum over n positions of p[block, j] v[tile, :, j], four dimensions at a time."""
    for i in range(0, out.shape[0], DIMENSIONS):
        a, b, c, d = _mix_four(p, block, v, tile, i, n)
        out[i] += a
        out[i + 1] += b
        out[i + 2] += c
        out[i + 3] += d


@strict_inline
def _attend_head(
    q: Array, scale: Scalar, k: Array, v: Array, start: int, length: int,
    scores: Array, out: Array,
) -> None:  # fmt: skip
    """out = softmax(scale q K^T) V over `length` positions of the tiles from `start`."""
    tiles = (length + TILE - 1) // TILE
    last = (length - (tiles - 1) * TILE + LANES - 1) // LANES * LANES
    for tile in range(tiles):
        _score(q, k, start + tile, last if tile == tiles - 1 else TILE, scores, tile)
    share = _softmax(scores.reshape(-1), length, scale)
    for i in range(out.shape[0]):
        out[i] = ZERO
    for tile in range(tiles):
        _mix(scores, tile, v, start + tile, last if tile == tiles - 1 else TILE, out)
    for i in range(out.shape[0]):
        out[i] *= share


@strict
def attend(
    qkv: Array, bias: Array, q_norm: Array, k_norm: Array, each: int, eps: Scalar,
    cos: Array, sin: Array, positions: Array, slots: Array,
    keys: Array, values: Array, write_only: bool, out: Array,
) -> None:  # fmt: skip
    """Write each row's key and value into its slot, then attend from position 0 to the row's own.

    qkv [rows, heads + 2 kv, d]; bias [members, heads + 2 kv, d] or empty; q_norm, k_norm [members, d] or empty;
    positions, slots int64 [rows] (position -1: a row of padding, left alone); keys, values [slots, kv, tiles, d, TILE]
    (finite everywhere); out [rows, heads, d]. Rows of one sequence come in the order of their positions. `write_only`
    stops after the cache is written.
    """
    heads, width, kv_heads, tiles = out.shape[1], out.shape[2], keys.shape[1], keys.shape[2]
    group = heads // kv_heads
    k, v = keys.reshape((-1, width, TILE)), values.reshape((-1, width, TILE))
    scores, q, mixed = (
        np.empty((tiles, TILE), np.float32),
        np.empty(width, np.float32),
        np.empty(width, np.float32),
    )
    scale = ONE / np.sqrt(np.float32(width))
    for row in range(qkv.shape[0]):
        position, member = positions[row], row // each
        if position < 0:
            continue
        for head in range(kv_heads):
            into, lane = (slots[row] * kv_heads + head) * tiles + position // TILE, position % TILE
            _prepare(qkv, row, heads + head, bias, k_norm, member, eps, cos, sin, position, q)
            source = heads + kv_heads + head
            for i in range(width):
                k[into, i, lane] = narrow(q[i], k[into, i, lane])
                value = widen(qkv[row, source, i])
                if bias.size:
                    value += widen(bias[member, source, i])
                v[into, i, lane] = narrow(value, v[into, i, lane])
        for head in range(0 if write_only else heads):
            _prepare(qkv, row, head, bias, q_norm, member, eps, cos, sin, position, q)
            _attend_head(
                q, scale, k, v, (slots[row] * kv_heads + head // group) * tiles, position + 1, scores, mixed
            )
            for i in range(width):
                out[row, head, i] = narrow(mixed[i], out[row, head, i])


@strict
def copy_slots(source: Array, target: Array, from_slots: Array, to_slots: Array, lengths: Array) -> None:
    """The first `lengths` positions of slots, all layers: a shared prompt into a slot, or a slot moved.

    source, target [layers, slots, kv, tiles, d, TILE]; one array may be both where every `to` is at most its `from`.
    """
    layers, _, kv_heads, _, width, _ = source.shape
    for layer in range(layers):
        for index in range(from_slots.shape[0]):
            a, b = from_slots[index], to_slots[index]
            for head in range(kv_heads):
                for at in range(0, lengths[index], TILE):
                    n, tile = min(TILE, lengths[index] - at), at // TILE
                    for i in range(width):
                        for j in range(n):
                            target[layer, b, head, tile, i, j] = source[layer, a, head, tile, i, j]
