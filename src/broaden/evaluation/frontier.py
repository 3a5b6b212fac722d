"""An arm against the base's own temperature frontier: coverage at equal Pass@1, on the same problems."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from broaden.errors import MetricError
from broaden.evaluation.scores import by_problem
from broaden.metrics.frontier import CoverageGap, coverage_gap
from broaden.metrics.passk import pass_at_k
from broaden.records import SampleSet


def subset(found: SampleSet, problem_ids: Collection[str]) -> SampleSet:
    """The same samples for fewer problems. Raises MetricError where one was not asked."""
    wanted = set(problem_ids)
    problems = tuple(p for p in found.problems if p.id in wanted)
    if len(problems) != len(wanted):
        raise MetricError(f"{len(wanted) - len(problems)} of {len(wanted)} problems were not evaluated")
    samples = tuple(s for s in found.samples if s.problem_id in wanted)
    return replace(found, problems=problems, samples=samples)


def gap_to_frontier(arm: SampleSet, base: Sequence[SampleSet], k: int, *, seed: int = 0) -> CoverageGap:
    """Pass@K of `arm` minus the base frontier's at the arm's Pass@1, with a joint bootstrap over problems.

    Args:
        base: the base at several temperatures, on the arm's problems in the arm's order.

    Raises:
        MetricError: other problems, or problems with fewer than K scored samples.
    """
    ids = [p.id for p in arm.problems]
    if any([p.id for p in b.problems] != ids for b in base):
        raise MetricError(
            "the arm and the base's frontier are over different problems", "evaluate the same ones"
        )
    arm_1, arm_k = _per_problem(arm, k)
    rows = [_per_problem(b, k) for b in base]
    return coverage_gap(
        arm_1, arm_k, np.stack([r[0] for r in rows]), np.stack([r[1] for r in rows]), seed=seed
    )


def _per_problem(found: SampleSet, k: int) -> tuple[np.ndarray, np.ndarray]:
    scores = by_problem(found)
    return scores.c_P / scores.n_P, pass_at_k(scores.n_P, scores.c_P, k)
