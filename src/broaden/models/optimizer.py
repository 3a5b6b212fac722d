"""AdamW over a dict of fp32 weights, updated in place, with a state that is tensors by name.

Own rather than torch.optim: the state is keyed by canonical names (so it can be saved beside the
weights and survive a reload bit for bit), the step takes the gradients as an argument, and nothing
hides in parameter groups. Not here: schedules (`schedule.factor`), saving (`runs`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from broaden.errors import ConfigError, ResumeError
from broaden.models.gradient_kernels import adamw_step, square_sum

Weights = dict[str, torch.Tensor]


def global_norm(gradients: Mapping[str, torch.Tensor]) -> float:
    """sqrt(sum of squares) over all tensors; each tensor's share in float64, names in sorted order."""
    return math.sqrt(math.fsum(_square_sum(gradients[name]) for name in sorted(gradients)))


def _square_sum(x: torch.Tensor) -> float:
    return square_sum(x) if _compiled(x) else float(x.double().square().sum())


def _compiled(*tensors: torch.Tensor) -> bool:
    return all(t.device.type == "cpu" and t.dtype == torch.float32 and t.is_contiguous() for t in tensors)


def clip_factor(norm: float, limit: float) -> float:
    """min(1, limit / (norm + 1e-6)); 1 where limit is 0 (no clipping)."""
    return min(1.0, limit / (norm + 1e-6)) if limit else 1.0


@dataclass(frozen=True, slots=True)
class AdamWSettings:
    """Plain values of AdamW; `weight_decay` is applied to matrices only (never norms and biases)."""

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        if not (
            0.0 <= self.beta1 < 1.0 and 0.0 <= self.beta2 < 1.0 and self.eps > 0 and self.weight_decay >= 0
        ):
            raise ConfigError(
                f"AdamW wants betas in [0, 1), eps > 0 and weight_decay >= 0; got {self}",
                "correct beta1, beta2, eps or weight_decay",
            )


class AdamW:
    """AdamW with decoupled decay (Loshchilov and Hutter 2019).

        m <- b1 m + (1 - b1) g          v <- b2 v + (1 - b2) g^2
        theta <- theta - lr * decay * theta            (matrices only)
        theta <- theta - lr * (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)

    Args:
        weights: fp32 tensors by name; `step` writes into them.
        settings: betas, eps, decay.
    """

    def __init__(self, weights: Weights, settings: AdamWSettings = AdamWSettings()) -> None:
        wrong = sorted(name for name, w in weights.items() if w.dtype != torch.float32)
        if wrong:
            raise ConfigError(
                f"the optimiser works on float32 weights; {wrong[0]} is {weights[wrong[0]].dtype}",
                "load the model with weights_dtype='float32'",
            )
        self.settings = settings
        self.steps = 0
        self._m = {name: torch.zeros_like(w) for name, w in weights.items()}
        self._v = {name: torch.zeros_like(w) for name, w in weights.items()}

    @torch.no_grad()
    def step(
        self, weights: Weights, gradients: Mapping[str, torch.Tensor], lr: float, scale: float = 1.0
    ) -> None:
        """One update of `weights` in place with `scale * gradients` (scale: the clip factor)."""
        s = self.settings
        self.steps += 1
        correction1 = 1.0 - s.beta1**self.steps
        correction2 = 1.0 - s.beta2**self.steps
        for name, m in self._m.items():
            v, w = self._v[name], weights[name]
            decay = 1.0 - lr * s.weight_decay if w.dim() > 1 else 1.0
            if _compiled(w, gradients[name]):
                adamw_step(
                    w, gradients[name], m, v, scale=scale, beta1=s.beta1, beta2=s.beta2, eps=s.eps, decay=decay,
                    rate1=lr / correction1, root2=correction2**-0.5,
                )  # fmt: skip
                continue
            g = gradients[name] if scale == 1.0 else gradients[name] * scale
            m.lerp_(g, 1.0 - s.beta1)
            v.mul_(s.beta2).addcmul_(g, g, value=1.0 - s.beta2)
            if decay != 1.0:
                w.mul_(decay)
            w.addcdiv_(m / correction1, (v / correction2).sqrt_().add_(s.eps), value=-lr)

    def state(self) -> dict[str, torch.Tensor]:
        """The whole state as tensors by name (live: copy or save before the next step)."""
        out = {"adamw.steps": torch.tensor(self.steps, dtype=torch.int64)}
        out.update({f"adamw.m.{name}": m for name, m in self._m.items()})
        out.update({f"adamw.v.{name}": v for name, v in self._v.items()})
        return out

    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        """Inverse of `state`: copies in place; the next step is bit-equal to the uninterrupted one.

        Raises:
            ResumeError: names or shapes that are not this optimiser's.
        """
        mine = self.state()
        wrong = sorted(set(mine) ^ set(state)) or sorted(n for n in mine if mine[n].shape != state[n].shape)
        if wrong:
            raise ResumeError(
                f"the optimiser state is for other weights: {len(wrong)} names or shapes differ ({wrong[0]})",
                "resume with the model and settings that the run was started with",
            )
        self.steps = int(state["adamw.steps"])
        for name in self._m:
            self._m[name].copy_(state[f"adamw.m.{name}"])
            self._v[name].copy_(state[f"adamw.v.{name}"])
