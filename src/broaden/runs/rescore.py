"""Verdicts again from stored samples: another verifier version, the same text, every difference listed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from broaden import tasks
from broaden.records import SampleSet, Verdict

LISTED = 20


@dataclass(frozen=True, slots=True)
class Difference:
    """One verdict that changed."""

    problem_id: str
    sample: int
    before: Verdict
    after: Verdict


@dataclass(frozen=True, slots=True)
class Rescored:
    """The sample set with fresh verdicts, and what changed."""

    rescored: SampleSet
    differences: tuple[Difference, ...]

    def to_json(self) -> dict[str, Any]:
        """Counts, and each difference with both verdicts."""
        return {
            "count": len(self.rescored.samples), "changed": len(self.differences),
            "score_before": _mean([d.before for d in self.differences]),
            "score_after": _mean([d.after for d in self.differences]),
            "differences": [
                {"problem": d.problem_id, "sample": d.sample, "before": d.before.to_json(), "after": d.after.to_json()}
                for d in self.differences
            ],
        }  # fmt: skip

    def text(self) -> str:
        """A few lines for people."""
        lines = [
            f"{len(self.rescored.samples)} samples judged again, {len(self.differences)} verdicts differ"
        ]
        for d in self.differences[:LISTED]:
            lines.append(f"  {d.problem_id} sample {d.sample}: {_short(d.before)} -> {_short(d.after)}")
        if len(self.differences) > LISTED:
            lines.append(f"  ... and {len(self.differences) - LISTED} more (--json lists all)")
        return "\n".join(lines)


def rescore(found: SampleSet) -> Rescored:
    """Judge every stored sample with the task's verifier of this version."""
    task = tasks.get(found.task)
    problems = {p.id: p for p in found.problems}
    samples, differences = [], []
    for sample in found.samples:
        verdict = task.judge(problems[sample.problem_id], sample.text, sample.finish)
        if verdict != sample.verdict:
            differences.append(Difference(sample.problem_id, sample.sample, sample.verdict, verdict))
        samples.append(replace(sample, verdict=verdict))
    return Rescored(replace(found, samples=tuple(samples)), tuple(differences))


def _mean(verdicts: list[Verdict]) -> float | None:
    scored = [v.score for v in verdicts if v.score is not None]
    return sum(scored) / len(scored) if scored else None


def _short(verdict: Verdict) -> str:
    return f"{verdict.reason} ({verdict.answer!r}, {verdict.verifier})"
