"""The row-wise parts of a decode step, compiled: residual + RMSNorm, SwiGLU, copies of cached positions.

A row is one token of one sequence. Each row is computed by itself and over its exact length, so what else is
in the batch cannot reach its bits, and the same kernel serves prompts and decoding. Stored numbers are
float32 or bfloat16 (as uint16 bits); arithmetic is float32. Not here: attention (`attention`), matrix products
(`compiled`).
"""

from __future__ import annotations

import numpy as np

from broaden.engines.jit import narrow, reduction, strict, widen
from broaden.engines.mathfn import exp32

ONE = np.float32(1.0)


@reduction
def _square_sum(x: np.ndarray, at: int, n: int) -> float:
    total = np.float32(0.0)
    for i in range(n):
        v = widen(x[at + i])
        total += v * v
    return total


@strict
def add_norm(
    h: np.ndarray, delta: np.ndarray, has_delta: bool, weight: np.ndarray, each: int, eps: float, out: np.ndarray
) -> None:
    """h += delta;  out = h / sqrt(mean(h^2) + eps) * weight[member].

    h, delta, out [rows, H] (stored numbers), weight [members, H]; `each` rows belong to a member.
    """
    rows, width = h.shape
    hf, df, wf, of = h.reshape(-1), delta.reshape(-1), weight.reshape(-1), out.reshape(-1)
    for row in range(rows):
        at, w = row * width, (row // each) * width
        if has_delta:
            for i in range(width):
                hf[at + i] = narrow(widen(hf[at + i]) + widen(df[at + i]), hf[at])
        scale = ONE / np.sqrt(_square_sum(hf, at, width) / np.float32(width) + np.float32(eps))
        for i in range(width):
            of[at + i] = narrow(widen(hf[at + i]) * scale * widen(wf[w + i]), of[at])


@strict
def swiglu(gate_up: np.ndarray, out: np.ndarray) -> None:
    """out = silu(gate) * up for gate_up [rows, 2 F] (gate first) and out [rows, F]."""
    rows, width = out.shape
    g, o = gate_up.reshape(-1), out.reshape(-1)
    for row in range(rows):
        a, b, c = row * 2 * width, row * 2 * width + width, row * width
        for i in range(width):
            x = widen(g[a + i])
            o[c + i] = narrow(x / (ONE + exp32(-x)) * widen(g[b + i]), o[c])


@strict
def copy_rows(
    source: np.ndarray, target: np.ndarray, from_slots: np.ndarray, to_slots: np.ndarray, lengths: np.ndarray
) -> None:
    """target[layer, to, :, :length] = source[layer, from, :, :length]; a shared prompt into a slot, or a slot moved.

    source, target [layers, slots, kv, capacity, d] (the same array is fine where every `to` <= its `from`).
    """
    layers, kv_heads, n = source.shape[0], source.shape[2], source.shape[4]
    for layer in range(layers):
        for i in range(from_slots.shape[0]):
            for head in range(kv_heads):
                for t in range(lengths[i]):
                    for j in range(n):
                        target[layer, to_slots[i], head, t, j] = source[layer, from_slots[i], head, t, j]
