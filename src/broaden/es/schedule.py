"""Which problems an update sees, and how sigma and alpha go. Pure functions of the step."""

from __future__ import annotations

import math
from typing import Literal

from broaden.seeds import numpy_generator, stream


def batch_indices(n: int, size: int, step: int, run_seed: int) -> list[int]:
    """Problems of a step: a keyed shuffle per epoch, cut into mini-batches, the short tail kept.

    Args:
        n: problems in the split.
        size: mini-batch size P.
        step: 0-based update.
        run_seed: keys the epoch's order.
    """
    per_epoch = math.ceil(n / size)
    epoch, batch = divmod(step, per_epoch)
    order = numpy_generator(stream(run_seed, "order", epoch)).permutation(n)
    return [int(i) for i in order[batch * size : (batch + 1) * size]]


Schedule = Literal["constant", "linear", "cosine"]


def scheduled(start: float, end: float | None, how: Schedule, step: int, updates: int) -> float:
    """Value at a 0-based step; `end` is reached at the last update."""
    if how == "constant" or end is None or updates <= 1:
        return start
    t = step / (updates - 1)
    if how == "cosine":
        t = 0.5 - 0.5 * math.cos(math.pi * t)
    return start + (end - start) * t
