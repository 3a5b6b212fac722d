"""Keyed Gaussian noise as a pure function: the NumPy reference of every other path.

Element e of the noise with a 64-bit key k (flat index in C order):

    w_0 .. w_3 = Philox4x32-10(counter = (lo b, hi b, 0, 0), key = (lo k, hi k)),   b = e // 8
    h          = low half of w_j if e is even else high half of w_j,                j = (e mod 8) // 2
    eps_e      = table[h],   table[i] = Phi^-1((i + 1/2) / 65536) / rms,            float32, unit variance

Only integers and a look-up, so NumPy, Numba, PyTorch on any device and Triton (`triton_path`) give the
same bits, and a slice of a tensor has the slice of its noise. The tails end at 4.325 standard deviations.
Philox: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
Not here: weights (`members`, `update`) and fast paths (`kernels`, `torch_path`).
"""

from __future__ import annotations

import functools
import hashlib
import math
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from broaden.errors import ExactnessError, UsageError

NOISE_VERSION = "philox4x32-10/quantile-65536/1"
TABLE_SIZE = 1 << 16
TABLE_SHA256 = "8babbcaf96568f10165a1eab530c0e5c92d04de96761b6dbb3dadfa94baba37f"
BLOCK = 8
"""Normals in one Philox block: four 32-bit words, two halves each."""

MULTIPLIER_0, MULTIPLIER_1 = 0xD2511F53, 0xCD9E8D57
WEYL_0, WEYL_1 = 0x9E3779B9, 0xBB67AE85
ROUNDS = 10
MASK_32 = 0xFFFFFFFF

FIXED_BITS = 24
"""The update sums round(eps * 2**FIXED_BITS): every |entry| is below 2**27."""


@functools.lru_cache(maxsize=1)
def normal_table() -> NDArray[np.float32]:
    """The 65,536 standard-normal quantiles, normalised to unit variance: float32[65536], read-only.

    Raises:
        ExactnessError: this platform's arithmetic gives a table other than the pinned one.
    """
    inverse = NormalDist().inv_cdf
    quantiles = [inverse((i + 0.5) / TABLE_SIZE) for i in range(TABLE_SIZE)]
    rms = math.sqrt(math.fsum(q * q for q in quantiles) / TABLE_SIZE)
    table = np.array([q / rms for q in quantiles], dtype=np.float64).astype(np.float32)
    check_table(table)
    table.flags.writeable = False
    return table


def check_table(table: NDArray[np.float32]) -> None:
    """Raises ExactnessError unless the table's little-endian bytes have the pinned SHA-256."""
    found = hashlib.sha256(table.astype("<f4").tobytes()).hexdigest()
    if found != TABLE_SHA256:
        raise ExactnessError(
            f"the normal table computed here has SHA-256 {found}, expected {TABLE_SHA256}: noise would differ"
            " from that of other machines",
            fix="use a CPython whose float arithmetic is IEEE 754 double precision",
        )


@functools.lru_cache(maxsize=1)
def fixed_table() -> NDArray[np.int32]:
    """round(table * 2**24): int32[65536], read-only; what the update sums in 64-bit integers."""
    exact = np.ldexp(normal_table().astype(np.float64), FIXED_BITS)
    table: NDArray[np.int32] = np.rint(exact).astype(np.int32)
    table.flags.writeable = False
    return table


def scaled_table(sigma: float, sign: int = 1) -> NDArray[np.float32]:
    """t = float32(sigma * sign * table), the product taken in float64 and rounded once: float32[65536].

    Raises:
        UsageError: sigma is negative, infinite or NaN, or sign is not +1 or -1.
    """
    check_sigma(sigma)
    check_sign(sign)
    product = np.float64(sigma) * sign * normal_table().astype(np.float64)
    return product.astype(np.float32)


def check_sigma(sigma: float) -> None:
    """Raises UsageError unless sigma is in [0, 1e30]: finite, and so is sigma * eps in float32."""
    if not (math.isfinite(sigma) and 0.0 <= sigma <= 1e30):
        raise UsageError(f"sigma must be finite, from 0 to 1e30, not {sigma!r}", fix="set sigma, e.g. 1.5e-3")


def check_sign(sign: int) -> None:
    """Raises UsageError unless sign is +1 or -1 (the two members of an antithetic pair)."""
    if sign not in (1, -1):
        raise UsageError(f"a member's sign is +1 or -1, not {sign!r}")


def split_key(key: int) -> tuple[int, int]:
    """(low, high) 32-bit words of a 64-bit key. Raises UsageError outside [0, 2**64)."""
    if not 0 <= key < 1 << 64:
        raise UsageError(f"a noise key is an integer in [0, 2**64), not {key!r}", fix="use seeds.stream")
    return key & MASK_32, key >> 32


def philox(counter: NDArray[np.uint32], key: tuple[int, int]) -> NDArray[np.uint32]:
    """Philox4x32-10: counters (..., 4) under one key (low, high) to random words (..., 4)."""
    c0, c1, c2, c3 = (counter[..., j].astype(np.uint64) for j in range(4))
    k0, k1 = key
    mask, shift = np.uint64(MASK_32), np.uint64(32)
    for _ in range(ROUNDS):
        p0, p1 = c0 * np.uint64(MULTIPLIER_0), c2 * np.uint64(MULTIPLIER_1)
        c0, c1 = (p1 >> shift) ^ c1 ^ np.uint64(k0), p1 & mask
        c2, c3 = (p0 >> shift) ^ c3 ^ np.uint64(k1), p0 & mask
        k0, k1 = (k0 + WEYL_0) & MASK_32, (k1 + WEYL_1) & MASK_32
    return np.stack([c0, c1, c2, c3], axis=-1).astype(np.uint32)


def indices(key: int, start: int, count: int) -> NDArray[np.uint16]:
    """Table indices of elements start .. start + count - 1: uint16[count]."""
    if start < 0 or count < 0:
        raise UsageError(f"start and count of a slice of noise are not negative, got {start} and {count}")
    blocks = np.arange(start // BLOCK, -(-(start + count) // BLOCK), dtype=np.uint64)
    counter = np.zeros((blocks.size, 4), dtype=np.uint32)
    counter[:, 0] = (blocks & np.uint64(MASK_32)).astype(np.uint32)
    counter[:, 1] = (blocks >> np.uint64(32)).astype(np.uint32)
    words_B4 = philox(counter, split_key(key))
    halves_B42 = np.stack([words_B4 & np.uint32(0xFFFF), words_B4 >> np.uint32(16)], axis=-1)
    skip = start % BLOCK
    return halves_B42.reshape(-1)[skip : skip + count].astype(np.uint16)


def normal(key: int, start: int, count: int) -> NDArray[np.float32]:
    """Elements start .. start + count - 1 of the standard normal noise of a key: float32[count]."""
    return normal_table()[indices(key, start, count)]
