"""Rows of logits to log-probabilities, entropies and their gradient, compiled: one row a time, in place, no copies.

    log p_j = z_j / T - log sum_i exp(z_i / T)        H = -sum_j p_j log p_j
    d/dz_j (g log p_y + k H) = (g ([j = y] - p_j) - k p_j (log p_j + H)) / T

Logits are float32 or bfloat16 (uint16 bits), arithmetic is float32 with sums in float64. A row that is not finite
has log-probability NaN. The same by tensor operations for other devices: `stats_torch`, `gradient_torch`.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from broaden.kernels import Array, Scalar, host, narrow, strict, widen
from broaden.kernels.logits import BLOCK, block_sums, exponentials, largest, not_finite, weighted
from broaden.kernels.mathfn import exp32
from broaden.kernels.rows import over_rows

NAN, ZERO = np.float32(np.nan), np.float32(0.0)
DTYPES = (torch.float32, torch.bfloat16)


@strict
def _stats(
    z: Array, targets: Array, temperature: Scalar, plain: bool, first: int, last: int,
    logp: Array, entropy: Array, top: Array, normaliser: Array, plain_logp: Array,
) -> None:  # fmt: skip
    vocab = z.shape[1]
    blocks, inverse = (vocab + BLOCK - 1) // BLOCK, np.float32(1.0 / temperature)
    e, sums = np.zeros(blocks * BLOCK, np.float32), np.empty(blocks, np.float64)
    tiles = e.reshape((blocks, BLOCK))
    for row in range(first, last):
        if not_finite(z, row, vocab):
            logp[row] = entropy[row] = top[row] = normaliser[row] = plain_logp[row] = NAN
            continue
        high = largest(z, row, vocab)
        chosen = np.float64(widen(z[row, targets[row]]) - high)
        exponentials(z, row, vocab, high, inverse, e)
        total = block_sums(tiles, sums)
        logp[row] = chosen / temperature - np.log(total)
        entropy[row] = np.log(total) - weighted(e, z, row, vocab, high) / (total * temperature)
        top[row], normaliser[row] = high, np.log(total)
        if plain:
            exponentials(z, row, vocab, high, np.float32(1.0), e)
            plain_logp[row] = chosen - np.log(block_sums(tiles, sums))
        else:
            plain_logp[row] = logp[row]


@strict
def _gradient(
    z: Array, targets: Array, temperature: Scalar, first: int, last: int,
    top: Array, normaliser: Array, entropy: Array, g: Array, k: Array,
) -> None:  # fmt: skip
    inverse = np.float32(1.0 / temperature)
    for row in range(first, last):
        high, norm, g_row, k_row, mean = top[row], normaliser[row], g[row], k[row], entropy[row]
        chosen = widen(z[row, targets[row]])
        if k_row == ZERO:
            factor = -g_row * inverse
            for i in range(z.shape[1]):
                z[row, i] = narrow(exp32((widen(z[row, i]) - high) * inverse - norm) * factor, z[row, i])
        else:
            for i in range(z.shape[1]):
                logq = (widen(z[row, i]) - high) * inverse - norm
                z[row, i] = narrow(exp32(logq) * (-g_row - k_row * (logq + mean)) * inverse, z[row, i])
        logq = (chosen - high) * inverse - norm
        p = np.exp(logq)
        z[row, targets[row]] = narrow(
            (g_row * (np.float32(1.0) - p) - k_row * p * (logq + mean)) * inverse, z[row, targets[row]]
        )


class Stats:
    """Of N rows, float32 [N]: `logp` and `entropy` at the temperature, `plain` (log-probability at temperature 1),
    and what the gradient needs (`top`, `normaliser`)."""

    def __init__(self, rows: int, device: torch.device) -> None:
        self.logp, self.entropy, self.top, self.normaliser, self.plain = (
            torch.empty(rows, dtype=torch.float32, device=device) for _ in range(5)
        )

    def part(self, rows: slice) -> Stats:
        """A range of rows (views)."""
        out = Stats.__new__(Stats)
        for name in vars(self):
            setattr(out, name, getattr(self, name)[rows])
        return out


def stats(logits: Tensor, targets: Tensor, temperature: float, out: Stats) -> None:
    """Fill `out` from logits [N, V] and target ids [N]."""
    if not _compiled(logits):
        return _stats_torch(logits, targets, temperature, out)
    arrays = [host(t) for t in (out.logp, out.entropy, out.top, out.normaliser, out.plain)]
    z, y = host(logits), host(targets)
    over_rows(len(z), lambda a, b: _stats(z, y, temperature, temperature != 1.0, a, b, *arrays))
    return None


def gradient_(logits: Tensor, targets: Tensor, temperature: float, of: Stats, g: Tensor, k: Tensor) -> Tensor:
    """Overwrite logits [N, V] with the gradient of sum_n g_n log p_n + k_n H_n, and return it."""
    if not _compiled(logits):
        return _gradient_torch(logits, targets, temperature, of, g, k)
    z, y = host(logits), host(targets)
    arrays = [host(t.contiguous()) for t in (of.top, of.normaliser, of.entropy, g, k)]
    over_rows(len(z), lambda a, b: _gradient(z, y, temperature, a, b, *arrays))
    return logits


def _compiled(logits: Tensor) -> bool:
    return logits.device.type == "cpu" and logits.dtype in DTYPES


def _stats_torch(logits: Tensor, targets: Tensor, temperature: float, out: Stats) -> None:
    z = logits.float()
    logq = torch.log_softmax(z / temperature, dim=1)
    out.logp.copy_(logq.gather(1, targets[:, None]).squeeze(1))
    out.entropy.copy_(-(logq.exp() * logq).sum(1))
    out.top.copy_(z.amax(1))
    out.normaliser.copy_(((z - out.top[:, None]) / temperature).logsumexp(1))
    out.plain.copy_(torch.log_softmax(z, dim=1).gather(1, targets[:, None]).squeeze(1))


def _gradient_torch(
    logits: Tensor, targets: Tensor, temperature: float, of: Stats, g: Tensor, k: Tensor
) -> Tensor:
    logq = (logits.float() - of.top[:, None]) / temperature - of.normaliser[:, None]
    p = logq.exp()
    d = p * (-g[:, None] - k[:, None] * (logq + of.entropy[:, None]))
    d.scatter_add_(1, targets[:, None], g[:, None])
    return logits.copy_(d / temperature)
