"""Log-probabilities and exact entropy of chosen tokens, in chunks, so that N x V logits never exist at once.

The backward pass recomputes each chunk's softmax instead of storing it. Not here: which positions
count (`sft.loss`, `grpo.loss`).
"""

from __future__ import annotations

from typing import Any

import torch

CHUNK_ELEMENTS = 1 << 24  # fp32 logits held at once: 64 MiB


class _TokenLogprobs(torch.autograd.Function):
    """log p_n and H_n of z = (h_n W^T) / T, with

    d log p_n / d z_j = [j = y_n] - p_j          d H_n / d z_j = -p_j (log p_j + H_n)
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_NH: torch.Tensor,
        head_VH: torch.Tensor,
        targets_N: torch.Tensor,
        temperature: float,
        rows: int,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logp_N = torch.empty(len(hidden_NH), dtype=torch.float32, device=hidden_NH.device)
        entropy_N = torch.empty_like(logp_N)
        for a in range(0, len(hidden_NH), rows):
            logq = _log_softmax(hidden_NH[a : a + rows], head_VH, temperature)
            logp_N[a : a + rows] = logq.gather(1, targets_N[a : a + rows, None]).squeeze(1)
            entropy_N[a : a + rows] = -(logq.exp() * logq).sum(1)
        ctx.save_for_backward(hidden_NH, head_VH, targets_N, entropy_N)
        ctx.temperature, ctx.rows = temperature, rows
        return logp_N, entropy_N

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden_NH, head_VH, targets_N, entropy_N = ctx.saved_tensors
        g_logp_N, g_entropy_N = grads
        want_entropy = bool(g_entropy_N.any())
        d_hidden = torch.empty_like(hidden_NH)
        d_head = torch.zeros_like(head_VH, dtype=torch.float32)
        for a in range(0, len(hidden_NH), ctx.rows):
            part = slice(a, a + ctx.rows)
            logq = _log_softmax(hidden_NH[part], head_VH, ctx.temperature)
            p = logq.exp()
            d = p * -g_logp_N[part, None]
            d.scatter_add_(1, targets_N[part, None], g_logp_N[part, None])
            if want_entropy:
                d -= p * (logq + entropy_N[part, None]) * g_entropy_N[part, None]
            d = (d / ctx.temperature).to(head_VH.dtype)
            d_hidden[part] = (d @ head_VH).to(hidden_NH.dtype)
            d_head += d.t() @ hidden_NH[part]
        return d_hidden, d_head.to(head_VH.dtype), None, None, None


def _log_softmax(hidden: torch.Tensor, head_VH: torch.Tensor, temperature: float) -> torch.Tensor:
    logits = (hidden @ head_VH.t()).float()
    return torch.log_softmax(logits if temperature == 1.0 else logits / temperature, dim=1)


def token_logprobs(
    hidden_NH: torch.Tensor,
    head_VH: torch.Tensor,
    targets_N: torch.Tensor,
    *,
    temperature: float = 1.0,
    chunk_rows: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Natural-log probability of each target and the exact entropy (nats) of its distribution.

    Args:
        hidden_NH: final hidden states, one row a predicted token (after the last norm).
        head_VH: output matrix, same dtype as hidden; logits are taken to float32 before the softmax.
        targets_N: the token ids predicted.
        temperature: divides the logits (1.0: the model's own distribution).
        chunk_rows: rows whose logits exist at once; None: about 64 MiB of them.

    Returns:
        (logp_N, entropy_N) in float32, both differentiable in hidden and head. The values of a row do not
        depend on chunk_rows beyond the rounding of the matrix product.
    """
    rows = max(1, CHUNK_ELEMENTS // head_VH.shape[0]) if chunk_rows is None else chunk_rows
    out: tuple[torch.Tensor, torch.Tensor] = _TokenLogprobs.apply(
        hidden_NH, head_VH, targets_N, temperature, rows
    )
    return out
