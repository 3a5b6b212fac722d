"""Supervised warm start: AdamW on the completion's cross-entropy, with weight noise as an option.

A generator that does no I/O: each `yield` is one update, after which `weights`, `optimizer` and the step
number are the whole state; interrupted there and resumed with the same arguments, the run is bit-equal.
Not here: saving, probes, phases (a phase is a stage: `runs` calls `train` once a stage).
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from broaden.errors import ConfigError, DivergedError
from broaden.models.decoder import forward, head_weight
from broaden.models.optimizer import AdamW, AdamWSettings, Weights, clip_factor, global_norm
from broaden.models.rows import Batch
from broaden.models.schedule import ScheduleKind, factor
from broaden.models.spec import ModelSpec
from broaden.records import StepRecord
from broaden.seeds import numpy_generator, stream
from broaden.sft.examples import ExampleSource, Feed
from broaden.sft.loss import completion_nll


@dataclass(frozen=True, slots=True)
class SftSettings:
    """Plain values of a warm-start stage (defaults: those of the bundled model's recipe).

    `micro_batch` None means the whole batch at once; `clip` 0 means no clipping; `weight_noise` is the
    standard deviation of the Gaussian added to every weight for a step's forward and backward passes; it grows
    linearly to that over the first `weight_noise_warmup` updates (a sharp start can't bear it all at once).
    """

    updates: int
    batch: int = 128
    micro_batch: int | None = None
    learning_rate: float = 5e-3
    schedule: ScheduleKind = "cosine"
    warmup: int = 50
    learning_rate_end: float = 0.0
    clip: float = 1.0
    weight_noise: float = 0.0
    weight_noise_warmup: int = 0
    weight_decay: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.98
    eps: float = 1e-8

    def __post_init__(self) -> None:
        if self.updates < 0 or self.batch < 1 or (self.micro_batch is not None and self.micro_batch < 1):
            raise ConfigError(
                "updates >= 0, batch and micro_batch >= 1 expected; got "
                f"{self.updates}, {self.batch}, {self.micro_batch}",
                "correct the stage's updates, batch or micro_batch",
            )
        if not (self.learning_rate > 0 and min(self.clip, self.weight_noise, self.weight_noise_warmup) >= 0):
            raise ConfigError(
                "learning_rate > 0, clip, weight_noise and weight_noise_warmup >= 0 expected; got "
                f"{self.learning_rate}, {self.clip}, {self.weight_noise}, {self.weight_noise_warmup}",
                "correct the stage's keys",
            )
        self.learning_rate_at(0)
        self.adamw()

    def adamw(self) -> AdamWSettings:
        """The optimiser's part of the settings."""
        return AdamWSettings(self.beta1, self.beta2, self.eps, self.weight_decay)

    def learning_rate_at(self, step: int) -> float:
        """The learning rate of the 0-based `step`; a constant schedule has no end to reach."""
        final = self.learning_rate_end / self.learning_rate if self.schedule != "constant" else 0.0
        return self.learning_rate * factor(self.schedule, step, self.updates, warmup=self.warmup, final=final)

    def weight_noise_at(self, step: int) -> float:
        """The standard deviation of the weight noise of the 0-based `step`."""
        return self.weight_noise * factor("constant", step, self.updates, warmup=self.weight_noise_warmup)


def optimizer_for(weights: Weights, settings: SftSettings) -> AdamW:
    """A fresh optimiser for a stage; load a saved state into it to resume."""
    return AdamW(weights, settings.adamw())


def noisy_leaves(weights: Weights, std: float, run_seed: int, step: int) -> Weights:
    """Leaves for autograd: the weights themselves (std 0), or copies w + std * eps.

    eps of a tensor is keyed by `stream(run_seed, "weight_noise", step, name)`.
    """
    leaves = {}
    for name, w in weights.items():
        leaf = w.detach()
        if std:
            g = numpy_generator(stream(run_seed, "weight_noise", step, name))
            noise = torch.from_numpy(g.standard_normal(tuple(w.shape), dtype="float32"))
            leaf = leaf + std * noise.to(w.device)
        leaves[name] = leaf.requires_grad_(True)
    return leaves


def gradients(
    spec: ModelSpec, leaves: Weights, batches: list[Batch], *, checkpoint_layers: bool = False
) -> tuple[Weights, float, float, int]:
    """Gradient of the mean completion cross-entropy, that loss, the mean token entropy, and the tokens.

    `leaves` are fresh (no gradient yet): gradients accumulate in them.
    """
    tokens = sum(batch.completion_tokens for batch in batches)
    device = next(iter(leaves.values())).device
    nll_sum, entropy_sum = 0.0, 0.0
    for batch in batches:
        hidden_BTH = forward(spec, leaves, batch.ids_BT.to(device), checkpoint_layers=checkpoint_layers)
        nll, entropy = completion_nll(hidden_BTH, head_weight(spec, leaves), batch)
        torch.autograd.backward(nll / tokens)
        nll_sum, entropy_sum = nll_sum + float(nll.detach()), entropy_sum + float(entropy)
    total = {n: torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for n, leaf in leaves.items()}
    return total, nll_sum / tokens, entropy_sum / tokens, tokens


def train(
    spec: ModelSpec,
    weights: Weights,
    examples: ExampleSource,
    settings: SftSettings,
    *,
    run_seed: int,
    optimizer: AdamW,
    start_step: int = 0,
    flops_per_token: int = 0,
    checkpoint_layers: bool = False,
) -> Iterator[StepRecord]:
    """Train `weights` (fp32, in place) from `start_step` to `settings.updates`; one record an update.

    Args:
        spec: the model's shape.
        weights: the center; written in place, so it is current after every yield.
        examples: packed pairs, or a function of the epoch that gives them.
        settings: plain values; the schedule counts from step 0 of this stage.
        run_seed: keys the order and the weight noise.
        optimizer: from `optimizer_for`; for a resume, with its saved state loaded.
        start_step: updates already done.
        flops_per_token: forward FLOPs of the model (2 x parameters); a step costs three times that a token.
        checkpoint_layers: recompute activations in the backward pass (large models).

    Raises:
        DivergedError: loss or gradient is not finite; weights and optimiser are those of the last good step.
    """
    feed = Feed(examples, run_seed, settings.batch)
    for step in range(start_step, settings.updates):
        began = time.perf_counter()
        batches = feed.micro_batches(step, settings.micro_batch or settings.batch)
        leaves = noisy_leaves(weights, settings.weight_noise_at(step), run_seed, step)
        grads, loss, entropy, tokens = gradients(spec, leaves, batches, checkpoint_layers=checkpoint_layers)
        norm = global_norm(grads)
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise DivergedError(
                f"sft step {step}: loss {loss}, gradient norm {norm}; weights are those before this step",
                "lower learning_rate or set clip",
            )
        lr = settings.learning_rate_at(step)
        optimizer.step(weights, grads, lr, clip_factor(norm, settings.clip))
        passed = sum(int(b.lengths_B.sum()) for b in batches)
        yield StepRecord(
            "sft",
            step,
            {
                "loss": loss,
                "entropy": entropy,
                "grad_norm": norm,
                "learning_rate": lr,
                "epoch": step * settings.batch / feed.size,
                "tokens": tokens,
                "input_tokens": passed,
                "padded_tokens": sum(b.ids_BT.numel() for b in batches),
                "flops_full": 3 * flops_per_token * passed,
                "seconds": time.perf_counter() - began,
            },
        )
