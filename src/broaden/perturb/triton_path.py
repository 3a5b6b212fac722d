"""The bits of `noise` and `kernels` by Triton, for CUDA devices: members, exact updates, checksums, one pass each.

    write:   out_e = cast(theta_e + table[index_e])                     one float32 addition an element
    update:  theta_e += float32(factor * sum_i C_i Z_i - decay * (theta_e - anchor_e)),   the sum in int64

A program takes BLOCKS Philox blocks, that is 8 x BLOCKS neighbouring elements. The update reads and writes every
weight once for all its members, and looks up in half of the integer table, which is odd (z[65535 - h] = -z[h]):
128 KiB, so that it stays in L1. Kernels are launched with `enable_fp_fusion=False`: Triton's default would make a
product and the sum that uses it one fused multiply-add, hence other bits. bfloat16 is rounded with integers, so that
a NaN has the CPU's bits too.

Under TRITON_INTERPRET=1 (set before triton is imported) the kernels run on CPU tensors, which is how
tests/unit/perturb/test_triton.py holds them to the NumPy reference where there is no GPU. Not here: which device
gets this path (`backend`). Importing this module needs triton.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
from __future__ import annotations

import functools
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
import triton
import triton.language as tl
from torch import Tensor

from broaden.perturb import noise

M0, M1 = tl.constexpr(noise.MULTIPLIER_0), tl.constexpr(noise.MULTIPLIER_1)
W0, W1 = tl.constexpr(noise.WEYL_0), tl.constexpr(noise.WEYL_1)
ROUNDS = tl.constexpr(noise.ROUNDS)
HALF = tl.constexpr(noise.TABLE_SIZE // 2)
GOLDEN = tl.constexpr(0x9E3779B97F4A7C15)
MIX_1, MIX_2 = tl.constexpr(0xBF58476D1CE4E5B9), tl.constexpr(0x94D049BB133111EB)

BLOCKS = 128
"""Philox blocks of a program: 1,024 elements, 8 for each of the 128 threads of four warps."""
WARPS = 4


@triton.jit
def _indices(first_low, first_high, k0, k1, BLOCKS: tl.constexpr):
    """Table indices int32[8 * BLOCKS] of this program's elements, in their order."""
    first = first_low.to(tl.uint32).to(tl.uint64) | (first_high.to(tl.uint32).to(tl.uint64) << 32)
    block = first + (tl.program_id(0) * BLOCKS + tl.arange(0, BLOCKS)).to(tl.uint64)
    c0, c1 = block.to(tl.uint32), (block >> 32).to(tl.uint32)
    c2 = tl.zeros([BLOCKS], tl.uint32)
    c3 = tl.zeros([BLOCKS], tl.uint32)
    r0 = tl.zeros([BLOCKS], tl.uint32) + k0.to(tl.uint32)
    r1 = tl.zeros([BLOCKS], tl.uint32) + k1.to(tl.uint32)
    m0 = tl.full([BLOCKS], M0, tl.uint32)
    m1 = tl.full([BLOCKS], M1, tl.uint32)
    w0 = tl.full([BLOCKS], W0, tl.uint32)
    w1 = tl.full([BLOCKS], W1, tl.uint32)
    for _ in tl.static_range(ROUNDS):
        high0, low0 = tl.umulhi(c0, m0), c0 * m0
        high1, low1 = tl.umulhi(c2, m1), c2 * m1
        c0, c2 = high1 ^ c1 ^ r0, high0 ^ c3 ^ r1
        c1, c3 = low1, low0
        r0, r1 = r0 + w0, r1 + w1
    words = tl.join(tl.join(c0, c2), tl.join(c1, c3))  # [b, p, q] is word 2 p + q
    halves = tl.join(words & 0xFFFF, words >> 16)
    return tl.reshape(halves, [8 * BLOCKS]).to(tl.int32)


@triton.jit
def _bfloat16_bits(x):
    """bfloat16 bits (uint16) of float32 x: to nearest, ties to even; NaN becomes 0x7FC0."""
    bits = x.to(tl.uint32, bitcast=True)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return tl.where((bits & 0x7FFFFFFF) > 0x7F800000, 0x7FC0, rounded).to(tl.uint16)


