"""The bits of `noise` and `kernels` with PyTorch integer operations, on any device with int64 and float64.

Products of two unsigned 32-bit words are taken in int64: wrapping multiplication keeps all 64 bits, and
`(p >> 32) & mask` is the high word whatever the sign. No `torch.add(alpha=)` or `addcmul`: a fused
multiply-add would give other bits.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from broaden.perturb import noise

MASK_32 = noise.MASK_32


def words(key: int, first: int, blocks: int, device: torch.device) -> Tensor:
    """Philox4x32-10 of blocks first .. first + blocks - 1: int64[blocks, 4], values in [0, 2**32)."""
    block = torch.arange(first, first + blocks, dtype=torch.int64, device=device)
    c0, c1 = block & MASK_32, (block >> 32) & MASK_32
    c2, c3 = torch.zeros_like(block), torch.zeros_like(block)
    k0, k1 = noise.split_key(key)
    for _ in range(noise.ROUNDS):
        p0, p1 = c0 * noise.MULTIPLIER_0, c2 * noise.MULTIPLIER_1
        c0, c1 = ((p1 >> 32) & MASK_32) ^ c1 ^ k0, p1 & MASK_32
        c2, c3 = ((p0 >> 32) & MASK_32) ^ c3 ^ k1, p0 & MASK_32
        k0, k1 = (k0 + noise.WEYL_0) & MASK_32, (k1 + noise.WEYL_1) & MASK_32
    return torch.stack([c0, c1, c2, c3], dim=-1)


def indices(key: int, start: int, count: int, device: torch.device) -> Tensor:
    """Table indices of elements start .. start + count - 1: int64[count]."""
    first = start // noise.BLOCK
    words_B4 = words(key, first, -(-(start + count) // noise.BLOCK) - first, device)
    halves_B42 = torch.stack([words_B4 & 0xFFFF, words_B4 >> 16], dim=-1)
    skip = start % noise.BLOCK
    return halves_B42.reshape(-1)[skip : skip + count]


@functools.lru_cache(maxsize=8)
def fixed_table(device: torch.device) -> Tensor:
    """`noise.fixed_table` on a device: int64[65536]."""
    return torch.from_numpy(noise.fixed_table().astype("int64")).to(device)


def write(theta: Tensor, out: Tensor, table: Tensor, key: int, start: int) -> None:
    """out = cast(theta + table[index]), flat tensors on one device; `table` float32[65536]."""
    out.copy_(theta + table[indices(key, start, theta.numel(), theta.device)])


def weighted_sum(
    coefficients: Sequence[int], keys: Sequence[int], start: int, count: int, device: torch.device
) -> Tensor:
    """sum_i C_i Z_i over members, exact: int64[count]."""
    total = torch.zeros(count, dtype=torch.int64, device=device)
    for coefficient, key in zip(coefficients, keys, strict=True):
        total += fixed_table(device)[indices(key, start, count, device)] * coefficient
    return total


def update(
    theta: Tensor, anchor: Tensor, total: Tensor, factor: float, decay: float
) -> tuple[float, float, int]:
    """theta += float32(factor * total - decay * (theta - anchor)); bits as in `kernels.update_float32`.

    Returns the same statistics, their sums but for rounding.
    """
    delta = total.to(torch.float64) * factor
    if decay != 0.0:
        pull = (theta.to(torch.float64) - anchor.to(torch.float64)) * decay
        delta = delta - pull
    step = delta.to(torch.float32)
    new = torch.where(step != 0.0, theta + step, theta)  # -0.0 + 0.0 would change a bit
    change = new.to(torch.float64) - theta.to(torch.float64)
    theta.copy_(new)
    return float(change.square().sum()), float(change.abs().amax()), int(torch.count_nonzero(change))


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _shift(x: Tensor, by: int) -> Tensor:
    return (x >> by) & ((1 << (64 - by)) - 1)


def checksum(bits: Tensor, start: int) -> int:
    """`kernels.checksum` of an integer tensor (any width) with PyTorch operations: in [0, 2**64)."""
    width = 8 * bits.element_size()
    unsigned = bits.to(torch.int64) & ((1 << width) - 1) if width < 64 else bits.to(torch.int64)
    place = torch.arange(start + 1, start + 1 + bits.numel(), dtype=torch.int64, device=bits.device)
    x = unsigned ^ (place * _signed(0x9E3779B97F4A7C15))
    x = (x ^ _shift(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shift(x, 27)) * _signed(0x94D049BB133111EB)
    return int((x ^ _shift(x, 31)).sum()) & ((1 << 64) - 1)
