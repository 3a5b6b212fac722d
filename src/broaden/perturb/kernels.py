"""Numba kernels for the CPU: Philox, table look-up and addition in one pass over the weights.

Same bits as `noise` (which is the reference). Every kernel is compiled without fast-math and keeps a
product and the sum that uses it in separate loops, so that nothing becomes a fused multiply-add; they
release the GIL, and `chunks` spreads them over threads (Numba's own `parallel=True` aborts when two
threads enter it). Arrays are flat; `start` is the element offset of the slice in its whole tensor.

Tiles of TILE elements keep the random words in L1. The limit is the look-up (256 KiB, in L2), not Philox.
Little-endian hosts only: the words' halves are read through a uint16 view (`backend` checks this).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

from broaden.perturb import noise

F = TypeVar("F", bound=Callable[..., Any])
Array = NDArray[Any]

TILE = 2048
_BLOCK = noise.BLOCK
_M0, _M1 = np.uint64(noise.MULTIPLIER_0), np.uint64(noise.MULTIPLIER_1)
_W0, _W1 = np.uint32(noise.WEYL_0), np.uint32(noise.WEYL_1)
_ROUNDS = noise.ROUNDS
_32 = np.uint64(32)
_ZERO = np.uint32(0)


def _kernel(function: F) -> F:
    return cast(F, numba.njit(nogil=True, cache=True)(function))


@_kernel
def fill_words(words: Array, first: Any, k0: Any, k1: Any) -> None:
    """Philox4x32-10 of blocks first, first + 1, ...: uint32[4 * blocks], block by block."""
    for b in range(words.shape[0] // 4):
        block = np.uint64(first) + np.uint64(b)
        c0, c1, c2, c3 = np.uint32(block), np.uint32(block >> _32), _ZERO, _ZERO
        r0, r1 = k0, k1
        for _ in range(_ROUNDS):
            p0 = np.uint64(c0) * _M0
            p1 = np.uint64(c2) * _M1
            c0, c1 = np.uint32(p1 >> _32) ^ c1 ^ r0, np.uint32(p1)
            c2, c3 = np.uint32(p0 >> _32) ^ c3 ^ r1, np.uint32(p0)
            r0, r1 = np.uint32(r0 + _W0), np.uint32(r1 + _W1)
        words[4 * b], words[4 * b + 1], words[4 * b + 2], words[4 * b + 3] = c0, c1, c2, c3


@_kernel
def write_float32(theta: Array, out: Array, table: Array, start: int, k0: Any, k1: Any) -> None:
    """out = theta + table[index]: one float32 addition an element."""
    words = np.empty((TILE + _BLOCK) // 2, np.uint32)
    index = words.view(np.uint16)
    skip = start % _BLOCK
    for tile in range(0, theta.shape[0], TILE):
        fill_words(words, (start + tile) // _BLOCK, k0, k1)
        for e in range(min(TILE, theta.shape[0] - tile)):
            out[tile + e] = theta[tile + e] + table[index[skip + e]]


@_kernel
def write_bfloat16(theta: Array, out: Array, table: Array, start: int, k0: Any, k1: Any) -> None:
    """out = bfloat16 bits (uint16, round to nearest even) of theta + table[index]."""
    words = np.empty((TILE + _BLOCK) // 2, np.uint32)
    index = words.view(np.uint16)
    total = np.empty(TILE, np.float32)
    bits = total.view(np.uint32)
    skip = start % _BLOCK
    for tile in range(0, theta.shape[0], TILE):
        count = min(TILE, theta.shape[0] - tile)
        fill_words(words, (start + tile) // _BLOCK, k0, k1)
        for e in range(count):
            total[e] = theta[tile + e] + table[index[skip + e]]
        for e in range(count):
            out[tile + e] = bfloat16_bits(bits[e])


@_kernel
def write_float16(theta: Array, out: Array, table: Array, start: int, k0: Any, k1: Any) -> None:
    """out = float16 bits (uint16, round to nearest even) of theta + table[index]."""
    words = np.empty((TILE + _BLOCK) // 2, np.uint32)
    index = words.view(np.uint16)
    total = np.empty(TILE, np.float32)
    bits = total.view(np.uint32)
    skip = start % _BLOCK
    for tile in range(0, theta.shape[0], TILE):
        count = min(TILE, theta.shape[0] - tile)
        fill_words(words, (start + tile) // _BLOCK, k0, k1)
        for e in range(count):
            total[e] = theta[tile + e] + table[index[skip + e]]
        for e in range(count):
            out[tile + e] = float16_bits(bits[e])


@_kernel
def bfloat16_bits(bits: Any) -> Any:
    """bfloat16 bits of a float32 given by its bits: to nearest, ties to even; NaN becomes 0x7FC0."""
    magnitude = bits & np.uint32(0x7FFFFFFF)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.uint16(0x7FC0) if magnitude > np.uint32(0x7F800000) else np.uint16(rounded)


@_kernel
def float16_bits(bits: Any) -> Any:
    """float16 bits of a float32 given by its bits: to nearest, ties to even, subnormals kept."""
    sign = np.uint32((bits >> np.uint32(16)) & np.uint32(0x8000))
    a = np.uint32(bits & np.uint32(0x7FFFFFFF))
    if a > np.uint32(0x7F800000):
        return np.uint16(sign | np.uint32(0x7E00))
    if a >= np.uint32(0x47800000):  # 65536 and more
        return np.uint16(sign | np.uint32(0x7C00))
    if a >= np.uint32(0x38800000):  # normal in float16: rebias the exponent by 112, round off 13 bits
        odd = (a >> np.uint32(13)) & np.uint32(1)
        return np.uint16(
            sign | np.uint32((a + np.uint32(0xFFF) + odd - np.uint32(112 << 23)) >> np.uint32(13))
        )
    exponent = np.int64(a >> np.uint32(23))
    if exponent < 102:  # below 2**-25: nearer to zero than to the smallest subnormal
        return np.uint16(sign)
    mantissa = np.int64(a & np.uint32(0x7FFFFF)) | np.int64(0x800000)
    shift = 126 - exponent
    quotient = mantissa >> shift
    rest, half = mantissa - (quotient << shift), np.int64(1) << (shift - 1)
    if rest > half or (rest == half and quotient & 1):
        quotient += 1
    return np.uint16(sign | np.uint32(quotient))


@_kernel
def update_float32(
    theta: Array,
    anchor: Array,
    fixed: Array,
    coefficients: Array,
    keys: Array,
    start: int,
    factor: float,
    decay: float,
) -> tuple[float, float, int]:
    """theta += float32(factor * sum_i C_i z_i - decay * (theta - anchor)), the sum exact in int64.

    Each weight is read once for all members. `coefficients` C is int64[N], `keys` uint32[N, 2], `fixed` the
    integer table; decay 0 leaves `anchor` unread. Returns (sum of squares, largest absolute value, count) of
    the changes made, float64.
    """
    words = np.empty((TILE + _BLOCK) // 2, np.uint32)
    index = words.view(np.uint16)
    total = np.empty(TILE, np.int64)
    delta = np.empty(TILE, np.float64)
    pull = np.empty(TILE, np.float64)
    skip = start % _BLOCK
    squares, largest, changed = 0.0, 0.0, 0
    for tile in range(0, theta.shape[0], TILE):
        count = min(TILE, theta.shape[0] - tile)
        total[:] = 0
        for i in range(coefficients.shape[0]):
            fill_words(words, (start + tile) // _BLOCK, keys[i, 0], keys[i, 1])
            coefficient = coefficients[i]
            for e in range(count):
                total[e] += coefficient * np.int64(fixed[index[skip + e]])
        for e in range(count):
            delta[e] = np.float64(total[e]) * factor
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


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


@_kernel
def checksum(bits: Array, start: int) -> Any:
    """sum over e of mix(bits_e ^ (start + e + 1) * odd) mod 2**64, splitmix64's finaliser as mix: uint64."""
    total = np.uint64(0)
    for e in range(bits.shape[0]):
        x = np.uint64(bits[e]) ^ (np.uint64(start + e + 1) * _GOLDEN)
        x = (x ^ (x >> np.uint64(30))) * _MIX_1
        x = (x ^ (x >> np.uint64(27))) * _MIX_2
        total += x ^ (x >> np.uint64(31))
    return total
