"""exp in float32 by a polynomial, and maxima by integers: so that loops over them run in vector lanes."""

from __future__ import annotations

import numpy as np

from broaden.kernels import Scalar, strict_inline

LOG2E = np.float32(1.44269504088896341)
LN2_HIGH, LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
P0, P1, P2 = np.float32(1.9875691500e-4), np.float32(1.3981999507e-3), np.float32(8.3334519073e-3)
P3, P4, P5 = np.float32(4.1665795894e-2), np.float32(1.6666665459e-1), np.float32(5.0000001201e-1)
HALF, ONE, ZERO = np.float32(0.5), np.float32(1.0), np.float32(0.0)
LOWEST, HIGHEST = np.float32(-87.0), np.float32(88.0)
BIAS, MANTISSA = np.int32(127), np.int32(23)
SIGN, BELOW_SIGN = np.int32(31), np.int32(0x7FFFFFFF)


@strict_inline
def exp32(x: Scalar) -> Scalar:
    """e^x for finite float32 x, within 2 units in the last place; 0 below -87 (no denormals), at most e^88.

    x = n ln 2 + r with |r| <= ln 2 / 2, e^r by Cephes' degree-7 polynomial, 2^n through the exponent bits.
    """
    clipped = min(max(x, LOWEST), HIGHEST)
    n = np.floor(clipped * LOG2E + HALF)
    r = clipped - n * LN2_HIGH - n * LN2_LOW
    p = P0
    p = p * r + P1
    p = p * r + P2
    p = p * r + P3
    p = p * r + P4
    p = p * r + P5
    value = (p * r * r + r + ONE) * np.int32((np.int32(n) + BIAS) << MANTISSA).view(np.float32)
    return value if x >= LOWEST else ZERO


@strict_inline
def ordered(x: Scalar) -> Scalar:
    """An int32 for each float32, in the same order: a maximum over integers is vectorised, one over floats is not."""
    bits = np.float32(x).view(np.int32)
    return bits ^ ((bits >> SIGN) & BELOW_SIGN)


@strict_inline
def unordered(n: Scalar) -> Scalar:
    """Inverse of `ordered`."""
    return np.int32(n ^ ((n >> SIGN) & BELOW_SIGN)).view(np.float32)
