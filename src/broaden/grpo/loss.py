"""The GRPO loss on a flat list of completion tokens: pure functions, additive over any split of the rows.

Every normaliser of the loss is in a row's weight, computed once for the whole minibatch, so the loss is a plain
weighted sum over tokens: micro-batches, accumulation and the order of rows cannot change it. On-policy every
ratio is 1 and the policy part's *value* is about 0 (its gradient is not): it measures nothing.
Not here: advantages, log-probabilities (`models.logprobs`), the optimiser.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch

from broaden.errors import ConfigError

Aggregation = Literal["sequence", "token", "constant"]
Estimator = Literal["k1", "k2", "k3"]
GradientForm = Literal["value", "ratio"]
AGGREGATIONS: tuple[Aggregation, ...] = ("sequence", "token", "constant")

GRADIENT_FORMS: dict[tuple[Estimator, GradientForm], str] = {
    ("k1", "value"): "k1 differentiated as a value: its expected gradient is zero, a control",
    ("k2", "value"): "k2 differentiated as a value: log(pi/ref) grad log pi, the gradient of KL(pi || ref) on-policy",
    ("k3", "value"): "k3 differentiated as a value: (1 - ref/pi) grad log pi, biased for KL(pi || ref), the gradient "
    "of KL(ref || pi) on-policy",
    ("k1", "ratio"): "ratio * k1: the gradient of KL(pi || ref) on-policy, with the variance of k1",
    ("k2", "ratio"): "ratio * k2: a gradient of E[k2], not of a KL divergence",
    ("k3", "ratio"): "ratio * k3: the gradient of KL(pi || ref) on-policy",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class LossSettings:
    """Plain values of the loss (defaults: the paper's).

    `clip_low`, `clip_high`: the ratio's trust region [1 - low, 1 + high]; `dual_clip`: bound c > 1 + high on the
    ratio where the advantage is negative (None: none); `aggregation`: "sequence" (each response's mean, then the
    mean of responses), "token" (one mean over all tokens), "constant" (sum / (responses x max_new_tokens), Dr. GRPO);
    `kl_gradient`: whether the KL estimate is differentiated as a value or times the ratio (`GRADIENT_FORMS`).
    """

    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float | None = None
    aggregation: Aggregation = "sequence"
    kl: float = 0.001
    kl_estimator: Estimator = "k3"
    kl_gradient: GradientForm = "value"
    entropy_bonus: float = 0.0

    def __post_init__(self) -> None:
        if not (0.0 < self.clip_low < 1.0 and self.clip_high > 0.0):
            raise ConfigError(
                f"clip_low must be in (0, 1) and clip_high > 0; got {self.clip_low} and {self.clip_high}",
                "the paper uses 0.2 for both",
            )
        if self.dual_clip is not None and self.dual_clip <= 1.0 + self.clip_high:
            raise ConfigError(
                f"dual_clip {self.dual_clip} must be above 1 + clip_high = {1.0 + self.clip_high}",
                "leave it out, or use 3.0",
            )
        if (
            self.aggregation not in AGGREGATIONS
            or (self.kl_estimator, self.kl_gradient) not in GRADIENT_FORMS
        ):
            raise ConfigError(
                f"aggregation {self.aggregation!r}, kl_estimator {self.kl_estimator!r} or kl_gradient "
                f"{self.kl_gradient!r} is unknown",
                "sequence | token | constant; k1 | k2 | k3; value | ratio",
            )
        if self.kl < 0.0:
            raise ConfigError(f"kl must be 0 or more, got {self.kl}", "set kl = 0 for no reference policy")

    @property
    def gradient_form(self) -> str:
        """The sentence for the manifest: what the KL term's gradient is."""
        return GRADIENT_FORMS[self.kl_estimator, self.kl_gradient] if self.kl else "no KL term"


class TokenLosses(NamedTuple):
    """Per token: the loss to be weighted and summed, and what telemetry wants (detached)."""

    loss_N: torch.Tensor
    ratio_N: torch.Tensor
    clipped_low_N: torch.Tensor
    clipped_high_N: torch.Tensor
    kl_N: torch.Tensor | None


def row_weights(lengths_R: np.ndarray, aggregation: Aggregation, max_new_tokens: int) -> np.ndarray:
    """The weight of each of a row's tokens in the loss of a minibatch of R rows (float64).

        sequence: 1 / (R' T_i)        token: 1 / sum_i T_i        constant: 1 / (R' max_new_tokens)

    Args:
        lengths_R: completion tokens T_i of each row; 0 for a masked row (truncated, unscored), which leaves the
            numerator and the denominator alike: R' counts the rows with T_i > 0.
        aggregation: see `LossSettings`.
        max_new_tokens: the limit that was sampled with.
    """
    live_R = lengths_R > 0
    rows = int(live_R.sum())
    weights_R = np.zeros(len(lengths_R))
    if not rows:
        return weights_R
    if aggregation == "sequence":
        weights_R[live_R] = 1.0 / (rows * lengths_R[live_R])
    elif aggregation == "token":
        weights_R[live_R] = 1.0 / lengths_R.sum()
    else:
        weights_R[live_R] = 1.0 / (rows * max_new_tokens)
    return weights_R


def kl_estimate(logp_N: torch.Tensor, ref_N: torch.Tensor, estimator: Estimator) -> torch.Tensor:
    """Per-token estimate of KL(pi || ref) from samples of pi (Schulman 2020); l = log(pi / ref):

    k1 = l        k2 = l^2 / 2        k3 = exp(-l) - 1 + l
    """
    log_ratio = logp_N - ref_N
    if estimator == "k1":
        return log_ratio
    if estimator == "k2":
        return 0.5 * log_ratio.square()
    return torch.expm1(-log_ratio) + log_ratio


def token_losses(
    logp_N: torch.Tensor,
    old_N: torch.Tensor,
    ref_N: torch.Tensor | None,
    advantage_N: torch.Tensor,
    entropy_N: torch.Tensor | None,
    settings: LossSettings,
) -> TokenLosses:
    """The loss of each token (Eq. 3-5, with asymmetric and dual clipping as options):

        rho = exp(logp - old)
        J = min(rho A, clip(rho, 1 - low, 1 + high) A);   where A < 0 and dual_clip: J = max(J, dual_clip A)
        loss = -J + kl * k(logp, ref) [* rho] - entropy_bonus * H

    Args:
        logp_N: current policy, differentiable. old_N: the policy that sampled. ref_N: the reference (None iff
            settings.kl is 0). advantage_N: of the token's row. entropy_N: differentiable entropy (None: no bonus).
    """
    ratio_N = torch.exp(logp_N - old_N)
    low, high = 1.0 - settings.clip_low, 1.0 + settings.clip_high
    objective_N = torch.minimum(ratio_N * advantage_N, ratio_N.clamp(low, high) * advantage_N)
    if settings.dual_clip is not None:
        bounded_N = torch.maximum(objective_N, settings.dual_clip * advantage_N)
        objective_N = torch.where(advantage_N < 0, bounded_N, objective_N)
    loss_N, kl_N = -objective_N, None
    if settings.kl and ref_N is not None:
        kl_N = kl_estimate(logp_N, ref_N, settings.kl_estimator)
        loss_N = loss_N + settings.kl * (kl_N * ratio_N if settings.kl_gradient == "ratio" else kl_N)
    if settings.entropy_bonus and entropy_N is not None:
        loss_N = loss_N - settings.entropy_bonus * entropy_N
    seen_N = ratio_N.detach()
    return TokenLosses(
        loss_N,
        seen_N,
        (seen_N < low) & (advantage_N < 0),
        (seen_N > high) & (advantage_N > 0),
        None if kl_N is None else kl_N.detach(),
    )
