"""The row-wise parts of a decode step, compiled: residual + RMSNorm, SwiGLU.

A row is one token of one sequence. Each row is computed by itself and over its exact length, so what else is
in the batch cannot reach its bits, and the same kernel serves prompts and decoding. Stored numbers are
float32 or bfloat16 (as uint16 bits); arithmetic is float32. Not here: attention (`attention`), matrix products
(`compiled`).
"""

from __future__ import annotations

import numpy as np

from broaden.kernels import Array, Scalar, narrow, reduction, strict, widen
from broaden.kernels.mathfn import exp32

ONE = np.float32(1.0)


@reduction
def square_sum(x: Array, row: int) -> Scalar:
    """Sum of squares of a row."""
    total = np.float32(0.0)
    for i in range(x.shape[1]):
        v = widen(x[row, i])
        total += v * v
    return total


@strict
def add_norm(
    h: Array, delta: Array, has_delta: bool, weight: Array, each: int, eps: Scalar, out: Array
) -> None:
    """h += delta;  out = h / sqrt(mean(h^2) + eps) * weight[member].

    h, delta, out [rows, H] (stored numbers), weight [members, H]; `each` rows belong to a member.
    """
    width = h.shape[1]
    for row in range(h.shape[0]):
        member = row // each
        if has_delta:
            for i in range(width):
                h[row, i] = narrow(widen(h[row, i]) + widen(delta[row, i]), h[row, i])
        scale = ONE / np.sqrt(square_sum(h, row) / np.float32(width) + np.float32(eps))
        for i in range(width):
            out[row, i] = narrow(widen(h[row, i]) * scale * widen(weight[member, i]), out[row, i])


@strict
def swiglu(gate_up: Array, out: Array) -> None:
    """out = silu(gate) * up for gate_up [rows, 2, F] and out [rows, F]."""
    for row in range(out.shape[0]):
        for i in range(out.shape[1]):
            x = widen(gate_up[row, 0, i])
            out[row, i] = narrow(x / (ONE + exp32(-x)) * widen(gate_up[row, 1, i]), out[row, i])
