"""Low-rank noise: E = A B^T / sqrt(r) for a matrix [out, in], as integers that every path sums exactly.

    A [out, r], B [in, r]:  a = Z / 2^12,  Z = round(2^12 table[index]),  |Z| < 2^15         (standard normal)
    E_oi = (1 / sqrt(r)) sum_k A_ok B_ik,      of rank exactly r, elements of unit variance

Indices are those of `noise` in C order, under two keys a member and matrix (`NoiseSpec.factor_keys`). A product of two
Z is an integer below 2^29, so that sums over ranks and members in int64 are exact, and neither their order nor
chunks, threads or workers can matter. Rounding the table to 2^-12 changes its variance by 1e-6; member and update
use the same rounded factors. Not here: what is summed (`members`, `update`), compiled loops (`lowrank_kernels`).

Source of the method: evolution strategies with low-rank members (EGGROLL), where sigma is scaled by 1 / sqrt(r).
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from broaden.perturb import lowrank_kernels, noise, torch_path

FACTOR_BITS = 12
"""Factors are multiples of 2**-FACTOR_BITS."""
PRODUCT_BITS = 29
"""Every product of two factors' integers is below 2**PRODUCT_BITS."""
CHUNK, DEVICE_CHUNK = 1 << 17, 1 << 22
"""Elements in a piece of work, on a CPU (in its cache) and elsewhere; each draws the factors that it needs."""

FactorKeys = tuple[int, int]
ChangeStats = tuple[float, float, int]
Sum = Callable[["Outer", int, int], Tensor]


@functools.lru_cache(maxsize=1)
def factor_table() -> NDArray[np.int16]:
    """Z = round(table * 2**12), ties to even: int16[65536], read-only."""
    table: NDArray[np.int16] = np.rint(np.ldexp(noise.normal_table().astype(np.float64), FACTOR_BITS)).astype(
        np.int16
    )
    table.flags.writeable = False
    return table


def factors(key: int, start: int, count: int) -> NDArray[np.int16]:
    """Integers Z of elements start .. start + count - 1 under a key: the NumPy reference, int16[count]."""
    return factor_table()[noise.indices(key, start, count)]


def scale_of(factor: float, rank: int) -> float:
    """What turns a sum of products of integers into factor * E: factor / sqrt(rank) / 2**24, in float64."""
    return math.ldexp(factor / math.sqrt(rank), -2 * FACTOR_BITS)


@dataclass(frozen=True, slots=True)
class Outer:
    """sum_m C_m sum_k A_m[o, k] B_m[i, k] over one matrix, by keys.

    Args:
        keys: (key of A, key of B) of each member.
        coefficients: integers C_m, such that the whole sum stays below 2**62.
        rank: r.
        width: columns of the matrix (in).
    """

    keys: tuple[FactorKeys, ...]
    coefficients: tuple[int, ...]
    rank: int
    width: int

    def rows(self, start: int, count: int) -> tuple[int, int]:
        """First row and number of rows that elements start .. start + count - 1 lie in."""
        first = start // self.width
        return first, (start + count - 1) // self.width - first + 1


def sum_numpy(outer: Outer, start: int, count: int) -> Tensor:
    """The reference: int64[count], the flat elements from `start`."""
    first, rows = outer.rows(start, count)
    total = np.zeros((rows, outer.width), np.int64)
    for (key_a, key_b), coefficient in zip(outer.keys, outer.coefficients, strict=True):
        a = factors(key_a, first * outer.rank, rows * outer.rank).reshape(rows, outer.rank)
        b = factors(key_b, 0, outer.width * outer.rank).reshape(outer.width, outer.rank)
        total += coefficient * (a.astype(np.int64) @ b.astype(np.int64).T)
    skip = start - first * outer.width
    return torch.from_numpy(total.reshape(-1)[skip : skip + count])


def sum_numba(outer: Outer, start: int, count: int) -> Tensor:
    """The same, compiled."""
    keys = np.array([[*noise.split_key(a), *noise.split_key(b)] for a, b in outer.keys], np.uint32).reshape(
        -1, 4
    )
    coefficients = np.array(outer.coefficients, np.int64)
    total = np.empty(count, np.int64)
    lowrank_kernels.outer_sum(total, factor_table(), keys, coefficients, outer.rank, outer.width, start)
    return torch.from_numpy(total)


def sum_torch(outer: Outer, start: int, count: int, device: torch.device | None = None) -> Tensor:
    """The same with PyTorch integer operations, on any device with int64."""
    place = device or torch.device("cpu")
    first, rows = outer.rows(start, count)
    element = torch.arange(start, start + count, device=place)
    row, column = element // outer.width - first, element % outer.width
    table = torch.from_numpy(factor_table().astype("int64")).to(place)
    total = torch.zeros(count, dtype=torch.int64, device=place)
    for (key_a, key_b), coefficient in zip(outer.keys, outer.coefficients, strict=True):
        a = table[torch_path.indices(key_a, first * outer.rank, rows * outer.rank, place)] * coefficient
        b = table[torch_path.indices(key_b, 0, outer.width * outer.rank, place)]
        for k in range(outer.rank):
            total += a.view(rows, -1)[row, k] * b.view(outer.width, -1)[column, k]
    return total


def sum_for(device: torch.device) -> Sum:
    """The fastest exact sum of a device."""
    if device.type == "cpu" and sys.byteorder == "little":
        return sum_numba
    return functools.partial(sum_torch, device=device)


def chunk_of(device: torch.device) -> int:
    """Elements in a piece of work on a device."""
    return CHUNK if device.type == "cpu" else DEVICE_CHUNK


def write(theta: Tensor, out: Tensor, outer: Outer, scale: float, start: int) -> None:
    """out = cast(theta + float32(scale * sum)), flat slices from element `start`; theta float32."""
    total = sum_for(theta.device)(outer, start, theta.numel())
    out.copy_(theta + (total.to(torch.float64) * scale).to(torch.float32))


def update(
    theta: Tensor, anchor: Tensor, outer: Outer, scale: float, decay: float, start: int
) -> ChangeStats:
    """theta += float32(scale * sum - decay * (theta - anchor)), a flat slice from element `start`, in place."""
    total = sum_for(theta.device)(outer, start, theta.numel())
    if theta.device.type == "cpu" and sys.byteorder == "little":
        squares, largest, changed = lowrank_kernels.apply_sum(
            theta.numpy(), anchor.numpy(), total.numpy(), scale, decay
        )
        return float(squares), float(largest), int(changed)
    return torch_path.update(theta, anchor, total, scale, decay)


def factors_of(keys: Sequence[int], count: int) -> NDArray[np.int16]:
    """Elements 0 .. count - 1 under each key: int16[keys, count], compiled where this host can."""
    if sys.byteorder != "little":
        return np.stack([factors(key, 0, count) for key in keys])
    words = np.array([noise.split_key(key) for key in keys], np.uint32).reshape(-1, 2)
    out = np.empty((len(keys), count), np.int16)
    for row, (low, high) in zip(out, words, strict=True):
        lowrank_kernels.fill_factors(row, factor_table(), 0, low, high)
    return out
