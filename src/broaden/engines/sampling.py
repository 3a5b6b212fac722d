"""From logits to a token: uniforms by Philox4x32-10, inverse CDF, log-probability and entropy.

    e_v = exp((z_v - max z) / T),   token = first v with e_0 + .. + e_v > u * sum(e),   u = (k + 1/2) / 2^24

where k is the top 24 bits of the first word of the Philox block (key = the request's, counter = the index of
the token in its completion). A token of probability zero is never drawn, since its cumulative sum does not
rise. At T = 0 the largest logit, the first on ties. Not here: which rows are sampled (`scheduler`).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from broaden.kernels import Array, Scalar, strict, strict_inline, widen
from broaden.kernels.logits import BLOCK, block_sums, exponentials, largest, not_finite, weighted
from broaden.perturb import noise

M0, M1 = np.uint64(noise.MULTIPLIER_0), np.uint64(noise.MULTIPLIER_1)
W0, W1 = np.uint64(noise.WEYL_0), np.uint64(noise.WEYL_1)
ROUNDS = noise.ROUNDS
LOW, SHIFT = np.uint64(0xFFFFFFFF), np.uint64(32)


@strict_inline
def uniform(key: int, counter: int) -> Scalar:
    """Uniform number of (64-bit key, 64-bit counter): (k + 1/2) / 2^24, as float64, never 0 or 1."""
    k0, k1 = np.uint64(key) & LOW, np.uint64(key) >> SHIFT
    c0, c1 = np.uint64(counter) & LOW, np.uint64(counter) >> SHIFT
    c2, c3 = np.uint64(0), np.uint64(0)
    for _ in range(ROUNDS):
        p0, p1 = M0 * c0, M1 * c2
        c0, c2 = (p1 >> SHIFT) ^ c1 ^ k0, (p0 >> SHIFT) ^ c3 ^ k1
        c1, c3 = p1 & LOW, p0 & LOW
        k0, k1 = (k0 + W0) & LOW, (k1 + W1) & LOW
    return (np.float64(c0 >> np.uint64(8)) + 0.5) / 16777216.0


@strict
def uniforms(keys: Array, counters: Array, out: Array) -> None:
    """out[i] = uniform(keys[i], counters[i]) for uint64 keys and int64 counters."""
    for i in range(keys.shape[0]):
        out[i] = uniform(keys[i], counters[i])


@strict_inline
def _first_equal(z: Array, row: int, n: int, value: Scalar) -> Scalar:
    for i in range(n):
        if widen(z[row, i]) == value:
            return i
    return n - 1


@strict_inline
def _inverse_cdf(e: Array, sums: Array, target: Scalar) -> Scalar:
    """First index (into e [blocks, BLOCK] flat) whose cumulative sum exceeds the target, by the sums of blocks."""
    before, last = 0.0, 0
    for block in range(e.shape[0]):
        if before + sums[block] <= target:
            before += sums[block]
            continue
        for j in range(e.shape[1]):
            before += np.float64(e[block, j])
            if e[block, j] > 0:
                last = block * e.shape[1] + j
            if before > target:
                break
        return last
    return last


@strict
def sample_rows(
    logits: Array, rows: Array, temperature: Scalar, keys: Array, counts: Array,
    want_logprob: bool, want_entropy: bool, tokens: Array, logprobs: Array, entropies: Array,
) -> Scalar:  # fmt: skip
    """Sample the given rows of logits [R, V]; returns the first row that is not finite, or -1.

    tokens int64, logprobs and entropies float32, all [R].
    """
    vocab = logits.shape[1]
    blocks = (vocab + BLOCK - 1) // BLOCK
    e, sums = np.zeros(blocks * BLOCK, np.float32), np.empty(blocks, np.float64)
    tiles = e.reshape((blocks, BLOCK))
    for row in rows:
        if not_finite(logits, row, vocab):
            return row
        top, total = largest(logits, row, vocab), 0.0
        if temperature == 0.0:
            token = _first_equal(logits, row, vocab, top)
        else:
            exponentials(logits, row, vocab, top, np.float32(1.0 / temperature), e)
            total = block_sums(tiles, sums)
            token = _inverse_cdf(tiles, sums, uniform(keys[row], counts[row]) * total)
        tokens[row] = token
        if want_logprob or want_entropy:
            if temperature != 1.0:
                exponentials(logits, row, vocab, top, np.float32(1.0), e)
                total = block_sums(tiles, sums)
            logprobs[row] = np.float64(widen(logits[row, token]) - top) - np.log(total)
            if want_entropy:
                entropies[row] = np.log(total) - weighted(e, logits, row, vocab, top) / total
    return -1


def sample_rows_torch(
    logits: Tensor, temperature: float, u: Tensor, want_entropy: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same by tensor operations, for any device: (tokens, logprobs, entropies, finite), all [R].

    Args:
        logits: [R, V]; u: uniforms [R], float32 or float64.
    """
    z = logits.float()
    finite = z.isfinite().all(dim=1)
    z = z - z.amax(dim=1, keepdim=True)
    if temperature == 0.0:
        tokens = z.argmax(dim=1)
    else:
        e = (z / temperature).exp()
        tokens = _search(e, u)
    logq = z - z.exp().sum(dim=1, keepdim=True).log()
    logprobs = logq.gather(1, tokens[:, None]).squeeze(1)
    entropies = -(logq.exp() * logq).sum(dim=1) if want_entropy else torch.zeros_like(logprobs)
    return tokens, logprobs, entropies, finite


def _search(e: Tensor, u: Tensor) -> Tensor:
    """First index with cumulative e above u * total; the last with e > 0 where rounding leaves none."""
    cdf = e.cumsum(dim=1, dtype=torch.float64)
    found = torch.searchsorted(cdf, (u.double() * cdf[:, -1])[:, None], right=True).squeeze(1)
    last = e.shape[1] - 1 - (e > 0).flip(1).to(torch.uint8).argmax(dim=1)
    return torch.minimum(found, last)
