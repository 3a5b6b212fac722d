"""The scalars of a GRPO update. Pure functions of rollouts and of what the optimiser steps saw.

`None` stands for what was not measured. Not here: logging.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from broaden.grpo.advantage import Advantages, informative_share_by_chance
from broaden.grpo.rollouts import Rollouts

Values = dict[str, float | int | None]


@dataclass(slots=True)
class Seen:
    """What the optimiser steps of one update saw, added up over micro-batches."""

    optimizer_steps: int = 0
    skipped_steps: int = 0
    loss: float = 0.0
    norms: list[float] = field(default_factory=list)
    unmasked_tokens: int = 0
    clipped_low: int = 0
    clipped_high: int = 0
    ratio_max: float = 1.0
    kl_sum: float = 0.0
    kl_tokens: int = 0
    backward_tokens: int = 0
    forward_tokens: int = 0

    def values(self) -> Values:
        """Telemetry of the optimiser steps."""
        n = self.unmasked_tokens
        return {
            "optimizer_steps": self.optimizer_steps,
            "skipped_steps": self.skipped_steps,
            "loss": self.loss / self.optimizer_steps if self.optimizer_steps else None,
            "grad_norm": float(np.mean(self.norms)) if self.norms else None,
            "grad_norm_max": max(self.norms, default=None),
            "clip_low": self.clipped_low / n if n else None,
            "clip_high": self.clipped_high / n if n else None,
            "ratio_max": self.ratio_max,
            "kl": self.kl_sum / self.kl_tokens if self.kl_tokens else None,
        }


def rollout_values(rollouts: Rollouts, advantages: Advantages, masked: int) -> Values:
    """Rewards, groups, lengths and entropy of a batch.

    `entropy`: exact, in nats, of softmax(logits) at temperature 1, mean over all sampled tokens (tokens weigh
    equally) on trajectories of the sampling temperature. `informative_chance`: see `informative_share_by_chance`.
    """
    rewards = [r for r in rollouts.rewards if r is not None]
    scores = [v.score for v in rollouts.verdicts if v.score is not None]
    lengths = rollouts.lengths_R
    return {
        "reward": float(np.mean(rewards)) if rewards else None,
        "reward_std": float(np.std(rewards)) if rewards else None,
        "accuracy": float(np.mean(scores)) if scores else None,
        "unscored": advantages.unscored,
        "masked": masked,
        "groups": advantages.groups,
        "rollouts": len(rollouts.verdicts),
        "informative": advantages.informative / advantages.groups if advantages.groups else None,
        "informative_chance": informative_share_by_chance(
            rollouts.rewards, [int(g) for g in rollouts.groups_R]
        ),
        "entropy": float(rollouts.entropy_N.mean()) if len(rollouts.entropy_N) else None,
        "completion_tokens": float(lengths.mean()),
        "truncated": float(rollouts.truncated_R.mean()),
        "tokens": int(lengths.sum()),
        "prompt_tokens": rollouts.prompt_tokens,
    }


def sampler_gap(trainer_N: np.ndarray, rollouts: Rollouts) -> Values:
    """How far sampler and trainer agree about the same tokens under the same weights (at temperature 1).

    `sampler_gap`: mean |log p_trainer - log p_sampler|, `sampler_gap_max`: the largest; `first_token_ratio`:
    mean p_trainer / p_sampler of each response's first token, 1 where the prompts are the same. Tokens that the
    trainer did not pass (NaN) are left out; all None where it passed none.
    """
    known_N = np.isfinite(trainer_N)
    if not known_N.any() or not len(rollouts.logprobs_N):
        return {"sampler_gap": None, "sampler_gap_max": None, "first_token_ratio": None}
    gap_N = np.abs(trainer_N - rollouts.logprobs_N)[known_N]
    first = rollouts.starts_R[:-1]
    first = first[known_N[first]]
    return {
        "sampler_gap": float(gap_N.mean()),
        "sampler_gap_max": float(gap_N.max()),
        "first_token_ratio": float(np.exp(trainer_N[first] - rollouts.logprobs_N[first]).mean()),
    }


def flops(seen: Seen, tokens: int, prompt_tokens: int, flops_per_token: int, reference: bool) -> Values:
    """Both ledgers of an update, with f = flops_per_token (2 x parameters, a forward pass).

    paper: tokens x (policy f + reference f + backward 2 f) = 4 f x tokens, 3 f without a KL term
    full:  decoding and shared prefill, every forward pass over prompt and completion (policy, pi_old, reference)
           and 2 f for every backward one, each row with its prompt: what the algorithm asks for, so that budgets
           do not depend on the device. The CPU's passes cost less: they share prompts and take pi_old from the sampler
    """
    full = tokens + prompt_tokens + seen.forward_tokens + 2 * seen.backward_tokens
    return {
        "flops_paper": (4 if reference else 3) * flops_per_token * tokens,
        "flops_full": flops_per_token * full,
    }


def finite(*values: float) -> bool:
    """Whether all are finite."""
    return all(math.isfinite(v) for v in values)
