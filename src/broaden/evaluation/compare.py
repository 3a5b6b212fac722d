"""Two arms on the same problems: paired differences, and which problems changed.

Not here: methods over training seeds (`metrics.seedwise`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from broaden.errors import MetricError
from broaden.evaluation.sampling import problems_fingerprint
from broaden.evaluation.scores import Scores, Short, by_problem, ratios
from broaden.metrics.intervals import RESAMPLES, Interval, paired_differences
from broaden.metrics.paired import changes
from broaden.records import Record, SampleSet


@dataclass(frozen=True, slots=True)
class Comparison(Record):
    """other - base.

    `progressions` are ids of problems that only the other arm solved (at least one right sample),
    `regressions` those that only the base did; `mcnemar_p` tests their balance exactly.
    `conditions_differ` names conditions under which the two were drawn differently (temperature, M, ...).
    """

    metrics: dict[str, Interval]
    progressions: tuple[str, ...]
    regressions: tuple[str, ...]
    mcnemar_p: float
    conditions_differ: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Comparison:
        """Inverse of `to_json`."""
        metrics = {name: Interval.from_json(value) for name, value in data["metrics"].items()}
        lists = {name: tuple(data[name]) for name in ("progressions", "regressions")}
        return cls(**{**data, **lists, "metrics": metrics})


def compare(
    base: SampleSet,
    other: SampleSet,
    ks: Sequence[int] = (1, 8, 32),
    *,
    seed: int = 0,
    resamples: int = RESAMPLES,
    short: Short = "refuse",
    expected: bool = True,
) -> Comparison:
    """Paired comparison of two sample sets on the same problems.

    Raises:
        MetricError: other problems, another task or verifier version, or K above the samples there are.
    """
    _check_same(base, other)
    a, b = by_problem(base), _in_order(by_problem(other), base)
    differences = paired_differences(
        ratios(a, ks, short=short, expected=expected),
        ratios(b, ks, short=short, expected=expected),
        seed=seed,
        resamples=resamples,
    )
    moved = changes(a.c_P > 0, b.c_P > 0)
    return Comparison(
        differences,
        tuple(a.problems[i].id for i in moved.progressions),
        tuple(a.problems[i].id for i in moved.regressions),
        moved.p_value,
        _differences(base.conditions, other.conditions),
    )


def _in_order(scores: Scores, base: SampleSet) -> Scores:
    """The same scores with problems in the base's order."""
    at = {p.id: i for i, p in enumerate(scores.problems)}
    order = [at[p.id] for p in base.problems]
    groups = tuple(scores.groups[i] for i in order)
    return Scores(base.problems, groups, scores.n_P[order], scores.c_P[order])


def _check_same(base: SampleSet, other: SampleSet) -> None:
    if base.task != other.task:
        raise MetricError(f"the arms answer different tasks: {base.task!r} and {other.task!r}")
    ours, theirs = {p.id: p for p in base.problems}, {p.id: p for p in other.problems}
    only_a, only_b = ours.keys() - theirs.keys(), theirs.keys() - ours.keys()
    fix = "evaluate both with the same --task, --data, --limit and split"
    if only_a or only_b:
        example = sorted(only_a or only_b)[0]
        raise MetricError(
            f"a paired comparison needs the same problems: {len(only_a)} only in the base, "
            f"{len(only_b)} only in the other (for example {example!r})",
            fix,
        )
    changed = [i for i in ours if problems_fingerprint([ours[i]]) != problems_fingerprint([theirs[i]])]
    if changed:
        raise MetricError(
            f"{len(changed)} problems share an id but differ in text or gold (first {changed[0]!r})", fix
        )
    verifiers = {s.verdict.verifier for arm in (base, other) for s in arm.samples}
    if len(verifiers) > 1:
        raise MetricError(
            f"the samples were judged by different verifiers: {', '.join(sorted(verifiers))}",
            "judge both with `broaden rescore` first",
        )


def _differences(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
    keys = [k for k in dict.fromkeys((*a, *b)) if k not in ("engine", "entropy", "problems_sha256")]
    return {k: [a.get(k), b.get(k)] for k in keys if a.get(k) != b.get(k)}
