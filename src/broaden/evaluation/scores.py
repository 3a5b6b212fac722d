"""From stored samples to per-problem numbers: every metric as a ratio of sums over problems.

Unscored samples (verdict.score None) count neither way: they are left out of a problem's n, and a problem
without any scored sample is left out of the scores and counted. Not here: intervals (`summary`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from broaden.errors import MetricError
from broaden.metrics._arrays import FloatArray, IntArray
from broaden.metrics.intervals import Ratio
from broaden.metrics.majk import expected_maj_at_k, mixed_classes, vote
from broaden.metrics.passk import pass_at_k
from broaden.metrics.rates import distinct_fraction
from broaden.records import Problem, Sample, SampleSet

Short = Literal["refuse", "exclude"]


@dataclass(frozen=True, slots=True)
class Scores:
    """Samples grouped by problem, in the order of the sample set's problems.

    `n_P` scored samples, `c_P` right ones among them.
    """

    problems: tuple[Problem, ...]
    groups: tuple[tuple[Sample, ...], ...]
    n_P: IntArray
    c_P: IntArray

    @property
    def samples(self) -> int:
        """Fewest stored samples of a problem."""
        return min(len(g) for g in self.groups)

    def ballots(self, p: int) -> tuple[list[str | None], list[float | None]]:
        """Ballots and verdicts of problem p's retained responses, unscored ones abstaining."""
        group = self.groups[p]
        right = [s.verdict.score for s in group]
        return [s.verdict.ballot if s.verdict.score is not None else None for s in group], right


def by_problem(sample_set: SampleSet) -> Scores:
    """Group a sample set by problem. Raises MetricError where a problem has no samples or one twice."""
    found: dict[str, dict[int, Sample]] = {p.id: {} for p in sample_set.problems}
    for s in sample_set.samples:
        if s.problem_id not in found:
            raise MetricError(f"a sample names the problem {s.problem_id!r}, which is not in the set")
        if s.sample in found[s.problem_id]:
            raise MetricError(f"sample {s.sample} of problem {s.problem_id!r} is stored twice")
        found[s.problem_id][s.sample] = s
    empty = [pid for pid, group in found.items() if not group]
    if empty or not found:
        raise MetricError(
            f"{len(empty)} of {len(found)} problems have no samples"
            + (f" (first {empty[0]!r})" if empty else ""),
            "finish the evaluation: run it again with the same --out",
        )
    groups = tuple(tuple(group[m] for m in sorted(group)) for group in found.values())
    scores = [[s.verdict.score for s in g] for g in groups]
    n_P = np.array([sum(x is not None for x in row) for row in scores], dtype=np.int64)
    c_P = np.array([sum(x == 1.0 for x in row) for row in scores], dtype=np.int64)
    return Scores(sample_set.problems, groups, n_P, c_P)


def ratios(
    scores: Scores, ks: Sequence[int], *, short: Short = "refuse", expected: bool = True
) -> dict[str, Ratio]:
    """Every metric of an arm, by its name in tables and JSON, as ratios of sums over problems.

    Args:
        ks: the K of Pass@K and Maj@K ("pass@1" is always there; Maj@1 is first-sample accuracy).
        short: a problem with fewer than K scored samples because some could not be judged: "refuse"
            (MetricError) or "exclude" (left out of that metric).
        expected: add "emaj@K", the expectation of Maj@K over subsets, where K is below M.
    Returns:
        "pass@K", "maj@K", "emaj@K", "entropy" (token-weighted, absent if not recorded), "truncated",
        "no_answer", "unscored", "distinct", "length" (tokens a sample).
    """
    check_ks(scores, ks)
    out: dict[str, Ratio] = {}
    for k in dict.fromkeys((1, *ks)):
        out[f"pass@{k}"] = _pass(scores, k, short)
    for k in dict.fromkeys(ks):
        if k > 1:
            out[f"maj@{k}"] = _maj(scores, k)
            if expected and k < scores.samples:
                out[f"emaj@{k}"] = _expected_maj(scores, k)
    return {name: r for name, r in {**out, **_rates(scores)}.items() if r.den_P.sum() > 0}


