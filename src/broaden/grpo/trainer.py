"""GRPO: a generator that yields one record an update and does no I/O.

Each update (arXiv 2608.27351, Eq. 3-5):

    sample `group` responses of theta a prompt, judge them              (rollouts)
    A_i = (r_i - mean) / s within the group                             (advantage)
    for each minibatch: one AdamW step on the clipped loss              (loss, models.optimizer)

After every yield the state is `weights`, `optimizer` and the next step's number; every random draw is keyed, so
a resumed run is bit-equal. Not here: saving, probes, stages (`runs`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import torch

from broaden.errors import ConfigError, DivergedError
from broaden.grpo.advantage import group_advantages, permuted
from broaden.grpo.loss import row_weights, token_losses
from broaden.grpo.minibatch import batch_indices, micro_batches, minibatches
from broaden.grpo.policy import Leaves, Policy
from broaden.grpo.rollouts import Host, Rollouts, collect
from broaden.grpo.settings import GrpoSettings
from broaden.grpo.telemetry import Seen, Values, finite, flops, rollout_values, sampler_gap
from broaden.models.lora import Lora
from broaden.models.optimizer import AdamW, Weights, clip_factor, global_norm
from broaden.models.spec import ModelSpec
from broaden.perturb import drift
from broaden.population.base import OnProgress
from broaden.records import StepRecord


def optimizer_for(weights: Weights, settings: GrpoSettings) -> AdamW:
    """A fresh optimiser for a stage over what it trains (or over `Lora.tensors`); load a saved state to resume."""
    return AdamW(weights, settings.adamw())


def train(
    spec: ModelSpec,
    weights: Weights,
    host: Host,
    settings: GrpoSettings,
    *,
    run_seed: int,
    optimizer: AdamW,
    reference: Weights | None = None,
    origin: Weights | None = None,
    start_step: int = 0,
    flops_per_token: int = 0,
    on_progress: OnProgress | None = None,
    lora: Lora | None = None,
) -> Iterator[StepRecord]:
    """Train `weights` (fp32, in place) from `start_step` to `settings.updates`; one record an update.

    Args:
        spec: the model's shape (a family with an own forward).
        weights: the center; written in place, current after every yield.
        host: engine, tokenizer, task and prompts (a `LocalPopulation` is one).
        settings: plain values.
        run_seed: the stage's seed; every draw is named under it.
        optimizer: from `optimizer_for`; for a resume, with its saved state loaded.
        reference: the policy of the KL term (theta_0 or the stage's start: the caller's choice, to be recorded).
        origin: theta_0, from which drift is measured.
        start_step: updates already done.
        flops_per_token: forward FLOPs of the model, for the ledger (2 x parameters).
        on_progress: called during rollouts with (finished completions, generated tokens).
        lora: train these factors instead, `optimizer` being over `lora.tensors`; `weights` are the merged ones.

    Raises:
        ConfigError: kl > 0 without a reference. DivergedError: a loss or gradient is not finite; the weights are
            those of the last good optimiser step.
    """
    if settings.kl and reference is None:
        raise ConfigError(f"kl = {settings.kl} needs a reference policy", "pass reference, or set kl = 0")
    for step in range(start_step, settings.updates):
        began = time.perf_counter()
        indices = batch_indices(len(host.prompts), settings.prompts, step, run_seed)
        rollouts = collect(
            host, weights, indices, settings.group, settings.sampling,
            run_seed=run_seed, step=step, on_progress=on_progress,
        )  # fmt: skip
        sampled = time.perf_counter()
        update = Update(
            spec, weights, rollouts, settings, run_seed, step, lora, _room(host, weights, settings)
        )
        update.run(optimizer, reference)
        values = update.values(flops_per_token)
        if origin is not None:
            values["drift"] = drift(weights, origin)
        now = time.perf_counter()
        values |= {"seconds": now - began, "rollout_seconds": sampled - began, "train_seconds": now - sampled}
        yield StepRecord("grpo", step, values)


def _room(host: Host, weights: Weights, settings: GrpoSettings) -> Weights | None:
    """The engine's working copy, idle while the update runs, where it has the passes' type: one model less."""
    room = host.engine.weights(0)
    fits = all(
        n in room and room[n].dtype == settings.dtype and room[n].device == w.device
        for n, w in weights.items()
    )
    return room if fits and settings.dtype != torch.float32 else None


class Update:
    """One update: advantages of a batch of rollouts, then its optimiser steps.

    Attributes:
        live_R: rows in the loss: scored, and not truncated where those are masked.
        advantage_R: 0 for rows of groups without variance (and permuted under the null control).
        active_R: live rows whose loss has a gradient; only these are passed through the model. Rows with advantage
            exactly 0 and neither KL nor entropy term stay in every denominator and cost nothing.
    """

    def __init__(
        self,
        spec: ModelSpec,
        weights: Weights,
        rollouts: Rollouts,
        settings: GrpoSettings,
        run_seed: int,
        step: int,
        lora: Lora | None = None,
        room: Weights | None = None,
    ) -> None:
        self.weights, self.rollouts, self.settings, self.room = weights, rollouts, settings, room
        self.run_seed, self.step, self.lora = run_seed, step, lora
        self.policy = Policy(
            spec, settings.temperature, settings.dtype, settings.micro_batch, settings.checkpoint_layers
        )
        self.loss = settings.loss()
        self.seen = Seen()
        scored_R = np.array([r is not None for r in rollouts.rewards], bool)
        self.live_R = scored_R & ~(rollouts.truncated_R & settings.mask_truncated)
        self.advantages = group_advantages(
            rollouts.rewards,
            [int(g) for g in rollouts.groups_R],
            scale=settings.scale,
            eps=settings.scale_eps,
        )
        self.advantage_R = self.advantages.values_R
        if settings.control == "permuted_advantages":
            self.advantage_R = permuted(self.advantage_R, scored_R, run_seed, step)
        everywhere = bool(self.loss.kl or self.loss.entropy_bonus)
        self.active_R = self.live_R & (everywhere | (self.advantage_R != 0.0))
        self.old_N: torch.Tensor | None = None
        self.reference_N: torch.Tensor | None = None
        self.first_N = np.full(int(rollouts.starts_R[-1]), np.nan)

    def run(self, optimizer: AdamW, reference: Weights | None) -> None:
        """All optimiser steps of the update: `inner` passes over its minibatches."""
        s = self.settings
        parts = [
            part
            for inner in range(s.inner)
            for part in minibatches(
                self.rollouts.groups_R, s.minibatch, s.minibatch_unit, self.run_seed, self.step, inner
            )
        ]
        active = np.flatnonzero(self.active_R)
        if len(parts) > 1 and len(active):
            self.old_N, plain_N = self._old(active)
            self.first_N = plain_N.double().cpu().numpy()
        if self.loss.kl and reference is not None and len(active):
            self.reference_N, _ = self._scan(reference, active)
        for rows in parts:
            self._step(optimizer, rows)

    def _scan(self, weights: Weights, rows: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        self.seen.forward_tokens += self._tokens_with_prompt(rows)
        return self.policy.scan(weights, self.rollouts, rows)

    def _old(self, rows: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities under the policy that sampled, as `Policy.scan` has them.

        On the CPU sampler and trainer run the same compiled code, so at temperature 1 the sampler has them already. A
        first micro-batch is passed to see that this holds, bit for bit; where it does not, all are.
        """
        r, size = self.rollouts, self.settings.micro_batch
        if self.settings.temperature != 1.0 or len(r.logprobs_N) != int(r.starts_R[-1]):
            return self._scan(self.weights, rows)
        first = micro_batches(rows, r.lengths_R, r.groups_R, size)[0]
        seen_N, plain_N = self.policy.scan(self.weights, r, first)
        said_N = torch.from_numpy(r.logprobs_N).float().to(seen_N.device)
        places = torch.from_numpy(r.tokens_of(first)).to(seen_N.device)
        if not torch.equal(seen_N[places], said_N[places]):
            return self._scan(self.weights, rows)
        self.seen.forward_tokens += self._tokens_with_prompt(rows)
        return said_N, plain_N

    def _tokens_with_prompt(self, rows: np.ndarray) -> int:
        return int((self.rollouts.rows.starts[rows + 1] - self.rollouts.rows.starts[rows]).sum())

    def _step(self, optimizer: AdamW, rows: np.ndarray) -> None:
        """One optimiser step on a minibatch; skipped, optimiser untouched, where nothing has a gradient."""
        lengths_R = np.where(self.live_R, self.rollouts.lengths_R, 0)[rows]
        weight_R = np.zeros(len(self.live_R))
        weight_R[rows] = row_weights(lengths_R, self.loss.aggregation, self.settings.max_new_tokens)
        active = rows[self.active_R[rows]]
        if not len(active):
            self.seen.skipped_steps += 1
            return
        self.seen.unmasked_tokens += int(lengths_R.sum())
        names = set(self.weights if self.lora is None else self.lora.names)
        leaves = Leaves(self.weights, names, self.policy.dtype, self.room)
        loss = sum(
            self._backward(leaves.weights, at, weight_R)
            for at in micro_batches(
                active, self.rollouts.lengths_R, self.rollouts.groups_R, self.settings.micro_batch
            )
        )
        grads = leaves.gradients if self.lora is None else self.lora.gradients(leaves.gradients)
        norm = global_norm(grads)
        if not finite(loss, norm):
            raise DivergedError(
                f"grpo update {self.step}: loss {loss}, gradient norm {norm}; the weights are those before this "
                "optimiser step",
                "lower learning_rate, or raise kl",
            )
        lr = self.settings.learning_rate_at(self.step)
        trained = self.weights if self.lora is None else self.lora.tensors
        optimizer.step(trained, grads, lr, clip_factor(norm, self.settings.clip))
        if self.lora is not None:
            self.lora.merge(self.weights)
        self.seen.optimizer_steps += 1
        self.seen.loss += loss
        self.seen.norms.append(norm)

    def _backward(self, leaves: Weights, at: np.ndarray, weight_R: np.ndarray) -> float:
        """Forward and backward pass of one micro-batch; gradients accumulate in the leaves."""
        logp_N, entropy_N, plain_N = self.policy.logprobs(leaves, self.rollouts, at)
        device = logp_N.device
        token = self.rollouts.tokens_of(at)
        places = torch.from_numpy(token).to(device)
        row_N = np.repeat(at, self.rollouts.lengths_R[at])
        old_N = logp_N.detach() if self.old_N is None else self.old_N[places]
        reference_N = None if self.reference_N is None else self.reference_N[places]
        advantage_N = torch.from_numpy(self.advantage_R[row_N]).float().to(device)
        weight_N = torch.from_numpy(weight_R[row_N]).float().to(device)
        out = token_losses(logp_N, old_N, reference_N, advantage_N, entropy_N, self.loss)
        loss = (weight_N * out.loss_N).sum()
        torch.autograd.backward(loss)
        if self.old_N is None:
            self.first_N[token] = plain_N.double().cpu().numpy()
        passed = self._tokens_with_prompt(at)
        seen = self.seen
        seen.forward_tokens += passed
        seen.backward_tokens += passed
        seen.clipped_low += int(out.clipped_low_N.sum())
        seen.clipped_high += int(out.clipped_high_N.sum())
        seen.ratio_max = max(seen.ratio_max, float(out.ratio_N.max()))
        if out.kl_N is not None:
            seen.kl_sum += float(out.kl_N.double().sum())
            seen.kl_tokens += len(token)
        return float(loss.detach())

    def values(self, flops_per_token: int) -> Values:
        """The update's record."""
        rollouts = self.rollouts
        masked = int((~self.live_R).sum()) - self.advantages.unscored
        values = rollout_values(rollouts, self.advantages, masked) | self.seen.values()
        values |= sampler_gap(self.first_N, rollouts)
        values |= flops(
            self.seen, int(rollouts.lengths_R.sum()), rollouts.prompt_tokens, flops_per_token, self.loss.kl > 0
        )  # fmt: skip
        values["learning_rate"] = self.settings.learning_rate_at(self.step)
        return values
