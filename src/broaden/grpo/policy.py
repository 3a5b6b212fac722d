"""Log-probabilities of sampled tokens under a policy, for rows in micro-batches.

Not here: the loss. Temperature divides the logits, as it did when the tokens were drawn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from broaden.grpo.minibatch import micro_batches
from broaden.grpo.rollouts import Rollouts
from broaden.models.decoder import forward, head_weight
from broaden.models.logprobs import token_logprobs
from broaden.models.optimizer import Weights
from broaden.models.rows import Batch, predicting_positions
from broaden.models.spec import ModelSpec


class Pass(NamedTuple):
    """Per completion token, float32: log-probability and entropy at the sampling temperature (differentiable),
    and the log-probability at temperature 1 (detached), which is what the sampler reports."""

    logp_N: torch.Tensor
    entropy_N: torch.Tensor
    plain_N: torch.Tensor


@dataclass(frozen=True, slots=True)
class Policy:
    """How rows are passed through a model: its shape, the sampling temperature, the type of the arithmetic."""

    spec: ModelSpec
    temperature: float
    dtype: torch.dtype = torch.float32
    micro_batch: int = 64
    checkpoint_layers: bool = False

    def _hidden(self, weights: Weights, batch: Batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(hidden N x H that predict completion tokens, head V x H, targets N), rows one after another."""
        cast = {n: w.to(self.dtype) for n, w in weights.items()}
        device = cast["model.embed_tokens.weight"].device
        ids_BT = batch.ids_BT.to(device)
        keep_BT = predicting_positions(batch).to(device)
        hidden_BTH = forward(self.spec, cast, ids_BT, checkpoint_layers=self.checkpoint_layers)
        return hidden_BTH[keep_BT], head_weight(self.spec, cast), ids_BT[:, 1:][keep_BT[:, :-1]]

    def logprobs(self, weights: Weights, batch: Batch) -> Pass:
        """One differentiable forward pass; see `Pass`."""
        hidden_NH, head_VH, targets_N = self._hidden(weights, batch)
        logp_N, entropy_N = token_logprobs(hidden_NH, head_VH, targets_N, temperature=self.temperature)
        plain_N = logp_N.detach()
        if self.temperature != 1.0:
            plain_N, _ = token_logprobs(hidden_NH.detach(), head_VH.detach(), targets_N)
        return Pass(logp_N, entropy_N, plain_N)

    @torch.no_grad()
    def scan(
        self, weights: Weights, rollouts: Rollouts, rows: np.ndarray
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(logp_N, plain_N) of these rows' tokens in flat lists of all tokens (float32; NaN elsewhere)."""
        cast = {n: w.detach().to(self.dtype) for n, w in weights.items()}
        device = cast["model.embed_tokens.weight"].device
        logp_N = torch.full((int(rollouts.starts_R[-1]),), float("nan"), device=device)
        plain_N = logp_N.clone()
        for at in micro_batches(rows, rollouts.lengths_R, self.micro_batch):
            passed = self.logprobs(cast, rollouts.rows.batch(at))
            places = torch.from_numpy(rollouts.tokens_of(at)).to(device)
            logp_N[places], plain_N[places] = passed.logp_N, passed.plain_N
        return logp_N, plain_N
