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

from broaden.jit import Array, Scalar, host, narrow, reduction, strict, strict_inline, widen
from broaden.jit.mathfn import exp32
from broaden.jit.rows import over_rows

EXPONENT = np.uint32(0x7F800000)
NAN, ZERO = np.float32(np.nan), np.float32(0.0)
DTYPES = (torch.float32, torch.bfloat16)


@reduction
def _largest(z: Array, row: int) -> Scalar:
    top = widen(z[row, 0])
    for i in range(z.shape[1]):
        top = max(top, widen(z[row, i]))
    return top


@strict_inline
def _not_finite(z: Array, row: int) -> Scalar:
    bad = np.uint32(0)
    for i in range(z.shape[1]):
        bad |= np.uint32((np.float32(widen(z[row, i])).view(np.uint32) & EXPONENT) == EXPONENT)
    return bad != np.uint32(0)


@strict_inline
def _exponentials(z: Array, row: int, top: Scalar, inverse: Scalar, e: Array) -> None:
    for i in range(z.shape[1]):
        e[i] = exp32((widen(z[row, i]) - top) * inverse)


@reduction
def _sum(e: Array) -> Scalar:
    total = 0.0
    for i in range(e.shape[0]):
        total += np.float64(e[i])
    return total


@reduction
def _weighted(e: Array, z: Array, row: int, top: Scalar) -> Scalar:
    total = 0.0
    for i in range(e.shape[0]):
        total += np.float64(e[i] * (widen(z[row, i]) - top))
    return total


@strict
def _stats(
    z: Array, targets: Array, temperature: Scalar, plain: bool, first: int, last: int,
    logp: Array, entropy: Array, top: Array, normaliser: Array, plain_logp: Array,
) -> None:  # fmt: skip
    e, inverse = np.empty(z.shape[1], np.float32), np.float32(1.0 / temperature)
    for row in range(first, last):
        if _not_finite(z, row):
            logp[row] = entropy[row] = top[row] = normaliser[row] = plain_logp[row] = NAN
            continue
        high = _largest(z, row)
        chosen = np.float64(widen(z[row, targets[row]]) - high)
        _exponentials(z, row, high, inverse, e)
        total = _sum(e)
        logp[row] = chosen / temperature - np.log(total)
        entropy[row] = np.log(total) - _weighted(e, z, row, high) / (total * temperature)
        top[row], normaliser[row] = high, np.log(total)
        if plain:
            _exponentials(z, row, high, np.float32(1.0), e)
            plain_logp[row] = chosen - np.log(_sum(e))
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