@triton.jit(do_not_specialize=["first_low", "first_high", "k0", "k1"])
def _write(
    theta, out, table, first_low, first_high, skip, count, k0, k1, ROUND: tl.constexpr, BLOCKS: tl.constexpr
):
    """out = cast(theta + table[index]); ROUND: out holds bfloat16 bits (uint16)."""
    index = _indices(first_low, first_high, k0, k1, BLOCKS)
    e = tl.program_id(0) * (8 * BLOCKS) + tl.arange(0, 8 * BLOCKS) - skip
    inside = (e >= 0) & (e < count)
    noise_ = tl.load(table + index, mask=inside, other=0.0, eviction_policy="evict_last")
    total = tl.load(theta + e, mask=inside, other=0.0, eviction_policy="evict_first") + noise_
    if ROUND:
        tl.store(out + e, _bfloat16_bits(total), mask=inside)
    else:
        tl.store(out + e, total.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["first_low", "first_high", "members"])
def _update(
    theta, anchor, half, coefficients, keys, scalars, squares, largest, changed,
    first_low, first_high, skip, count, members, DECAY: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """theta += float32(factor * sum - decay * (theta - anchor)); one partial of each statistic a program.

    `half` int32[32768]: the table's upper half, z[32768 + i]; coefficients int32[members], keys int32[members, 2],
    scalars float64[2] = (factor, decay).
    """
    e = tl.program_id(0) * (8 * BLOCKS) + tl.arange(0, 8 * BLOCKS) - skip
    inside = (e >= 0) & (e < count)
    total = tl.zeros([8 * BLOCKS], tl.int64)
    for i in range(members):
        index = _indices(first_low, first_high, tl.load(keys + 2 * i), tl.load(keys + 2 * i + 1), BLOCKS)
        upper = index >= HALF
        z = tl.load(half + tl.where(upper, index - HALF, HALF - 1 - index), eviction_policy="evict_last")
        total += tl.load(coefficients + i).to(tl.int64) * tl.where(upper, z, -z).to(tl.int64)
    old = tl.load(theta + e, mask=inside, other=0.0)
    delta = total.to(tl.float64) * tl.load(scalars)
    if DECAY:
        toward = tl.load(anchor + e, mask=inside, other=0.0)
        pull = (old.to(tl.float64) - toward.to(tl.float64)) * tl.load(scalars + 1)
        delta = delta - pull
    step = delta.to(tl.float32)
    new = tl.where(step != 0.0, old + step, old)  # -0.0 + 0.0 would change a bit
    tl.store(theta + e, new, mask=inside)
    change = tl.where(inside, new.to(tl.float64) - old.to(tl.float64), 0.0)
    at = tl.program_id(0)
    tl.store(squares + at, tl.sum(change * change, axis=0))
    tl.store(largest + at, tl.max(tl.abs(change), axis=0))
    tl.store(changed + at, tl.sum((change != 0.0).to(tl.int32), axis=0))


@triton.jit(do_not_specialize=["start_low", "start_high"])
def _checksum(bits, sums, start_low, start_high, count, MASK: tl.constexpr, SIZE: tl.constexpr):
    """sum over e of mix(bits_e ^ (start + e + 1) * odd), splitmix64's finaliser as mix: one partial a program."""
    e = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    inside = e < count
    start = start_low.to(tl.uint32).to(tl.uint64) | (start_high.to(tl.uint32).to(tl.uint64) << 32)
    golden = tl.full([SIZE], GOLDEN, tl.uint64)
    x = tl.load(bits + e, mask=inside, other=0).to(tl.int64).to(tl.uint64) & MASK
    x = x ^ ((start + (e + 1).to(tl.uint64)) * golden)
    x = (x ^ (x >> 30)) * tl.full([SIZE], MIX_1, tl.uint64)
    x = (x ^ (x >> 27)) * tl.full([SIZE], MIX_2, tl.uint64)
    x = tl.where(inside, (x ^ (x >> 31)).to(tl.int64), 0)
    tl.store(sums + tl.program_id(0), tl.sum(x, axis=0))


@functools.lru_cache(maxsize=8)
def half_table(device: torch.device) -> Tensor:
    """The upper half of `noise.fixed_table` on a device: int32[32768] (the lower half is its mirror, negated)."""
    return torch.from_numpy(noise.fixed_table()[noise.TABLE_SIZE // 2 :].copy()).to(device)


def write(theta: Tensor, out: Tensor, table: Tensor, key: int, start: int) -> None:
    """out = cast(theta + table[index]) for flat tensors on one device; out float32, bfloat16 or float16."""
    count = theta.numel()
    if not count:
        return
    first, skip = divmod(start, noise.BLOCK)
    rounds = out.dtype == torch.bfloat16
    target = out.view(torch.uint16) if rounds else out
    low, high = _words(first)
    k0, k1 = _words(key)
    with _on(theta.device):
        _write[(_programs(skip + count),)](
            theta, target, table, low, high, skip, count, k0, k1, ROUND=rounds, BLOCKS=BLOCKS,
            num_warps=WARPS, enable_fp_fusion=False,
        )  # fmt: skip


def update(
    theta: Tensor,
    anchor: Tensor,
    coefficients: Sequence[int],
    keys: Sequence[int],
    start: int,
    factor: float,
    decay: float,
) -> tuple[float, float, int]:
    """theta += float32(factor * sum_i C_i Z_i - decay * (theta - anchor)) in place, |C_i| below 2**31.

    Returns (sum of squares, largest absolute value, number) of the changes; the device is waited for once.
    """
    count, device = theta.numel(), theta.device
    if not count:
        return 0.0, 0.0, 0
    first, skip = divmod(start, noise.BLOCK)
    programs = _programs(skip + count)
    squares, largest = torch.empty(2, programs, dtype=torch.float64, device=device)
    changed = torch.empty(programs, dtype=torch.int32, device=device)
    words = [word for key in keys for word in _words(key)]
    members = torch.tensor([*coefficients, *words], dtype=torch.int32).to(device, non_blocking=True)
    scalars = torch.tensor([factor, decay], dtype=torch.float64).to(device, non_blocking=True)
    low, high = _words(first)
    n = len(coefficients)
    with _on(device):
        _update[(programs,)](
            theta, anchor, half_table(device), members[:n], members[n:], scalars, squares, largest, changed,
            low, high, skip, count, n, DECAY=decay != 0.0, BLOCKS=BLOCKS, num_warps=WARPS, enable_fp_fusion=False,
        )  # fmt: skip
    found = torch.stack([squares.sum(), largest.amax(), changed.sum().to(torch.float64)]).tolist()
    return found[0], found[1], int(found[2])


def checksum(bits: Tensor, start: int) -> int:
    """`kernels.checksum` of an integer tensor of any width: in [0, 2**64)."""
    count = bits.numel()
    if not count:
        return 0
    programs = _programs(count)
    sums = torch.empty(programs, dtype=torch.int64, device=bits.device)
    low, high = _words(start)
    mask = (1 << (8 * bits.element_size())) - 1
    with _on(bits.device):
        _checksum[(programs,)](
            bits, sums, low, high, count, MASK=mask, SIZE=8 * BLOCKS, num_warps=WARPS, enable_fp_fusion=False
        )
    return int(sums.sum()) & ((1 << 64) - 1)


def _on(device: torch.device) -> AbstractContextManager[object]:
    """Triton launches on the current device, whatever its tensors lie on."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _programs(elements: int) -> int:
    return -(-elements // (8 * BLOCKS))


def _words(value: int) -> tuple[int, int]:
    """(low, high) 32-bit words of a number in [0, 2**64) as signed integers, which Triton passes in 32 bits."""
    low, high = noise.split_key(value)
    return _signed(low), _signed(high)


def _signed(word: int) -> int:
    return word - (1 << 32) if word >= 1 << 31 else word
