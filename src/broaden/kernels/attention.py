"""Rotary attention over the cache, compiled: one query a row, exact lengths, no mask.

    o = softmax(q K^T / sqrt(d)) V,   q, k = rope(norm(x + bias)),   over cached positions 0 .. the row's own

The same kernel serves prompts (rows of one sequence in order) and decoding. The query heads of a KV head are taken
together, HEADS at a time, so that a key or value is read and widened once for all of them. The cache lies in tiles
of TILE positions: keys [d, TILE], since scores are sums over d, values [TILE, d], since outputs are sums over
positions; each sum is made in that order and stays in a register. While one KV head is worked on, the tiles of the
next are fetched. Arithmetic is float32; stored numbers are float32 or bfloat16 (uint16 bits). Not here: the
projections (`compiled`).
"""

from __future__ import annotations

import numpy as np

from broaden.kernels import Array, Scalar, narrow, reduction, strict, strict_inline, widen
from broaden.kernels.mathfn import exp32, ordered, unordered
from broaden.kernels.simd import WIDTH, Vector, load, madd, prefetch, store, zeros

TILE = 2 * WIDTH  # positions in a tile of the cache
HEADS = 4  # query heads of a KV head taken at a time: with two vectors each, as many sums as additions are under way
LANES = 16  # the softmax runs to a multiple of this; what lies beyond the length weighs nothing
ONE, ZERO, NOTHING = np.float32(1.0), np.float32(0.0), np.float32(-1e30)


