"""Numba loops of `lowrank`: factors by key, sums of outer products in int64, and adding such a sum to weights.

Same rules as `kernels`: no fast-math, a product and the sum that uses it apart where they are not integers, no GIL.
Little-endian hosts only (`lowrank` checks this).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

from broaden.perturb import noise
from broaden.perturb.kernels import TILE, fill_words

F = TypeVar("F", bound=Callable[..., Any])
Array = NDArray[Any]
_BLOCK = noise.BLOCK


def _kernel(function: F) -> F:
    return cast(F, numba.njit(nogil=True, cache=True)(function))


@_kernel
def fill_factors(out: Array, table: Array, start: int, k0: Any, k1: Any) -> None:
    """out = table[index of elements start, start + 1, ...]: int16."""
    words = np.empty((TILE + _BLOCK) // 2, np.uint32)
    index = words.view(np.uint16)
    skip = start % _BLOCK
    for tile in range(0, out.shape[0], TILE):
        fill_words(words, (start + tile) // _BLOCK, k0, k1)
        for e in range(min(TILE, out.shape[0] - tile)):
            out[tile + e] = table[index[skip + e]]


@_kernel
def _add_product(total: Array, right: Array, left: Any) -> None:
    """total += left * right."""
    for j in range(total.shape[0]):
        total[j] += left * np.int64(right[j])


@_kernel
def outer_sum(
    total: Array, table: Array, keys: Array, coefficients: Array, rank: int, width: int, start: int
) -> None:
    """total[e] = sum_m C_m sum_k A_m[row, k] B_m[column, k], row = (start + e) // width, column = (start + e) % width.

    total int64[count]; table int16[65536]; keys uint32[N, 4] (low and high word of A's key, then of B's); coefficients
    int64[N]. Exact while the sum of |C| * 2**29 * rank stays below 2**62.
    """
    members, count = coefficients.shape[0], total.shape[0]
    first = start // width
    rows = (start + count - 1) // width - first + 1
    a = np.empty((members, rows * rank), np.int16)
    b = np.empty((members, rank, width), np.int16)
    drawn = np.empty(width * rank, np.int16)
    for m in range(members):
        fill_factors(a[m], table, first * rank, keys[m, 0], keys[m, 1])
        fill_factors(drawn, table, 0, keys[m, 2], keys[m, 3])
        for k in range(rank):
            for i in range(width):
                b[m, k, i] = drawn[i * rank + k]
    total[:] = 0
    e, row, column = 0, 0, start - first * width
    while e < count:
        length = min(width - column, count - e)
        part = total[e : e + length]
        for m in range(members):
            for k in range(rank):
                left = coefficients[m] * np.int64(a[m, row * rank + k])
                _add_product(part, b[m, k, column : column + length], left)
        e, row, column = e + length, row + 1, 0


@_kernel
def apply_sum(
    theta: Array, anchor: Array, total: Array, factor: float, decay: float
) -> tuple[float, float, int]:
    """theta += float32(factor * total - decay * (theta - anchor)); bits and statistics as `kernels.update_float32`."""
    delta = np.empty(TILE, np.float64)
    pull = np.empty(TILE, np.float64)
    squares, largest, changed = 0.0, 0.0, 0
    for tile in range(0, theta.shape[0], TILE):
        count = min(TILE, theta.shape[0] - tile)
        for e in range(count):
            delta[e] = np.float64(total[tile + e]) * factor
        if decay != 0.0:
            for e in range(count):
                pull[e] = decay * (np.float64(theta[tile + e]) - np.float64(anchor[tile + e]))
            for e in range(count):
                delta[e] -= pull[e]
        for e in range(count):
            step = np.float32(delta[e])
            old = theta[tile + e]
            new = old + step if step != np.float32(0.0) else old  # -0.0 + 0.0 would change a bit
            theta[tile + e] = new
            delta[e] = np.float64(new) - np.float64(old)
        for e in range(count):
            squares += delta[e] * delta[e]
            largest = max(largest, abs(delta[e]))
            changed += delta[e] != 0.0
    return squares, largest, changed
