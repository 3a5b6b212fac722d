"""Completion-only cross-entropy over right-padded batches.

Not here: the forward pass (`models.decoder`), the optimiser (`models.optimizer`), batching (`examples`).
"""

from __future__ import annotations

import torch

from broaden.models.logprobs import token_logprobs
from broaden.models.rows import Batch, predicting_positions


def completion_nll(
    hidden_BTH: torch.Tensor, head_VH: torch.Tensor, batch: Batch, *, chunk_rows: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sums over the completion tokens of a (micro-)batch: negative log-likelihood and token entropy, in nats.

        nll = -sum_b sum_{t in completion of b} log p(y_t | prompt, y_<t)

    The loss of a batch is the sum of its micro-batches' nll over the batch's number of completion tokens,
    so neither padding nor micro-batches change it. Only completion positions meet the V x H head.
    """
    keep_BT = predicting_positions(batch).to(hidden_BTH.device)
    targets_N = batch.ids_BT[:, 1:].to(hidden_BTH.device)[keep_BT[:, :-1]]
    logp_N, entropy_N, _ = token_logprobs(hidden_BTH[keep_BT], head_VH, targets_N, chunk_rows=chunk_rows)
    return -logp_N.sum(), entropy_N.detach().sum()
