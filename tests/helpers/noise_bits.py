"""Holds a backend of the noise to NumPy and to the CPU's kernels: members, roundings, updates, checksums.

Used on CPU tensors by `triton_bits` and on a GPU by tests/gpu. Each function returns how many comparisons it made; the
first that fails raises.
"""

from __future__ import annotations

import numpy as np
import torch

from broaden.perturb import noise
from broaden.perturb.backend import NUMBA, Backend, Increment
from broaden.perturb.fingerprint import checksum_reference

SLICES = ((0, 1), (0, 8), (3, 2), (7, 1), (7, 1025), (8, 1024), (1017, 2055), ((1 << 36) + 5, 3000))
KEYS = (0, 1, (1 << 64) - 1, 0xFEDCBA9876543210, 1 << 63)
COEFFICIENTS = ((), (0,), (1,), (1 << 30, -(1 << 30)), (5, -7, 123456789, -987654321, 1 << 29))


def numbers(count: int, seed: int) -> torch.Tensor:
    """Normal numbers, some of them subnormal or -0.0."""
    values = torch.from_numpy(np.random.default_rng(seed).standard_normal(count).astype(np.float32))
    values[::5] = -0.0
    values[1::7] *= 1e-41
    return values


def members(backend: Backend, device: torch.device) -> int:
    """Indices, and sums in every dtype, against NumPy."""
    done, counting = 0, torch.arange(65536, dtype=torch.float32)
    for start, count in SLICES:
        for key in KEYS:
            reference = noise.indices(key, start, count)
            seen = torch.empty(count, device=device)
            backend.write(torch.zeros_like(seen), seen, counting.to(device), key, start)
            assert seen.cpu().numpy().astype(np.uint16).tolist() == reference.tolist(), (start, count, key)
            theta, table = numbers(count, key % 1000), noise.scaled_table(1.5e-3, -1)
            exact = torch.from_numpy(theta.numpy() + table[reference])
            for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
                out = torch.empty(count, dtype=dtype, device=device)
                backend.write(theta.to(device), out, torch.from_numpy(table).to(device), key, start)
                same = torch.equal(out.cpu().view(torch.uint8), exact.to(dtype).view(torch.uint8))
                assert same, (start, count, dtype)
                done += 1
    return done


def rounding(backend: Backend, device: torch.device) -> int:
    """Every kind of bfloat16 and float16 rounding, infinities included, against the CPU kernels; a NaN stays one."""
    high = torch.arange(0, 1 << 16, 3, dtype=torch.int32) << 16
    low = (0x0, 0x1, 0x7FFF, 0x8000, 0x8001, 0xFFFF, 0x0FFF, 0x1000, 0x1001, 0x3000)
    theta = torch.cat([high | extra for extra in low]).view(torch.float32)
    zero = torch.zeros(65536)
    for dtype in (torch.bfloat16, torch.float16):
        theirs = torch.empty_like(theta, dtype=dtype)
        there = torch.empty_like(theirs, device=device)
        backend.write(theta.to(device), there, zero.to(device), 1, 0)
        NUMBA.write(theta, theirs, zero, 1, 0)
        ours = there.cpu()
        number = ~theta.isnan()
        assert torch.equal(ours[number].view(torch.int16), theirs[number].view(torch.int16)), dtype
        assert bool(ours[~number].isnan().all())
    return 2


def updates(backend: Backend, device: torch.device) -> int:
    """New weights and statistics against integers of any size and float64 in NumPy."""
    done = 0
    for start, count in SLICES:
        for coefficients in COEFFICIENTS:
            for factor, decay in ((1e-17, 0.0), (-3e-18, 1 / 3), (1e-16, 1.0)):
                keys = [(KEYS[i % 5] + i) % (1 << 64) for i in range(len(coefficients))]
                theta, anchor = numbers(count, 1), numbers(count, 2)
                total = np.zeros(count, dtype=object)
                for key, coefficient in zip(keys, coefficients, strict=True):
                    z = noise.fixed_table()[noise.indices(key, start, count)].astype(object)
                    total = total + coefficient * z
                delta = np.array([float(int(t)) for t in total]) * factor
                if decay:
                    delta = delta - decay * (
                        theta.numpy().astype(np.float64) - anchor.numpy().astype(np.float64)
                    )
                step = delta.astype(np.float32)
                expected = np.where(step != 0, theta.numpy() + step, theta.numpy())
                change = expected.astype(np.float64) - theta.numpy().astype(np.float64)
                out = theta.clone().to(device)
                increment = Increment(coefficients, factor, decay)
                squares, largest, changed = backend.update(out, anchor.to(device), increment, keys, start)
                assert np.array_equal(out.cpu().numpy().view(np.uint32), expected.view(np.uint32)), (
                    start,
                    count,
                )
                assert abs(squares - np.sum(change**2)) <= 1e-9 * np.sum(change**2)
                assert largest == np.abs(change).max()
                assert changed == np.count_nonzero(change)
                done += 1
    return done


def checksums(backend: Backend, device: torch.device) -> int:
    """Every width against the reference of `fingerprint`."""
    for width in (1, 2, 4, 8):
        unsigned, signed = np.dtype(f"u{width}"), np.dtype(f"i{width}")
        for start, count in SLICES:
            drawn = np.random.default_rng(count).integers(0, 1 << (8 * width), count, dtype=unsigned)
            values = torch.from_numpy(drawn.view(signed)).to(device)
            assert backend.checksum(values, start) == checksum_reference(drawn, start), (width, start, count)
    return 4 * len(SLICES)


def everything(backend: Backend, device: torch.device) -> int:
    """All of it."""
    return sum(part(backend, device) for part in (members, rounding, updates, checksums))
