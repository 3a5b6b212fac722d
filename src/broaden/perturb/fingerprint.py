"""Fingerprints of weights: a 64-bit checksum a tensor, one SHA-256 root, and the drift from an anchor.

    checksum = sum_e mix(bits_e xor (e + 1) * 0x9E3779B97F4A7C15) mod 2^64

with mix the finaliser of splitmix64 and bits_e the element's bits, zero-extended. The sum is free of order,
so chunks and threads cannot matter, and it costs about a memory read (SHA-256 over the weights would be too
slow for every step). It detects accidents, not adversaries.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from broaden.errors import DivergedError, MetricError, UsageError
from broaden.perturb import chunks
from broaden.perturb.backend import backend_for
from broaden.perturb.chunks import Chunk
from broaden.perturb.spec import Weights
from broaden.seeds import MASK_64, encode

_DRIFT_CHUNK_CPU, _DRIFT_CHUNK_DEVICE = 1 << 15, 1 << 22
"""In cache on a CPU; few kernels and waits on a device."""


def checksum(tensor: Tensor, *, threads: int = 1) -> int:
    """64-bit checksum of a tensor's bits in C order: any real dtype, any device, in [0, 2**64)."""
    if tensor.is_complex():
        raise UsageError(f"a checksum is of a real tensor, not {tensor.dtype}")
    whole = {"": tensor.contiguous()}
    backend = backend_for(tensor.device)

    def work(chunk: Chunk) -> int:
        return backend.checksum(chunk.of(whole[""]), chunk.start)

    pieces = chunks.cut(whole, whole, backend.chunk)
    return sum(chunks.run(work, pieces, chunks.threads_for(tensor.device, threads))) & MASK_64


def checksum_reference(bits: NDArray[np.unsignedinteger], start: int = 0) -> int:
    """The checksum of a flat array of unsigned integers in NumPy: the reference of the fast paths."""
    place = np.arange(start + 1, start + 1 + bits.size, dtype=np.uint64)
    x = bits.astype(np.uint64) ^ (place * np.uint64(0x9E3779B97F4A7C15))
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return int(np.sum(x ^ (x >> np.uint64(31)), dtype=np.uint64))


def center_hash(weights: Weights, *, threads: int = 1) -> str:
    """SHA-256 (hex) over (name, shape, dtype, checksum) of every tensor, sorted by name."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        tensor = weights[name]
        dtype = str(tensor.dtype).removeprefix("torch.")
        digest.update(encode((name, tensor.dim(), *tensor.shape, dtype, checksum(tensor, threads=threads))))
    return digest.hexdigest()


def drift(weights: Weights, anchor: Weights) -> float:
    """Relative drift ||theta - theta_0|| / ||theta_0|| over all tensors, in float64 (paper Eq. 15).

    Raises:
        UsageError: names or shapes differ.
        MetricError: the anchor is zero everywhere.
        DivergedError: a weight is not finite.
    """
    chunks.check_same(weights, anchor, "the anchor")
    moved: list[float] = []
    length: list[float] = []
    for name in sorted(weights):
        left = weights[name].detach().reshape(-1)
        right = anchor[name].detach().reshape(-1)
        size = _DRIFT_CHUNK_CPU if right.device.type == "cpu" else _DRIFT_CHUNK_DEVICE
        for start in range(0, left.numel(), size):
            theta_0 = right[start : start + size].to(torch.float64)
            theta = left[start : start + size].to(theta_0.device, torch.float64)
            moved.append(float((theta - theta_0).square().sum()))
            length.append(float(theta_0.square().sum()))
    total, base = math.fsum(moved), math.fsum(length)
    if not (math.isfinite(total) and math.isfinite(base)):
        raise DivergedError("the drift is not defined: a weight is not finite")
    if base == 0.0:
        raise MetricError("the relative drift is not defined: the anchor is zero everywhere")
    return math.sqrt(total) / math.sqrt(base)
