"""The low-rank members' own part of a product, compiled: row by row over the row's exact width.

Stored numbers are float32 or bfloat16 (as uint16 bits), factors int16; arithmetic is float32 and each output is
rounded once. Not here: which factors (`lowrank`).
"""

from __future__ import annotations

import numpy as np

from broaden.engines.runner import Ints
from broaden.kernels import Array, Scalar, narrow, reduction, strict, strict_inline, widen


@reduction
def _dot(x: Array, b: Array) -> Scalar:
    total = np.float32(0.0)
    for i in range(x.shape[0]):
        total += widen(x[i]) * np.float32(b[i])
    return total


@strict_inline
def _add_one(y: Array, t: Scalar, a: Array) -> None:
    """y += t a."""
    for i in range(y.shape[0]):
        y[i] = narrow(widen(y[i]) + t * np.float32(a[i]), y[i])


@strict_inline
def _add_ranks(y: Array, t: Array, a: Array, low: int, high: int, total: Array) -> None:
    """y += sum_k t_k a[k, low:high], rounded once."""
    n = y.shape[0]
    for i in range(n):
        total[i] = widen(y[i])
    for k in range(t.shape[0]):
        row, weight = a[k, low:high], t[k]
        for i in range(n):
            total[i] += weight * np.float32(row[i])
    for i in range(n):
        y[i] = narrow(total[i], y[i])


@strict
def correct(x: Array, y: Array, a: Array, b: Array, bounds: Ints, scale: Array, each: int) -> None:
    """y[row, from:to] += scale_m sum_k (x[row] . b[m, s, k]) a[m, k, from:to] for each part s of the outputs.

    x [rows, in], y [rows, out]; a int16 [N, r, out]; b int16 [N, parts, r, in]; bounds int64 [parts, 2]; scale float32
    [N]; `each` rows belong to a member.
    """
    rank = a.shape[1]
    t = np.empty(rank, np.float32)
    total = np.empty(y.shape[1] if rank > 1 else 1, np.float32)
    for row in range(x.shape[0]):
        m = row // each
        for s in range(bounds.shape[0]):
            low, high = bounds[s, 0], bounds[s, 1]
            for k in range(rank):
                t[k] = scale[m] * _dot(x[row], b[m, s, k])
            if rank == 1:
                _add_one(y[row, low:high], t[0], a[m, 0, low:high])
            else:
                _add_ranks(y[row, low:high], t, a[m], low, high, total)


@strict
def correct_rows(h: Array, ids: Ints, a: Array, b: Array, scale: Array, each: int) -> None:
    """h[row] += scale_m sum_k a[m, k, id] b[m, k] (an id below 0: padding, left alone).

    h [rows, H]; ids int64 [rows]; a int16 [N, r, V]; b int16 [N, r, H].
    """
    rank = a.shape[1]
    t = np.empty(rank, np.float32)
    total = np.empty(h.shape[1], np.float32)
    for row in range(h.shape[0]):
        m = row // each
        if ids[row] < 0:
            continue
        for k in range(rank):
            t[k] = scale[m] * np.float32(a[m, k, ids[row]])
        if rank == 1:
            _add_one(h[row], t[0], b[m, 0])
        else:
            _add_ranks(h[row], t, b[m], 0, h.shape[1], total)
