"""Tiles of attention for the backward pass, compiled: rows out of a pack, softmax and its gradient, sums put back.

Tiles are float32 [B rows, K key heads, R query heads of each, T places, ...]; `places` are where their rows lie in the
pack, -1 for padding. `first`, `last`: the range of B (or of what is said) that a call works on. Not here: products.
"""

from __future__ import annotations

import numpy as np

from broaden.kernels import Array, Scalar, narrow, reduction, strict, strict_inline, widen
from broaden.kernels.attention import largest, total_of
from broaden.kernels.mathfn import exp32

ONE, ZERO = np.float32(1.0), np.float32(0.0)


@strict_inline
def _rotated(x: Array, place: int, head: int, cos: Array, sin: Array, at: int, out: Array) -> None:
    half = out.shape[0] // 2
    for i in range(half):
        a, b = widen(x[place, head, i]), widen(x[place, head, half + i])
        out[i] = a * cos[at, i] - b * sin[at, i]
        out[half + i] = b * cos[at, i] + a * sin[at, i]


@strict
def gather(
    x: Array, places: Array, positions: Array, cos: Array, sin: Array, rotate: bool, first: int, last: int, out: Array,
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
                    else:
                        for i in range(row.shape[0]):
                            row[i] = widen(x[place, head, i])


@strict
def scatter_queries(
    source: Array, places: Array, positions: Array, cos: Array, sin: Array, rotate_back: bool,
    first: int, last: int, out: Array,
) -> None:  # fmt: skip
    """Inverse of `gather` for places that occur once: out [S, heads, d] in its own storage."""
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
def add_keys(source: Array, places: Array, first: int, last: int, out: Array) -> None:
    """out [S, K, d] += source [B, K, T, d] for the key heads first .. last."""
    for b in range(source.shape[0]):
        for k in range(first, last):
            for t in range(source.shape[2]):
                place = places[b, t]
                if place >= 0:
                    for i in range(source.shape[3]):
                        out[place, k, i] += source[b, k, t, i]


@strict
def finish_keys(
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
def _dot(x: Array, y: Array, n: int) -> Scalar:
    total = ZERO
    for j in range(n):
        total += x[j] * y[j]
    return total


@strict
def softmax(scores: Array, queries: Array, before: Array, scale: Scalar, first: int, last: int) -> None:
    """scores [B, K, R, T, N] become probabilities; zero beyond what a query sees, and for padding."""
    for b in range(first, last):
        for k in range(scores.shape[1]):
            for r in range(scores.shape[2]):
                for t in range(scores.shape[3]):
                    row, n = scores[b, k, r, t], before[b] + t + 1
                    if queries[b, t] < 0:
                        row[:] = ZERO
                        continue
                    top = largest(row, n)
                    for j in range(n):
                        row[j] = exp32((row[j] - top) * scale)
                    share = ONE / total_of(row, n)
                    for j in range(n):
                        row[j] *= share
                    for j in range(n, row.shape[0]):
                        row[j] = ZERO


@strict
def softmax_gradient(p: Array, d: Array, scale: Scalar, first: int, last: int) -> None:
    """d [B, K, R, T, N], the gradient of p, becomes that of the scores, in place."""
    for b in range(first, last):
        for k in range(p.shape[1]):
            for r in range(p.shape[2]):
                for t in range(p.shape[3]):
                    chance, row = p[b, k, r, t], d[b, k, r, t]
                    mean = _dot(chance, row, row.shape[0])
                    for j in range(row.shape[0]):
                        row[j] = chance[j] * (row[j] - mean) * scale
