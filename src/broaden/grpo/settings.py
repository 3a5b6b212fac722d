"""Plain values of a GRPO stage, and the named sets of them that papers and libraries use.

Not here: a sentence on each field for users (`config.schema`), the presets' values (`config.presets`), the
arithmetic (`advantage`, `loss`).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

import torch

from broaden.config.presets import GRPO
from broaden.errors import ConfigError
from broaden.grpo.advantage import Scale
from broaden.grpo.loss import Aggregation, Estimator, GradientForm, LossSettings
from broaden.models.optimizer import AdamWSettings
from broaden.models.schedule import ScheduleKind, factor
from broaden.records import Sampling

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class GrpoSettings:
    """What the trainer takes (defaults: the paper's, whose response limit is 2,048).

    An *update* is one batch of rollouts; it makes `inner` passes over the batch, each cut into minibatches of
    `minibatch` prompts or responses (`minibatch_unit`; None: the whole batch), one optimiser step a minibatch.
    The learning rate is that of the update. `micro_batch` (responses a forward pass) changes no result.
    """

    updates: int
    prompts: int = 64
    group: int = 8
    temperature: float = 1.0
    max_new_tokens: int = 256
    minibatch: int | None = 32
    minibatch_unit: Literal["prompts", "responses"] = "prompts"
    inner: int = 1
    micro_batch: int = 64
    scale: Scale = "population"
    scale_eps: float = 0.0
    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float | None = None
    aggregation: Aggregation = "sequence"
    kl: float = 0.001
    kl_estimator: Estimator = "k3"
    kl_gradient: GradientForm = "value"
    entropy_bonus: float = 0.0
    mask_truncated: bool = False
    learning_rate: float = 1e-6
    schedule: ScheduleKind = "constant"
    warmup: int = 0
    learning_rate_end: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    clip: float = 1.0
    compute: Literal["float32", "bfloat16"] = "float32"
    checkpoint_layers: bool = False
    control: Literal["none", "permuted_advantages"] = "none"

    def __post_init__(self) -> None:
        if self.updates < 0:
            raise ConfigError(
                f"updates must not be negative, got {self.updates}", "correct the stage's updates"
            )
        whole = {"prompts": self.prompts, "inner": self.inner, "micro_batch": self.micro_batch}
        wrong = [name for name, value in whole.items() if value < 1]
        if wrong or (self.minibatch is not None and self.minibatch < 1):
            name = wrong[0] if wrong else "minibatch"
            raise ConfigError(f"{name} must be at least 1", f"correct the stage's {name}")
        if self.group < 2:
            raise ConfigError(
                f"a group of {self.group} has nothing to be compared with", "set group to 2 or more"
            )
        if self.temperature <= 0.0:
            raise ConfigError(
                f"GRPO samples at a temperature above 0, got {self.temperature}: greedy responses of a group are equal",
                "set temperature = 1.0",
            )
        if not (self.learning_rate > 0.0 and self.clip >= 0.0 and self.scale_eps >= 0.0):
            raise ConfigError(
                "learning_rate > 0, clip >= 0 and scale_eps >= 0 expected; got "
                f"{self.learning_rate}, {self.clip}, {self.scale_eps}",
                "correct the stage's keys",
            )
        self.loss()
        self.adamw()
        self.learning_rate_at(0)

    @property
    def sampling(self) -> Sampling:
        """How rollouts are drawn: with the sampler's log-probabilities and exact entropy, for telemetry."""
        return Sampling(self.temperature, self.max_new_tokens, logprobs=True, entropy=True)

    @property
    def steps_per_update(self) -> int:
        """Optimiser steps of an update with a full batch (a short last batch of an epoch may make fewer)."""
        units = self.prompts * (self.group if self.minibatch_unit == "responses" else 1)
        return self.inner * (1 if self.minibatch is None else -(-units // self.minibatch))

    @property
    def dtype(self) -> torch.dtype:
        """Type of the forward and backward passes; the master stays float32."""
        return DTYPES[self.compute]

    def loss(self) -> LossSettings:
        """The loss's part of the settings."""
        return LossSettings(
            self.clip_low, self.clip_high, self.dual_clip, self.aggregation,
            self.kl, self.kl_estimator, self.kl_gradient, self.entropy_bonus,
        )  # fmt: skip

    def adamw(self) -> AdamWSettings:
        """The optimiser's part of the settings."""
        return AdamWSettings(self.beta1, self.beta2, self.eps, self.weight_decay)

    def learning_rate_at(self, step: int) -> float:
        """The learning rate of the 0-based update `step`; a constant schedule has no end to reach."""
        final = self.learning_rate_end / self.learning_rate if self.schedule != "constant" else 0.0
        return self.learning_rate * factor(self.schedule, step, self.updates, warmup=self.warmup, final=final)


PRESETS = GRPO
"""By name; `config.presets` says where each comes from."""


def preset(name: str, **changes: Any) -> GrpoSettings:
    """The settings of a preset with changes on top (`updates` at least).

    Raises:
        ConfigError: no such preset.
    """
    if name not in PRESETS:
        raise ConfigError(f"no GRPO preset {name!r}", f"one of {', '.join(PRESETS)}")
    return GrpoSettings(**{**PRESETS[name], **changes})


def differences(settings: GrpoSettings, name: str) -> dict[str, tuple[Any, Any]]:
    """Where settings differ from a preset: {field: (here, there)} over the fields that the preset states."""
    here = dataclasses.asdict(settings)
    return {key: (here[key], there) for key, there in PRESETS[name].items() if here[key] != there}
