"""Log-probabilities and exact entropy of chosen tokens, in chunks, so that N x V logits never exist at once.

Where all logits fit one chunk the backward pass turns them into the gradient in place; else it computes each chunk's
again. Not here: which positions count (`sft.loss`, `grpo.policy`); the arithmetic of a row (`softmax_rows`).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from broaden.kernels import softmax_rows
from broaden.kernels.softmax_rows import Stats

ROW_MULTIPLE = (
    16  # products over a multiple of this many rows give a row the same bits, whatever the others are
)
CHUNK_BYTES = 1 << 26  # of logits held at once


class _TokenLogprobs(torch.autograd.Function):
    """log p_n and H_n of z = (h_n W^T) / T; see `softmax_rows` for the derivatives."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_NH: Tensor,
        head_VH: Tensor,
        targets_N: Tensor,
        temperature: float,
        rows: int,
        keep: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        of = Stats(len(hidden_NH), hidden_NH.device)
        logits = None
        for a in range(0, len(hidden_NH), rows):
            part = slice(a, a + rows)
            logits = hidden_NH[part] @ head_VH.t()
            softmax_rows.stats(logits, targets_N[part], temperature, of.part(part))
        ctx.logits = logits if keep and len(hidden_NH) <= rows else None
        ctx.save_for_backward(hidden_NH, head_VH, targets_N)
        ctx.of, ctx.temperature, ctx.rows = of, temperature, rows
        ctx.mark_non_differentiable(of.plain)
        return of.logp.clone(), of.entropy.clone(), of.plain  # clones: an output in ctx would be a cycle

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden_NH, head_VH, targets_N = ctx.saved_tensors
        g_N, k_N = grads[0].float(), grads[1].float()
        d_hidden = torch.empty_like(hidden_NH)
        d_head = None
        for a in range(0, len(hidden_NH), ctx.rows):
            part = slice(a, a + ctx.rows)
            logits = hidden_NH[part] @ head_VH.t() if ctx.logits is None else ctx.logits
            d = softmax_rows.gradient_(
                logits, targets_N[part], ctx.temperature, ctx.of.part(part), g_N[part], k_N[part]
            )
            torch.mm(d, head_VH, out=d_hidden[part])
            if ctx.needs_input_grad[1]:
                d_head = _add(d_head, d.t() @ hidden_NH[part], whole=ctx.rows >= len(hidden_NH))
        ctx.logits = None
        return d_hidden, None if d_head is None else d_head.to(head_VH.dtype), None, None, None, None


def _add(total: Tensor | None, part: Tensor, whole: bool) -> Tensor:
    """Sum of chunks in float32; a single chunk is passed on as it is."""
    if total is None:
        return part if whole else part.float()
    return total.add_(part)


def token_logprobs(
    hidden_NH: Tensor,
    head_VH: Tensor,
    targets_N: Tensor,
    *,
    temperature: float = 1.0,
    chunk_rows: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Natural-log probability of each target and the exact entropy (nats) of its distribution.

    Args:
        hidden_NH: final hidden states, one row a predicted token (after the last norm).
        head_VH: output matrix, same dtype as hidden; a row's softmax is taken in float32.
        targets_N: the token ids predicted.
        temperature: divides the logits (1.0: the model's own distribution).
        chunk_rows: rows whose logits exist at once; None: about 64 MiB of them.

    Returns:
        (logp_N, entropy_N, plain_N) in float32: the first two differentiable in hidden and head, once; plain_N is the
        log-probability at temperature 1, detached. With chunks of a multiple of 16 rows the values of a row do not
        depend on the other rows, bit for bit.
    """
    per_row, count = head_VH.shape[0] * head_VH.element_size(), len(hidden_NH)
    rows = (
        max(ROW_MULTIPLE, CHUNK_BYTES // per_row // ROW_MULTIPLE * ROW_MULTIPLE)
        if chunk_rows is None
        else chunk_rows
    )
    keep = torch.is_grad_enabled() and (hidden_NH.requires_grad or head_VH.requires_grad)
    if padding := -count % ROW_MULTIPLE:
        hidden_NH, targets_N = F.pad(hidden_NH, (0, 0, 0, padding)), F.pad(targets_N, (0, padding))
    out: tuple[Tensor, Tensor, Tensor] = _TokenLogprobs.apply(
        hidden_NH, head_VH, targets_N, temperature, rows, keep
    )
    return out[0][:count], out[1][:count], out[2][:count]
