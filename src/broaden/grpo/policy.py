"""Log-probabilities of sampled tokens under a policy, for rows in micro-batches.

On the CPU rows are packed, a group's prompt standing once (`models.packed_decoder`); elsewhere they are padded and
attention is torch's (`models.decoder`). Not here: the loss. Temperature divides the logits, as it did when the tokens
were drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from broaden.grpo.minibatch import micro_batches
from broaden.grpo.rollouts import Rollouts
from broaden.models.decoder import forward, head_weight
from broaden.models.gradient_kernels import accumulate
from broaden.models.logprobs import token_logprobs
from broaden.models.optimizer import Weights
from broaden.models.pack import pack
from broaden.models.packed_decoder import forward_packed, packable
from broaden.models.rows import predicting_positions
from broaden.models.spec import ModelSpec


class Pass(NamedTuple):
    """Per completion token, float32: log-probability and entropy at the sampling temperature (differentiable),
    and the log-probability at temperature 1 (detached), which is what the sampler reports."""

    logp_N: torch.Tensor
    entropy_N: torch.Tensor
    plain_N: torch.Tensor


class Leaves:
    """Weights in the arithmetic's dtype, cast once, whose gradients add up in float32.

    Args:
        center: float32 weights; they are the leaves themselves where `dtype` is float32.
        trained: names that take gradients.
        room: tensors of that dtype to cast into, by name (an engine's working copy); None: new ones.

    Attributes:
        weights: the leaves by name.
        gradients: float32 sums over all backward passes so far; zeros where none arrived.
    """

    def __init__(
        self, center: Weights, trained: Collection[str], dtype: torch.dtype, room: Weights | None = None
    ) -> None:
        self.weights: Weights = {}
        self.gradients = {n: torch.zeros_like(center[n]) for n in center if n in trained}
        for name, w in center.items():
            if room is None:
                leaf = w.detach().to(dtype, copy=False)
            else:
                leaf = room[name].detach().copy_(w.detach())
            self.weights[name] = leaf.requires_grad_(name in trained)
            if name in trained:
                leaf.register_post_accumulate_grad_hook(_adder(self.gradients[name]))


def _adder(total: torch.Tensor) -> Callable[[torch.Tensor], None]:
    """A hook that moves a leaf's gradient into `total` (and holds nothing else: no cycle keeps tensors alive)."""

    def add(leaf: torch.Tensor) -> None:
        if leaf.grad is not None:
            accumulate(total, leaf.grad)
            leaf.grad = None

    return add


@dataclass(frozen=True, slots=True)
class Policy:
    """How rows are passed through a model: its shape, the sampling temperature, the type of the arithmetic."""

    spec: ModelSpec
    temperature: float
    dtype: torch.dtype = torch.float32
    micro_batch: int = 64
    checkpoint_layers: bool = False

    def _hidden(
        self, weights: Weights, rollouts: Rollouts, rows: np.ndarray
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(hidden N x H that predict completion tokens, targets N), rows one after another."""
        if packable(weights):
            laid = pack(rollouts.rows, rows, rollouts.groups_R)
            hidden_SH = forward_packed(self.spec, weights, laid, checkpoint_layers=self.checkpoint_layers)
            return hidden_SH[laid.predict_N], laid.targets_N
        batch = rollouts.rows.batch(rows)
        device = weights["model.embed_tokens.weight"].device
        ids_BT, keep_BT = batch.ids_BT.to(device), predicting_positions(batch).to(device)
        hidden_BTH = forward(self.spec, weights, ids_BT, checkpoint_layers=self.checkpoint_layers)
        return hidden_BTH[keep_BT], ids_BT[:, 1:][keep_BT[:, :-1]]

    def logprobs(self, weights: Weights, rollouts: Rollouts, rows: np.ndarray) -> Pass:
        """One differentiable forward pass with weights in `dtype`; see `Pass`."""
        hidden_NH, targets_N = self._hidden(weights, rollouts, rows)
        head_VH = head_weight(self.spec, weights)
        return Pass(*token_logprobs(hidden_NH, head_VH, targets_N, temperature=self.temperature))

    @torch.no_grad()
    def scan(
        self, weights: Weights, rollouts: Rollouts, rows: np.ndarray
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(logp_N, plain_N) of these rows' tokens in flat lists of all tokens (float32; NaN elsewhere)."""
        cast = {n: w.detach().to(self.dtype) for n, w in weights.items()}
        device = cast["model.embed_tokens.weight"].device
        logp_N = torch.full((int(rollouts.starts_R[-1]),), float("nan"), device=device)
        plain_N = logp_N.clone()
        for at in micro_batches(rows, rollouts.lengths_R, rollouts.groups_R, self.micro_batch):
            passed = self.logprobs(cast, rollouts, at)
            places = torch.from_numpy(rollouts.tokens_of(at)).to(device)
            logp_N[places], plain_N[places] = passed.logp_N, passed.plain_N
        return logp_N, plain_N
