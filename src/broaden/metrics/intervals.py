"""Intervals. Samples of one problem are correlated, so the unit that is resampled is the problem.

Every metric of an arm is written as a ratio of sums over problems, sum_p num_p / sum_p den_p (den = 1 for
a mean over problems, the token count for token-weighted entropy, 0 for an excluded problem), so that one
set of resampling weights serves all metrics, both axes of a frontier and both arms of a comparison.
Intervals over problems compare checkpoints; methods are compared over training seeds x problems
(`seed_problem_interval`). Not here: what is measured (`passk`, `majk`), and tests (`paired`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from broaden.errors import MetricError
from broaden.metrics._arrays import FloatArray, IntArray, floats, same_shape
from broaden.records import Record
from broaden.seeds import numpy_generator, stream

RESAMPLES = 2000
LEVEL = 0.95
TINY = 10  # below this many problems a percentile bootstrap is far too narrow
_CELLS = 4_000_000  # weights held at once


@dataclass(frozen=True, slots=True)
class Interval(Record):
    """A value with the ends of its interval; low = high = value where nothing was sampled."""

    value: float
    low: float
    high: float

    @classmethod
    def exact(cls, value: float) -> Interval:
        """A figure that is not an estimate (drift, a count)."""
        return cls(float(value), float(value), float(value))

    def excludes_zero(self) -> bool:
        """True where the whole interval lies on one side of zero."""
        return self.low > 0.0 or self.high < 0.0


@dataclass(frozen=True, slots=True)
class Ratio:
    """A metric as sum(num_P) / sum(den_P); `bounded` says that it lies in [0, 1] problem by problem."""

    num_P: FloatArray
    den_P: FloatArray
    bounded: bool = False

    @classmethod
    def mean(cls, values: Any, *, bounded: bool = False) -> Ratio:
        """The mean over problems of one value a problem."""
        num_P = floats(values, "values", 1)
        return cls(num_P, np.ones_like(num_P), bounded)

    @property
    def value(self) -> float:
        """The ratio itself. Raises MetricError where the denominator is zero."""
        den = float(self.den_P.sum())
        if den == 0.0:
            raise MetricError("no problem has a value for this metric")
        return float(self.num_P.sum()) / den


def bootstrap_weights(problems: int, key: int, resamples: int = RESAMPLES) -> Iterator[IntArray]:
    """Blocks of multinomial weights, in all (resamples, problems): how often each problem was drawn.

    The same (problems, key, resamples) give the same weights: that is what pairs two arms.
    """
    if problems < 1 or resamples < 1:
        raise MetricError(f"a bootstrap needs problems and resamples, got {problems} and {resamples}")
    rng = numpy_generator(key)
    block = max(1, _CELLS // problems)
    for start in range(0, resamples, block):
        rows = min(block, resamples - start)
        drawn = rng.integers(0, problems, size=(rows, problems))
        drawn += np.arange(rows)[:, None] * problems
        yield np.bincount(drawn.ravel(), minlength=rows * problems).reshape(rows, problems)


def bootstrap_ratios(
    ratios: Mapping[str, Ratio], *, seed: int, what: str = "problems", resamples: int = RESAMPLES
) -> dict[str, FloatArray]:
    """Bootstrap draws (resamples,) of each ratio under one joint resampling of problems.

    A draw whose denominator is zero is NaN (only where excluded problems fill a whole resample).
    """
    if not ratios:
        return {}
    num_MP = np.stack([r.num_P for r in ratios.values()])
    den_MP = np.stack([r.den_P for r in ratios.values()])
    key = stream(seed, "bootstrap", what)
    blocks = []
    for weights_RP in bootstrap_weights(num_MP.shape[1], key, resamples):
        w_PR = weights_RP.T.astype(np.float64)
        den_MR = den_MP @ w_PR
        with np.errstate(invalid="ignore"):
            blocks.append(np.where(den_MR > 0, num_MP @ w_PR / np.where(den_MR > 0, den_MR, 1.0), np.nan))
    draws_MR = np.concatenate(blocks, axis=1)
    return dict(zip(ratios, draws_MR, strict=True))


def percentile(value: float, draws_R: FloatArray, level: float = LEVEL) -> Interval:
    """Percentile interval of bootstrap draws around a point value (NaN draws left out)."""
    kept = draws_R[~np.isnan(draws_R)]
    if kept.size == 0:
        raise MetricError("no bootstrap draw has a value")
    low, high = np.quantile(kept, [(1 - level) / 2, (1 + level) / 2])
    return Interval(value, min(float(low), value), max(float(high), value))


def intervals(
    ratios: Mapping[str, Ratio],
    *,
    seed: int,
    what: str = "problems",
    resamples: int = RESAMPLES,
    level: float = LEVEL,
) -> dict[str, Interval]:
    """The interval over problems of every ratio, jointly resampled.

    A metric in [0, 1] with fewer than ten problems, or with the same value in all of them (where the
    bootstrap would claim certainty), gets a Wilson interval on its problems instead: at a given mean no
    variable in [0, 1] has more variance than a Bernoulli, so that one errs on the wide side.
    """
    draws = bootstrap_ratios(ratios, seed=seed, what=what, resamples=resamples)
    out = {}
    for name, ratio in ratios.items():
        used = ratio.den_P > 0
        if ratio.bounded and (used.sum() < TINY or np.ptp(ratio.num_P[used] / ratio.den_P[used]) == 0.0):
            low_high = wilson(ratio.value * int(used.sum()), int(used.sum()), level)
            out[name] = Interval(ratio.value, min(low_high.low, ratio.value), max(low_high.high, ratio.value))
        else:
            out[name] = percentile(ratio.value, draws[name], level)
    return out


def bootstrap_over_problems(
    values: Any, *, seed: int, what: str = "problems", resamples: int = RESAMPLES, level: float = LEVEL
) -> Interval:
    """Mean over problems with its percentile interval; `values` holds one number a problem."""
    ratio = {"mean": Ratio.mean(values)}
    return intervals(ratio, seed=seed, what=what, resamples=resamples, level=level)["mean"]


def paired_differences(
    base: Mapping[str, Ratio],
    other: Mapping[str, Ratio],
    *,
    seed: int,
    what: str = "problems",
    resamples: int = RESAMPLES,
    level: float = LEVEL,
) -> dict[str, Interval]:
    """other - base for every metric that both have, over the same problems, resampled together.

    A problem that is excluded from a metric in one arm (den = 0) is excluded in both.
    """
    names = [n for n in other if n in base]
    both: dict[str, Ratio] = {}
    for name in names:
        a, b = base[name], other[name]
        same_shape(a.num_P, b.num_P, f"the two arms of {name!r}")
        keep = ((a.den_P > 0) & (b.den_P > 0)).astype(np.float64)
        if not keep.any():
            continue
        both[f"a{name}"] = Ratio(a.num_P * keep, a.den_P * keep)
        both[f"b{name}"] = Ratio(b.num_P * keep, b.den_P * keep)
    draws = bootstrap_ratios(both, seed=seed, what=what, resamples=resamples)
    return {
        name: percentile(
            both[f"b{name}"].value - both[f"a{name}"].value, draws[f"b{name}"] - draws[f"a{name}"], level
        )
        for name in names
        if f"a{name}" in both
    }


def paired_difference(
    base: Any,
    other: Any,
    *,
    seed: int,
    what: str = "problems",
    resamples: int = RESAMPLES,
    level: float = LEVEL,
) -> Interval:
    """Mean over problems of other_p - base_p (per-problem Pass@K, Maj@K, ...), bootstrapped over problems."""
    a, b = Ratio.mean(base), Ratio.mean(other)
    out = paired_differences({"d": a}, {"d": b}, seed=seed, what=what, resamples=resamples, level=level)
    return out["d"]


@dataclass(frozen=True, slots=True)
class Joint:
    """Two metrics resampled together: their intervals, the draws (resamples, 2) and their correlation."""

    x: Interval
    y: Interval
    draws_R2: FloatArray
    correlation: float


def joint_bootstrap(
    x: Ratio, y: Ratio, *, seed: int, what: str = "problems", resamples: int = RESAMPLES, level: float = LEVEL
) -> Joint:
    """Both axes of a Pareto or frontier figure under one resampling of problems."""
    same_shape(x.num_P, y.num_P, "the two axes")
    draws = bootstrap_ratios({"x": x, "y": y}, seed=seed, what=what, resamples=resamples)
    pair = np.stack([draws["x"], draws["y"]], axis=1)
    varied = bool(np.all(np.ptp(pair, axis=0) > 0))
    corr = float(np.corrcoef(pair.T)[0, 1]) if varied else 0.0
    return Joint(percentile(x.value, draws["x"], level), percentile(y.value, draws["y"], level), pair, corr)


def wilson(successes: float, trials: int, level: float = LEVEL) -> Interval:
    """Wilson score interval of a proportion.

        (p + z^2/2n +- z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n),   p = successes/trials

    `successes` may be a sum of scores in [0, 1]; the interval is then conservative.
    """
    if trials < 1 or not 0 <= successes <= trials + 1e-9:
        raise MetricError(
            f"a proportion needs 0 <= successes <= trials, trials >= 1; got {successes} of {trials}"
        )
    z = NormalDist().inv_cdf((1 + level) / 2)
    p = min(successes / trials, 1.0)
    centre = (p + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z / (1 + z * z / trials) * math.sqrt(p * (1 - p) / trials + z * z / (4 * trials * trials))
    low = 0.0 if p == 0.0 else max(0.0, centre - half)
    high = 1.0 if p == 1.0 else min(1.0, centre + half)
    return Interval(p, low, high)
