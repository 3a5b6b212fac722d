"""What sampler and trainer both need of a row of logits, compiled once: both find one log-probability, bit for bit.

Logits are float32 or bfloat16 (uint16 bits). Not here: drawing (`engines.sampling`), gradients (`softmax_rows`).
"""

from __future__ import annotations

import numpy as np

from broaden.kernels import Array, Scalar, reduction, strict_inline, widen
from broaden.kernels.mathfn import exp32, ordered, unordered

BLOCK = 64  # logits in a partial sum
EXPONENT = np.uint32(0x7F800000)


@strict_inline
def largest(z: Array, row: int, n: int) -> Scalar:
    """The largest of a row's first n numbers."""
    top = ordered(widen(z[row, 0]))
    for i in range(n):
        top = max(top, ordered(widen(z[row, i])))
    return unordered(top)


@strict_inline
def not_finite(z: Array, row: int, n: int) -> Scalar:
    """Whether any of n stored numbers is infinite or NaN, from their exponent bits."""
    bad = np.uint32(0)
    for i in range(n):
        bad |= np.uint32((np.float32(widen(z[row, i])).view(np.uint32) & EXPONENT) == EXPONENT)
    return bad != np.uint32(0)


@strict_inline
def exponentials(z: Array, row: int, n: int, top: Scalar, inverse: Scalar, e: Array) -> None:
    """e[i] = exp((z[row, i] - top) * inverse) for the first n."""
    for i in range(n):
        e[i] = exp32((widen(z[row, i]) - top) * inverse)


@reduction
def _block_sum(e: Array, block: int) -> Scalar:
    total = 0.0
    for j in range(e.shape[1]):
        total += np.float64(e[block, j])
    return total


@strict_inline
def block_sums(e: Array, sums: Array) -> Scalar:
    """Sums of the blocks of e [blocks, BLOCK] in float64; returns their total, added in order."""
    total = 0.0
    for block in range(e.shape[0]):
        sums[block] = _block_sum(e, block)
        total += sums[block]
    return total


@reduction
def weighted(e: Array, z: Array, row: int, n: int, top: Scalar) -> Scalar:
    """sum_i e[i] (z[row, i] - top) in float64: what the entropy needs."""
    total = 0.0
    for i in range(n):
        total += np.float64(e[i] * (widen(z[row, i]) - top))
    return total
