"""Rotary attention over the cache, compiled: one query a row, exact lengths, no mask.

    o = softmax(q K^T / sqrt(d)) V,   q, k = rope(norm(x + bias)),   over cached positions 0 .. the row's own

The same kernel serves prompts (rows of one sequence in order) and decoding. `attend_kernel(d)` compiles it for one
head width, since loops of known length are what the compiler turns into vector code. Arithmetic is float32; keys and
values are stored as float32 or bfloat16 (uint16 bits). Not here: the projections around it (`compiled`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from broaden.engines.jit import narrow, reduction, strict, widen
from broaden.engines.mathfn import exp32

LANES = 16  # scores are padded to a multiple of this
ONE, ZERO, NOTHING = np.float32(1.0), np.float32(0.0), np.float32(-1e30)


@reduction
def _largest(x: np.ndarray, blocks: int) -> float:
    top = x[0]
    for block in range(blocks):
        for j in range(LANES):
            top = max(top, x[block * LANES + j])
    return top


@reduction
def _sum(x: np.ndarray, blocks: int) -> float:
    total = ZERO
    for block in range(blocks):
        part = ZERO
        for j in range(LANES):
            part += x[block * LANES + j]
        total += part
    return total


@strict
def _softmax(scores: np.ndarray, length: int) -> float:
    """Scores become exp(score - max), with zeros up to a multiple of LANES; returns 1 / sum."""
    blocks = (length + LANES - 1) // LANES
    for t in range(length, blocks * LANES):
        scores[t] = NOTHING
    top = _largest(scores, blocks)
    for block in range(blocks):
        for j in range(LANES):
            scores[block * LANES + j] = exp32(scores[block * LANES + j] - top)
    return ONE / _sum(scores, blocks)


@cache
def attend_kernel(width: int) -> Callable[..., None]:
    """The kernel for heads of `width` numbers (even)."""
    half = width // 2

    @reduction
    def dot(q: np.ndarray, k: np.ndarray, at: int) -> float:
        total = ZERO
        for i in range(width):
            total += q[i] * widen(k[at, i])
        return total

    @reduction
    def square_sum(x: np.ndarray) -> float:
        total = ZERO
        for i in range(width):
            total += x[i] * x[i]
        return total

    @strict
    def prepare(
        x: np.ndarray, row: int, head: int, bias: np.ndarray, norm: np.ndarray, member: int, eps: float,
        cos: np.ndarray, sin: np.ndarray, position: int, out: np.ndarray,
    ) -> None:  # fmt: skip
        """out = rope(norm(x + bias)) of one head at one position; an empty bias or norm is left out."""
        for i in range(width):
            out[i] = widen(x[row, head, i])
        if bias.size:
            for i in range(width):
                out[i] += widen(bias[member, head, i])
        if norm.size:
            scale = ONE / np.sqrt(square_sum(out) / np.float32(width) + np.float32(eps))
            for i in range(width):
                out[i] = out[i] * scale * widen(norm[member, i])
        for i in range(half):
            first, second = out[i], out[half + i]
            out[i] = first * cos[position, i] - second * sin[position, i]
            out[half + i] = second * cos[position, i] + first * sin[position, i]

    @strict
    def mix(scores: np.ndarray, v: np.ndarray, start: int, length: int, acc: np.ndarray) -> None:
        """acc = sum_t scores[t] v[t], four positions at a time."""
        for i in range(width):
            acc[i] = ZERO
        fours = length // 4 * 4
        for t in range(0, fours, 4):
            at = start + t
            p0, p1, p2, p3 = scores[t], scores[t + 1], scores[t + 2], scores[t + 3]
            for i in range(width):
                acc[i] += (p0 * widen(v[at, i]) + p1 * widen(v[at + 1, i])) + (
                    p2 * widen(v[at + 2, i]) + p3 * widen(v[at + 3, i])
                )
        for t in range(fours, length):
            p = scores[t]
            for i in range(width):
                acc[i] += p * widen(v[start + t, i])

    @strict
    def attend(
        qkv: np.ndarray, bias: np.ndarray, q_norm: np.ndarray, k_norm: np.ndarray, each: int, eps: float,
        cos: np.ndarray, sin: np.ndarray, positions: np.ndarray, slots: np.ndarray,
        keys: np.ndarray, values: np.ndarray, write_only: bool, out: np.ndarray,
    ) -> None:  # fmt: skip
        """Write each row's key and value into its slot, then attend from position 0 to the row's own.

        qkv [rows, heads + 2 kv, d]; bias [members, heads + 2 kv, d] or empty; q_norm, k_norm [members, d] or empty;
        positions, slots int64 [rows] (position -1: a row of padding, left alone); keys, values
        [slots, kv, capacity, d]; out [rows, heads, d]. Rows of one sequence come in the order of their positions.
        `write_only` stops after the cache is written.
        """
        heads, kv_heads, capacity = out.shape[1], keys.shape[1], keys.shape[2]
        group = heads // kv_heads
        k, v = keys.reshape((-1, width)), values.reshape((-1, width))
        scores = np.empty(capacity + LANES, np.float32)
        q, acc = np.empty(width, np.float32), np.empty(width, np.float32)
        scale = ONE / np.sqrt(np.float32(width))
        for row in range(qkv.shape[0]):
            position, member = positions[row], row // each
            if position < 0:
                continue
            for head in range(kv_heads):
                into = (slots[row] * kv_heads + head) * capacity + position
                prepare(qkv, row, heads + head, bias, k_norm, member, eps, cos, sin, position, q)
                for i in range(width):
                    k[into, i] = narrow(q[i], k[into, i])
                source = heads + kv_heads + head
                for i in range(width):
                    q[i] = widen(qkv[row, source, i])
                if bias.size:
                    for i in range(width):
                        q[i] += widen(bias[member, source, i])
                for i in range(width):
                    v[into, i] = narrow(q[i], v[into, i])
            for head in range(0 if write_only else heads):
                prepare(qkv, row, head, bias, q_norm, member, eps, cos, sin, position, q)
                start, length = (slots[row] * kv_heads + head // group) * capacity, position + 1
                for t in range(length):
                    scores[t] = scale * dot(q, k, start + t)
                share = _softmax(scores, length)
                mix(scores, v, start, length, acc)
                for i in range(width):
                    out[row, head, i] = narrow(acc[i] * share, out[row, head, i])

    return attend
