"""Holds the Triton noise kernels to the NumPy reference, on CPU tensors with Triton's interpreter.

Run in a process of its own (`python -m tests.helpers.triton_bits`), since TRITON_INTERPRET counts when triton is
imported. Prints how many comparisons there were; the first that fails ends it.
"""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch

from broaden.perturb import noise
from broaden.perturb.backend import NUMBA, TORCH, Backend, Increment, TritonBackend, _probe
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


def members(backend: Backend) -> int:
    """Indices, and sums in every dtype, against NumPy."""
    done, counting = 0, torch.arange(65536, dtype=torch.float32)
    for start, count in SLICES:
        for key in KEYS:
            reference = noise.indices(key, start, count)
            seen = torch.empty(count)
            backend.write(torch.zeros(count), seen, counting, key, start)
            assert seen.numpy().astype(np.uint16).tolist() == reference.tolist(), (start, count, key)
            theta, table = numbers(count, key % 1000), noise.scaled_table(1.5e-3, -1)
            exact = torch.from_numpy(theta.numpy() + table[reference])
            for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
                out = torch.empty(count, dtype=dtype)
                backend.write(theta, out, torch.from_numpy(table), key, start)
                assert torch.equal(out.view(torch.uint8), exact.to(dtype).view(torch.uint8)), (
                    start,
                    count,
                    dtype,
                )
                done += 1
    return done


def rounding(backend: Backend) -> int:
    """Every rounding case of bfloat16 and float16, infinities and NaN included, against the CPU kernels."""
    high = torch.arange(0, 1 << 16, 3, dtype=torch.int32) << 16
    low = (0x0, 0x1, 0x7FFF, 0x8000, 0x8001, 0xFFFF, 0x0FFF, 0x1000, 0x1001, 0x3000)
    theta = torch.cat([high | extra for extra in low]).view(torch.float32)
    zero = torch.zeros(65536)
    for dtype in (torch.bfloat16, torch.float16):
        ours, theirs = (torch.empty_like(theta, dtype=dtype) for _ in range(2))
        backend.write(theta, ours, zero, 1, 0)
        NUMBA.write(theta, theirs, zero, 1, 0)
        number = ~theta.isnan()
        assert torch.equal(ours[number].view(torch.int16), theirs[number].view(torch.int16)), dtype
        assert bool(ours[~number].isnan().all())
        if dtype == torch.bfloat16:
            assert torch.equal(ours.view(torch.int16), theirs.view(torch.int16))
    return 3


def updates(backend: Backend) -> int:
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
                out = theta.clone()
                squares, largest, changed = backend.update(
                    out, anchor, Increment(coefficients, factor, decay), keys, start
                )
                assert np.array_equal(out.numpy().view(np.uint32), expected.view(np.uint32)), (start, count)
                assert abs(squares - np.sum(change**2)) <= 1e-9 * np.sum(change**2)
                assert largest == np.abs(change).max()
                assert changed == np.count_nonzero(change)
                done += 1
    return done


def checksums(backend: Backend) -> int:
    """Every width against the reference of `fingerprint`."""
    for width in (1, 2, 4, 8):
        unsigned, signed = np.dtype(f"u{width}"), np.dtype(f"i{width}")
        for start, count in SLICES:
            drawn = np.random.default_rng(count).integers(0, 1 << (8 * width), count, dtype=unsigned)
            values = torch.from_numpy(drawn.view(signed))
            assert backend.checksum(values, start) == checksum_reference(drawn, start), (width, start, count)
    return 4 * len(SLICES)


def main() -> None:
    """Everything, over one backend."""
    table = noise.fixed_table()
    assert np.array_equal(table[::-1], -table)  # `triton_path.half_table` rests on this
    backend = TritonBackend()
    done = members(backend) + rounding(backend) + updates(backend) + checksums(backend)
    assert _probe(backend, torch.device("cpu")) == _probe(TORCH, torch.device("cpu"))
    assert _probe(NUMBA, torch.device("cpu")) == _probe(TORCH, torch.device("cpu"))
    print(f"{done + 2} comparisons")


if __name__ == "__main__":
    main()
