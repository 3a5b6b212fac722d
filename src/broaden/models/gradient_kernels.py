"""AdamW's step, the norm of a gradient and its accumulation, compiled: one pass over CPU tensors, no temporaries."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from broaden.kernels import Array, Scalar, host, strict, summation, widen
from broaden.kernels.rows import over_rows

BLOCK = 1 << 16  # elements in a partial sum


@strict
def _step(
    w: Array, g: Array, m: Array, v: Array, first: int, last: int,
    scale: Scalar, beta1: Scalar, new1: Scalar, beta2: Scalar, new2: Scalar, eps: Scalar,
    decay: Scalar, rate1: Scalar, root2: Scalar,
) -> None:  # fmt: skip
    for i in range(first, last):
        x = g[i] * scale
        m[i] = beta1 * m[i] + new1 * x
        v[i] = beta2 * v[i] + new2 * (x * x)
        w[i] = w[i] * decay - rate1 * m[i] / (np.sqrt(v[i]) * root2 + eps)


@summation
def _squares(x: Array, first: int, last: int) -> Scalar:
    total = 0.0
    for i in range(first, last):
        value = np.float64(x[i])
        total += value * value
    return total


@strict
def _block_squares(x: Array, first: int, last: int, out: Array) -> None:
    for block in range(first, last):
        out[block] = _squares(x, block * BLOCK, min((block + 1) * BLOCK, x.shape[0]))


def adamw_step(
    w: Tensor, g: Tensor, m: Tensor, v: Tensor, *,
    scale: float, beta1: float, beta2: float, eps: float, decay: float, rate1: float, root2: float,
) -> None:  # fmt: skip
    """m, v and w in place:  w <- decay w - rate1 m / (root2 sqrt(v) + eps)  with m, v of scale * g."""
    x, y, first, second = (host(t).reshape(-1) for t in (w, g, m, v))
    by, b1, n1, b2, n2, e, keep, rate, root = (
        np.float32(number) for number in (scale, beta1, 1 - beta1, beta2, 1 - beta2, eps, decay, rate1, root2)
    )
    over_rows(
        x.size, lambda i, j: _step(x, y, first, second, i, j, by, b1, n1, b2, n2, e, keep, rate, root), BLOCK
    )


def square_sum(x: Tensor) -> float:
    """Sum of squares in float64, in blocks of a fixed size: the same for any number of threads."""
    array = host(x).reshape(-1)
    parts = np.empty(-(-array.size // BLOCK), np.float64)
    over_rows(len(parts), lambda a, b: _block_squares(array, a, b, parts), 1)
    return float(parts.sum())


@strict
def _add(total: Array, part: Array, first: int, last: int) -> None:
    for i in range(first, last):
        total[i] += widen(part[i])


def accumulate(total: Tensor, part: Tensor) -> None:
    """total += part for a float32 total and a float32 or bfloat16 part of its shape, without a copy of the part."""
    if total.device.type != "cpu" or part.dtype not in (torch.float32, torch.bfloat16):
        total.add_(part)
        return
    a, b = host(total).reshape(-1), host(part.contiguous()).reshape(-1)
    over_rows(a.size, lambda i, j: _add(a, b, i, j), BLOCK)
