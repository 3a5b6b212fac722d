"""One arm's table row: each metric with its interval over problems."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from broaden.evaluation.scores import Short, by_problem, counts, ratios
from broaden.metrics.intervals import RESAMPLES, Interval, intervals
from broaden.records import Record, SampleSet


@dataclass(frozen=True, slots=True)
class ArmSummary(Record):
    """Metrics of one evaluated model.

    `metrics` by name ("pass@1", "pass@32", "maj@32", "emaj@8", "entropy", "truncated", "no_answer",
    "unscored", "distinct", "length"; callers add "drift"); `counts` holds verdict reasons and flags.
    """

    task: str
    problems: int
    samples: int
    metrics: dict[str, Interval]
    counts: dict[str, int] = field(default_factory=dict)
    conditions: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> ArmSummary:
        """Inverse of `to_json`."""
        metrics = {name: Interval.from_json(value) for name, value in data["metrics"].items()}
        return cls(**{**data, "metrics": metrics})

    def with_metric(self, name: str, value: Interval | float) -> ArmSummary:
        """A copy with one more figure; a plain float becomes an interval of no width (drift)."""
        interval = value if isinstance(value, Interval) else Interval.exact(value)
        return replace(self, metrics={**self.metrics, name: interval})


def summarise(
    sample_set: SampleSet,
    ks: Sequence[int] = (1, 8, 32),
    *,
    seed: int = 0,
    resamples: int = RESAMPLES,
    short: Short = "refuse",
    expected: bool = True,
) -> ArmSummary:
    """Pass@K, Maj@K, entropy and rates with 95 % intervals over problems.

    Args:
        sample_set: from `evaluate` or a store.
        ks: refused (MetricError) where K is above some problem's samples.
        seed: of the bootstrap (the same seed resamples the same problems for every arm).
        short, expected: see `scores.ratios`.
    """
    scores = by_problem(sample_set)
    metrics = intervals(ratios(scores, ks, short=short, expected=expected), seed=seed, resamples=resamples)
    return ArmSummary(
        sample_set.task,
        len(scores.problems),
        scores.samples,
        metrics,
        counts(scores),
        dict(sample_set.conditions),
    )
