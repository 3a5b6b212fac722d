"""Plain values of an ES stage: what the trainer takes. Sources of the defaults are in `config.schema`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from broaden.es.schedule import Schedule, scheduled
from broaden.es.shaping import Shaping
from broaden.perturb import FULL, Parameterisation
from broaden.records import Sampling


@dataclass(frozen=True, slots=True)
class EsSettings:
    """See `config.EsStage` for a sentence on each field."""

    updates: int
    members: int
    prompts: int
    sigma: float
    alpha: float
    sampling: Sampling
    samples: int = 1
    sigma_end: float | None = None
    sigma_schedule: Schedule = "constant"
    alpha_end: float | None = None
    alpha_schedule: Schedule = "constant"
    shaping: Shaping = "zscore"
    estimator: Literal["one_point", "antithetic"] = "one_point"
    member_in_key: bool = False
    precision: Literal["fp32_master", "bf16_inplace"] = "fp32_master"
    control: Literal["none", "random_z", "shuffled_rewards"] = "none"
    decay: float = 0.0
    selection: Parameterisation = FULL

    def sigma_at(self, step: int) -> float:
        """Perturbation scale at a 0-based step."""
        return scheduled(self.sigma, self.sigma_end, self.sigma_schedule, step, self.updates)

    def alpha_at(self, step: int) -> float:
        """Step size at a 0-based step."""
        return scheduled(self.alpha, self.alpha_end, self.alpha_schedule, step, self.updates)