def check_ks(scores: Scores, ks: Sequence[int]) -> None:
    """Refuse K < 1 and K above the samples of some problem (never padded)."""
    bad = [k for k in ks if k < 1 or k > scores.samples]
    if bad:
        p = int(np.argmin([len(g) for g in scores.groups]))
        raise MetricError(
            f"K = {bad[0]} needs {bad[0]} samples of every problem; {scores.problems[p].id!r} has "
            f"{len(scores.groups[p])}",
            f"draw more samples, or ask for K <= {scores.samples}",
        )


def counts(scores: Scores) -> dict[str, int]:
    """How often each verdict reason occurs, and what a reader should look at."""
    out: dict[str, int] = {}
    for s in (s for g in scores.groups for s in g):
        out[s.verdict.reason] = out.get(s.verdict.reason, 0) + 1
    out["unscored_problems"] = int(np.sum(scores.n_P == 0))
    out["mixed_ballots"] = sum(bool(mixed_classes(*scores.ballots(p))) for p in range(len(scores.groups)))
    out["only_right_is_borderline"] = sum(_only_borderline(g) for g in scores.groups)
    return out


def _only_borderline(group: Sequence[Sample]) -> bool:
    right = [s.verdict.borderline for s in group if s.verdict.score == 1.0]
    return bool(right) and all(right)


def _pass(scores: Scores, k: int, short: Short) -> Ratio:
    scored = scores.n_P > 0
    lacking = scored & (scores.n_P < k)
    if lacking.any() and short == "refuse":
        p = int(np.argmax(lacking))
        raise MetricError(
            f"Pass@{k}: {int(lacking.sum())} problems have fewer than {k} scored samples "
            f"({scores.problems[p].id!r}: {scores.n_P[p]} of {len(scores.groups[p])}; the rest are unscored)",
            f"judge them again with `broaden rescore`, or ask for K <= {int(scores.n_P[scored].min())}",
        )
    use = scored & ~lacking
    num = np.zeros(len(scores.groups))
    if use.any():
        num[use] = pass_at_k(scores.n_P[use], scores.c_P[use], k)
    return Ratio(num, use.astype(np.float64), bounded=True)


def _maj(scores: Scores, k: int) -> Ratio:
    num = np.array([vote(*scores.ballots(p), k).score for p in range(len(scores.groups))])
    return _scored_only(scores, num)


def _expected_maj(scores: Scores, k: int) -> Ratio:
    num = np.array([expected_maj_at_k(*scores.ballots(p), k) for p in range(len(scores.groups))])
    return _scored_only(scores, num)


def _scored_only(scores: Scores, num: FloatArray) -> Ratio:
    use = (scores.n_P > 0).astype(np.float64)
    return Ratio(num * use, use, bounded=True)


def _rates(scores: Scores) -> dict[str, Ratio]:
    groups = scores.groups
    known = [[s for s in g if s.mean_entropy is not None] for g in groups]
    nats = [sum((s.mean_entropy or 0.0) * len(s.token_ids) for s in g) for g in known]
    tokens = [sum(len(s.token_ids) for s in g) for g in known]
    return {
        "entropy": Ratio(np.array(nats, dtype=np.float64), np.array(tokens, dtype=np.float64)),
        "truncated": _share(groups, lambda s: s.finish == "length"),
        "no_answer": _share(groups, lambda s: s.verdict.score is not None and s.verdict.answer is None),
        "unscored": _share(groups, lambda s: s.verdict.score is None),
        "distinct": Ratio.mean([distinct_fraction([s.token_ids for s in g]) for g in groups], bounded=True),
        "length": Ratio.mean([sum(len(s.token_ids) for s in g) / len(g) for g in groups]),
    }


def _share(groups: Sequence[Sequence[Sample]], test: Callable[[Sample], bool]) -> Ratio:
    return Ratio.mean([sum(test(s) for s in g) / len(g) for g in groups], bounded=True)
