"""Two arms on the same problems: which problems changed, and exact tests.

Not here: paired intervals (`intervals.paired_differences`).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import comb
from typing import Any

import numpy as np

from broaden.errors import MetricError
from broaden.metrics._arrays import floats, same_shape
from broaden.seeds import numpy_generator, stream

_EXACT = 16  # sign flips of up to this many nonzero differences are enumerated


@dataclass(frozen=True, slots=True)
class Changes:
    """Indices of problems solved only by the other arm (progressions) or only by the base (regressions)."""

    progressions: tuple[int, ...]
    regressions: tuple[int, ...]
    p_value: float


def changes(base: Any, other: Any) -> Changes:
    """Problems that went from unsolved to solved and back, with McNemar's exact p-value.

    Args:
        base, other: solved or not, one boolean a problem, in the same order.
    """
    a, b = np.asarray(base, dtype=bool), np.asarray(other, dtype=bool)
    if a.shape != b.shape or a.ndim != 1:
        raise MetricError(f"two arms of one list of problems are needed, got shapes {a.shape} and {b.shape}")
    up, down = np.flatnonzero(~a & b), np.flatnonzero(a & ~b)
    return Changes(tuple(up.tolist()), tuple(down.tolist()), mcnemar(len(up), len(down)))


def mcnemar(up: int, down: int) -> float:
    """Two-sided exact McNemar test: discordant pairs are fair coin flips under the null.

    p = min(1, 2 sum_{i <= min(up, down)} C(n, i) / 2^n),   n = up + down
    """
    if up < 0 or down < 0:
        raise MetricError(f"counts of discordant pairs cannot be negative: {up}, {down}")
    n = up + down
    tail = sum(comb(n, i) for i in range(min(up, down) + 1))
    return min(1.0, float(2 * tail / 2**n)) if n else 1.0


def sign_flip_test(base: Any, other: Any, *, seed: int, draws: int = 10_000) -> float:
    """Two-sided paired permutation test of the mean difference (signs of d_p flipped at random).

    Exact (all 2^m flips) for up to 16 nonzero differences, else Monte-Carlo with (1 + hits)/(1 + draws).
    """
    a, b = floats(base, "base", 1), floats(other, "other", 1)
    same_shape(a, b, "base and other")
    d = (b - a)[(b - a) != 0.0]
    if d.size == 0:
        return 1.0
    seen = abs(float(d.sum())) * (1 - 1e-12)
    if d.size <= _EXACT:
        bits = (np.arange(2**d.size)[:, None] >> np.arange(d.size)) & 1
        return float(np.mean(np.abs((1 - 2 * bits) @ d) >= seen))
    rng = numpy_generator(stream(seed, "bootstrap", "sign_flip"))
    hits = 0
    for start in range(0, draws, 1000):
        rows = min(1000, draws - start)
        hits += int(np.sum(np.abs((1 - 2 * rng.integers(0, 2, size=(rows, d.size))) @ d) >= seen))
    return (1 + hits) / (1 + draws)
