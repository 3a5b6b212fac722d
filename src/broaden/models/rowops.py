"""RMSNorm and SwiGLU over rows, with their gradients, compiled: one pass each way, arithmetic in float32, rounded once.

    y = x r w,  r = (mean(x^2) + eps)^(-1/2)      dx = r (w dy) - x r^3 mean(x w dy)      dw = sum over rows of x r dy
    y = silu(g) u,  silu(g) = g s, s = 1 / (1 + exp(-g))     du = silu(g) dy     dg = u dy s (1 + g (1 - s))

On the CPU, float32 and bfloat16. For other devices: `decoder.rms_norm` and torch's silu.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from broaden.kernels import Array, Scalar, host, narrow, reduction, strict, widen
from broaden.kernels.mathfn import exp32
from broaden.kernels.rowmath import add_norm, square_sum
from broaden.kernels.rows import over_rows

ONE, ZERO = np.float32(1.0), np.float32(0.0)


@reduction
def _triple_dot(x: Array, w: Array, d: Array, row: int) -> Scalar:
    total = ZERO
    for i in range(x.shape[1]):
        total += widen(x[row, i]) * widen(w[i]) * widen(d[row, i])
    return total


@strict
def _norm_gradient(
    x: Array, w: Array, eps: Scalar, d: Array, first: int, last: int, scales: Array, out: Array
) -> None:
    for row in range(first, last):
        r = ONE / np.sqrt(square_sum(x, row) / np.float32(x.shape[1]) + np.float32(eps))
        scales[row] = r
        pull = r * r * r * (_triple_dot(x, w, d, row) / np.float32(x.shape[1]))
        for i in range(x.shape[1]):
            out[row, i] = narrow(r * (widen(w[i]) * widen(d[row, i])) - pull * widen(x[row, i]), out[row, i])


@strict
def _weight_gradient(x: Array, scales: Array, d: Array, total: Array) -> None:
    for row in range(x.shape[0]):
        r = scales[row]
        for i in range(x.shape[1]):
            total[i] += widen(x[row, i]) * r * widen(d[row, i])


class RmsNorm(torch.autograd.Function):
    """x [S, H], weight [H] of one dtype, eps -> [S, H]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        out = torch.empty_like(x)
        a, w, o = host(x), host(weight[None]), host(out)
        over_rows(len(x), lambda i, j: add_norm(a[i:j], a[i:j], False, w, len(a), eps, o[i:j]))
        ctx.save_for_backward(x, weight)
        ctx.eps = eps
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        d_y = grads[0].contiguous()
        d_x, d_w, scales = torch.empty_like(x), None, np.empty(len(x), np.float32)
        a, w, d, o = host(x), host(weight), host(d_y), host(d_x)
        over_rows(len(x), lambda i, j: _norm_gradient(a, w, ctx.eps, d, i, j, scales, o))
        if ctx.needs_input_grad[1]:
            total = torch.zeros(len(weight), dtype=torch.float32)
            _weight_gradient(a, scales, d, host(total))
            d_w = total.to(weight.dtype)
        return d_x, d_w, None


@strict
def _swiglu(g: Array, u: Array, first: int, last: int, out: Array) -> None:
    for row in range(first, last):
        for i in range(g.shape[1]):
            x = widen(g[row, i])
            out[row, i] = narrow(x / (ONE + exp32(-x)) * widen(u[row, i]), out[row, i])


@strict
def _swiglu_gradient(g: Array, u: Array, d: Array, first: int, last: int, d_g: Array, d_u: Array) -> None:
    for row in range(first, last):
        for i in range(g.shape[1]):
            x, y = widen(g[row, i]), widen(d[row, i])
            s = ONE / (ONE + exp32(-x))
            d_u[row, i] = narrow(x * s * y, d_u[row, i])
            d_g[row, i] = narrow(widen(u[row, i]) * y * s * (ONE + x * (ONE - s)), d_g[row, i])


class SwiGlu(torch.autograd.Function):
    """gate, up [S, F] of one dtype -> silu(gate) * up."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        out = torch.empty_like(gate)
        g, u, o = host(gate), host(up), host(out)
        over_rows(len(gate), lambda i, j: _swiglu(g, u, i, j, o))
        ctx.save_for_backward(gate, up)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        gate, up = ctx.saved_tensors
        d_gate, d_up = torch.empty_like(gate), torch.empty_like(up)
        g, u, d = host(gate), host(up), host(grads[0].contiguous())
        a, b = host(d_gate), host(d_up)
        over_rows(len(gate), lambda i, j: _swiglu_gradient(g, u, d, i, j, a, b))
        return d_gate, d_up
