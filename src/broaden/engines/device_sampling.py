"""`sampling.sample_rows_torch` without a wait for the device and with fewer passes over the vocabulary.

The rule and the log-probabilities are those of `sampling`; the inverse CDF goes by sums of blocks, so that running sums
are kept for one number in BLOCK and for one block a row. Uniform numbers come from the host, which knows every row's
key and count beforehand. Not here: which rows are wanted (`device_schedule`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from broaden.records import Sampling

BLOCK = 128


@dataclass(frozen=True, slots=True)
class Draw:
    """One token a row, [R] each; log-probabilities and entropies are zero where they were not asked for."""

    tokens: Tensor  # int64
    logprobs: Tensor  # float32
    entropies: Tensor  # float32
    finite: Tensor  # bool


def draw(logits: Tensor, u: Tensor, sampling: Sampling) -> Draw:
    """Draw from logits [R, V] with uniforms u float64 [R]."""
    z = logits.float()
    top = z.amax(dim=1, keepdim=True)
    finite = top.squeeze(1).isfinite() & z.amin(dim=1).isfinite()
    z = z - top
    hot = sampling.temperature not in (0.0, 1.0)
    plain = z.exp() if sampling.temperature == 1.0 or sampling.logprobs or sampling.entropy else None
    if sampling.temperature == 0.0:
        tokens = z.argmax(dim=1)
    else:
        e = (z / sampling.temperature).exp() if hot or plain is None else plain
        tokens = search(e, u)
    logprobs = entropies = torch.zeros_like(top).squeeze(1)
    if plain is not None and (sampling.logprobs or sampling.entropy):
        norm = plain.sum(dim=1, keepdim=True).log()
        logprobs = (z.gather(1, tokens[:, None]) - norm).squeeze(1)
        if sampling.entropy:
            logq = z - norm
            entropies = -(logq.exp() * logq).sum(dim=1)
    return Draw(tokens, logprobs, entropies, finite)


def search(e: Tensor, u: Tensor) -> Tensor:
    """First index of each row with e_0 + .. + e_v > u * sum(e); the last with e > 0 where rounding leaves none.

    Args:
        e: [R, V] float32, not negative; u: [R] float64 in (0, 1).
    """
    rows, vocab = e.shape
    blocks = (F.pad(e, (0, -vocab % BLOCK)) if vocab % BLOCK else e).view(rows, -1, BLOCK)
    sums = blocks.sum(dim=2, dtype=torch.float64)
    before = sums.cumsum(dim=1)
    target = u[:, None] * before[:, -1:]
    chosen = torch.minimum(torch.searchsorted(before, target, right=True), _last_positive(sums))
    inner = blocks.gather(1, chosen[:, :, None].expand(-1, -1, BLOCK)).squeeze(1)
    # the sum of what lies before: `before` of the previous block, exactly
    base = F.pad(before, (1, 0)).gather(1, chosen)
    running = base + inner.cumsum(dim=1, dtype=torch.float64)
    found = torch.minimum(torch.searchsorted(running, target, right=True), _last_positive(inner))
    # a row that is not finite finds anything, but an index of the row: it is fed on until the host looks
    return (chosen * BLOCK + found).squeeze(1).clamp_(max=vocab - 1)


def _last_positive(x: Tensor) -> Tensor:
    """Last index with x > 0 of each row: int64 [R, 1]."""
    return x.shape[1] - 1 - (x > 0).flip(1).to(torch.uint8).argmax(dim=1, keepdim=True)
