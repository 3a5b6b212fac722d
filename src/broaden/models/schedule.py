"""Learning-rate (and sigma, alpha) schedules as pure functions of the step: plain Python, no state.

Not here: who multiplies what by the factor; a restart at a stage boundary is a new count from step 0.
"""

from __future__ import annotations

import math
from typing import Literal

from broaden.errors import ConfigError

ScheduleKind = Literal["constant", "linear", "cosine"]
SCHEDULES: tuple[ScheduleKind, ...] = ("constant", "linear", "cosine")


def factor(kind: ScheduleKind, step: int, steps: int, *, warmup: int = 0, final: float = 0.0) -> float:
    """The factor by which a base value is multiplied at `step` (0-based) of `steps`.

        f(s) = min((s + 1) / warmup, 1) * (final + (1 - final) * shape(s / steps))
        shape(x) = 1 (constant) | 1 - x (linear) | (1 + cos(pi x)) / 2 (cosine)

    The warm-up multiplies the shape, it does not delay it. `final` is where linear and cosine end.

    Raises:
        ConfigError: an unknown kind, or steps, warmup or final out of range.
    """
    if kind not in SCHEDULES:
        raise ConfigError(
            f"schedule is one of {', '.join(SCHEDULES)}, not {kind!r}", "set schedule to one of them"
        )
    if steps < 0 or warmup < 0 or not 0.0 <= final <= 1.0:
        raise ConfigError(
            f"a schedule wants steps >= 0, warmup >= 0 and final in [0, 1]; got {steps}, {warmup}, {final}",
            "correct the stage's schedule keys",
        )
    ramp = min((step + 1) / warmup, 1.0) if warmup else 1.0
    if kind == "constant":
        return ramp
    x = min(step / max(steps, 1), 1.0)
    shape = 1.0 - x if kind == "linear" else 0.5 * (1.0 + math.cos(math.pi * x))
    return ramp * (final + (1.0 - final) * shape)