def value_width(width: int) -> int:
    """Numbers that a value of `width` dimensions takes in the cache: a multiple of two vectors, zeros at the end."""
    return -(-width // (2 * WIDTH)) * 2 * WIDTH


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
def _score(q: Array, first: int, k: Array, tile: int, ahead: int, scores: Array, at: int) -> None:
    """scores[first : first + HEADS, at : at + TILE] = q . k over a whole tile, read once for all these heads."""
    a0, a1, b0, b1, c0, c1, d0, d1 = zeros(), zeros(), zeros(), zeros(), zeros(), zeros(), zeros(), zeros()
    for i in range(k.shape[1]):
        prefetch(k, ahead, i, 0)
        x, y = load(k, tile, i, 0), load(k, tile, i, WIDTH)
        a, b, c, d = q[first, i], q[first + 1, i], q[first + 2, i], q[first + 3, i]
        a0, a1 = madd(x, a, a0), madd(y, a, a1)
        b0, b1 = madd(x, b, b0), madd(y, b, b1)
        c0, c1 = madd(x, c, c0), madd(y, c, c1)
        d0, d1 = madd(x, d, d0), madd(y, d, d1)
    _store(a0, a1, scores, first, at)
    _store(b0, b1, scores, first + 1, at)
    _store(c0, c1, scores, first + 2, at)
    _store(d0, d1, scores, first + 3, at)


@strict_inline
def _store(x: Vector, y: Vector, out: Array, row: int, at: int) -> None:
    store(x, out, row, at)
    store(y, out, row, at + WIDTH)


@strict_inline
def largest(x: Array, n: int) -> Scalar:
    """The largest of the first n numbers."""
    top = ordered(x[0])
    for j in range(n):
        top = max(top, ordered(x[j]))
    return unordered(top)


@reduction
def total_of(x: Array, n: int) -> Scalar:
    """The sum of the first n numbers."""
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
    top = largest(scores, padded)
    for t in range(padded):
        scores[t] = exp32((scores[t] - top) * scale)
    return ONE / total_of(scores, padded)


@strict_inline
def _mix(
    p: Array, first: int, v: Array, start: int, ahead: int, ready: int, length: int, at: int, out: Array
) -> None:
    """out[first : first + HEADS, at : at + 2 WIDTH] = p V over `length` positions of the tiles from `start`."""
    a0, a1, b0, b1, c0, c1, d0, d1 = zeros(), zeros(), zeros(), zeros(), zeros(), zeros(), zeros(), zeros()
    for tile in range((length + TILE - 1) // TILE):
        later = ahead + tile if tile < ready else start + tile
        for j in range(min(TILE, length - tile * TILE)):
            prefetch(v, later, j, at)
            x, y = load(v, start + tile, j, at), load(v, start + tile, j, at + WIDTH)
            t = tile * TILE + j
            a, b, c, d = p[first, t], p[first + 1, t], p[first + 2, t], p[first + 3, t]
            a0, a1 = madd(x, a, a0), madd(y, a, a1)
            b0, b1 = madd(x, b, b0), madd(y, b, b1)
            c0, c1 = madd(x, c, c0), madd(y, c, c1)
            d0, d1 = madd(x, d, d0), madd(y, d, d1)
    _store(a0, a1, out, first, at)
    _store(b0, b1, out, first + 1, at)
    _store(c0, c1, out, first + 2, at)
    _store(d0, d1, out, first + 3, at)


@strict_inline
def _attend_group(
    q: Array, group: int, k: Array, v: Array, start: int, length: int, ahead: int, ready: int,
    scores: Array, shares: Array, out: Array,
) -> None:  # fmt: skip
    """out[h] = softmax(q[h] K^T / sqrt(d)) V for the query heads of one KV head, over `length` positions from `start`.

    `ready` tiles from `ahead` belong to whatever comes next: they are fetched meanwhile.
    """
    tiles = (length + TILE - 1) // TILE
    scale = ONE / np.sqrt(np.float32(k.shape[1]))
    for first in range(0, group, HEADS):
        for tile in range(tiles):
            later = ahead + tile if tile < ready else start + tile
            _score(q, first, k, start + tile, later, scores, tile * TILE)
    for h in range(group):
        shares[h] = _softmax(scores[h], length, scale)
    for first in range(0, group, HEADS):
        for at in range(0, v.shape[2], 2 * WIDTH):
            _mix(scores, first, v, start, ahead, ready, length, at, out)


@strict_inline
def _write(
    qkv: Array, row: int, heads: int, bias: Array, norm: Array, member: int, eps: Scalar,
    cos: Array, sin: Array, position: int, k: Array, v: Array, start: int, tiles: int, x: Array,
) -> None:  # fmt: skip
    """Put a row's keys and values at their position into its slot, whose tiles begin at `start`."""
    kv_heads, lane = (qkv.shape[1] - heads) // 2, position % TILE
    for head in range(kv_heads):
        into = start + head * tiles + position // TILE
        _prepare(qkv, row, heads + head, bias, norm, member, eps, cos, sin, position, x)
        for i in range(x.shape[0]):
            k[into, i, lane] = narrow(x[i], k[into, i, lane])
        source = heads + kv_heads + head
        for i in range(x.shape[0]):
            x[i] = widen(qkv[row, source, i])
        if bias.size:
            for i in range(x.shape[0]):
                x[i] += widen(bias[member, source, i])
        for i in range(x.shape[0]):
            v[into, lane, i] = narrow(x[i], v[into, lane, i])


@strict
def attend(
    qkv: Array, bias: Array, q_norm: Array, k_norm: Array, each: int, eps: Scalar,
    cos: Array, sin: Array, positions: Array, slots: Array,
    keys: Array, values: Array, write_only: bool, out: Array,
) -> None:  # fmt: skip
    """Write each row's key and value into its slot, then attend from position 0 to the row's own.

    qkv [rows, heads + 2 kv, d]; bias [members, heads + 2 kv, d] or empty; q_norm, k_norm [members, d] or empty;
    positions, slots int64 [rows] (position -1: a row of padding, left alone); keys [slots, kv, tiles, d, TILE], values
    [slots, kv, tiles, TILE, value_width(d)]; out [rows, heads, d]. Rows of one sequence come in the order of their
    positions. `write_only` stops after the cache is written.
    """
    rows, heads, width, kv_heads, tiles = (
        out.shape[0],
        out.shape[1],
        out.shape[2],
        keys.shape[1],
        keys.shape[2],
    )
    group, wide = heads // kv_heads, values.shape[4]
    most = (group + HEADS - 1) // HEADS * HEADS
    k, v = keys.reshape((-1, width, TILE)), values.reshape((-1, TILE, wide))
    x, q, mixed = (
        np.empty(width, np.float32),
        np.zeros((most, width), np.float32),
        np.empty((most, wide), np.float32),
    )
    scores, shares = np.zeros((most, tiles * TILE), np.float32), np.empty(group, np.float32)
    for row in range(rows):
        position, member, slot = positions[row], row // each, slots[row] * kv_heads * tiles
        if position < 0:
            continue
        _write(qkv, row, heads, bias, k_norm, member, eps, cos, sin, position, k, v, slot, tiles, x)
        for head in range(0 if write_only else kv_heads):
            for h in range(group):
                _prepare(qkv, row, head * group + h, bias, q_norm, member, eps, cos, sin, position, q[h])
            start = slot + head * tiles
            ahead, ready = start + tiles, position // TILE + 1
            if head + 1 == kv_heads:
                following = min(row + 1, rows - 1)
                ahead, ready = slots[following] * kv_heads * tiles, (positions[following] + TILE) // TILE
            _attend_group(q, group, k, v, start, position + 1, ahead, ready, scores, shares, mixed)
            for h in range(group):
                for i in range(width):
                    out[row, head * group + h, i] = narrow(
                        mixed[h, i] * shares[h], out[row, head * group + h, i]
                    )


@strict
def copy_slots(source: Array, target: Array, from_slots: Array, to_slots: Array, lengths: Array) -> None:
    """The tiles of the first `lengths` positions of slots, all layers: a shared prompt into a slot, or a slot moved.

    source, target [layers, slots, kv, tiles, numbers of a tile]; one array may be both where every `to` is at most its
    `from`. What a last tile holds beyond the length comes along, and is overwritten before it is read.
    """
    layers, _, kv_heads, _, size = source.shape
    for layer in range(layers):
        for index in range(from_slots.shape[0]):
            a, b = from_slots[index], to_slots[index]
            for head in range(kv_heads):
                for tile in range((lengths[index] + TILE - 1) // TILE):
                    for i in range(size):
                        target[layer, b, head, tile, i] = source[layer, a, head, tile, i]
