"""`broaden tasks audit`: a second opinion on the verdicts that decide Pass@M, and all borderline verdicts.

A problem with a single right sample among its M stands or falls with that verdict; it is judged again by an
independent route:
math-verify for what the own rules decided, a syntax-tree evaluator for Countdown, the official normalisation
for open QA, a plain
pattern for letters, a second run for programs. Not here: changing a verdict.
"""

from __future__ import annotations

import ast
import re
import string
from collections import defaultdict
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

from broaden.records import Problem, Sample, SampleSet
from broaden.tasks import coderunner, mathpool
from broaden.tasks.registry import get

Second = Literal["agrees", "differs", "none"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One verdict looked at again. `second` "none": no independent route could tell."""

    problem_id: str
    sample: int
    reason: str
    answer: str | None
    second: Second
    route: str
    decides: bool
    borderline: bool
    note: str

    def to_json(self) -> dict[str, Any]:
        """Plain dict."""
        return {
            "problem": self.problem_id, "sample": self.sample, "reason": self.reason, "answer": self.answer,
            "second": self.second,
            "route": self.route, "decides": self.decides, "borderline": self.borderline, "note": self.note,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Audit:
    """All findings on a sample set."""

    task: str
    problems: int
    samples: int
    deciding: int
    findings: tuple[Finding, ...]
    mixed: tuple[tuple[str, str], ...]

    @property
    def differs(self) -> int:
        """Deciding verdicts that the second route contradicts."""
        return sum(f.second == "differs" and f.decides for f in self.findings)

    def to_json(self) -> dict[str, Any]:
        """One JSON object."""
        return {
            "task": self.task, "problems": self.problems, "samples": self.samples, "deciding": self.deciding,
            "differs": self.differs, "borderline": sum(f.borderline for f in self.findings),
            "mixed_ballots": [list(m) for m in self.mixed], "findings": [f.to_json() for f in self.findings],
        }  # fmt: skip

    def text(self) -> str:
        """The findings for people."""
        lines = [
            f"{self.task}: {self.samples} samples of {self.problems} problems; {self.deciding} problems have a single "
            f"right sample, {self.differs} of these verdicts are contradicted by the second route"
        ]
        for f in self.findings:
            marks = ", ".join(
                m for m, on in (("decides Pass@M", f.decides), ("borderline", f.borderline)) if on
            )
            said = f"{f.reason} ({(f.answer or '')[:60]!r}), {marks}; {f.route}: {f.second} {f.note}"
            lines.append(f"  {f.problem_id} sample {f.sample}: {said}".rstrip())
        lines += [
            f"  {problem}: ballot {ballot[:60]!r} has right and wrong samples"
            for problem, ballot in self.mixed
        ]
        return "\n".join(lines)


def audit(found: SampleSet) -> Audit:
    """Looks again at every deciding right verdict, and lists the borderline ones."""
    problems = {p.id: p for p in found.problems}
    right: dict[str, list[Sample]] = defaultdict(list)
    ballots: dict[tuple[str, str], set[float | None]] = defaultdict(set)
    for s in found.samples:
        if s.verdict.score == 1.0:
            right[s.problem_id].append(s)
        if s.verdict.ballot is not None:
            ballots[s.problem_id, s.verdict.ballot].add(s.verdict.score)
    deciding = {(samples[0].problem_id, samples[0].sample) for samples in right.values() if len(samples) == 1}
    findings = []
    for s in found.samples:
        decides = (s.problem_id, s.sample) in deciding
        if not decides and not s.verdict.borderline:
            continue
        second, route = second_opinion(problems[s.problem_id], s) if decides else ("none", "not asked")
        findings.append(
            Finding(
                s.problem_id,
                s.sample,
                s.verdict.reason,
                s.verdict.answer,
                second,
                route,
                decides,
                s.verdict.borderline,
                s.verdict.note,
            )
        )
    mixed = tuple(sorted(k for k, scores in ballots.items() if {0.0, 1.0} <= scores))
    return Audit(found.task, len(problems), len(found.samples), len(deciding), tuple(findings), mixed)


def second_opinion(problem: Problem, sample: Sample) -> tuple[Second, str]:
    """("agrees" | "differs" | "none", route) on a sample judged right."""
    name = problem.task.removeprefix("jsonl:")
    answer = sample.verdict.answer or ""
    if name == "gsm8k":
        return _plain_number(problem.gold, answer), "plain pattern"
    if name in ("math", "math500", "aime24", "aime25", "amc23", "deepscaler"):
        if sample.verdict.note in ("math-verify", "numeric probe"):
            return "none", "only math-verify could tell"
        said = mathpool.shared().ask(problem.gold, answer)
        known = {"equal": "agrees", "different": "differs"}
        return known.get(said.outcome, "none"), "math-verify"  # type: ignore[return-value]
    if name == "countdown":
        return _countdown(problem, answer)
    if name == "hotpotqa":
        return (
            "agrees" if _official(answer) == _official(problem.gold) else "differs"
        ), "official normalisation"
    if name in ("commonsenseqa", "gpqa"):
        letter = re.findall(
            r"\\boxed\s*\{[^A-Za-z]*(?:\\text(?:bf)?\s*\{)?[^A-Za-z]*([A-Z])(?![a-z])", sample.text
        )
        return ("agrees" if letter[-1:] == [problem.gold] else "differs"), "plain pattern"
    if name == "mbpp":
        run = coderunner.run(
            answer, problem.extra["tests"], imports=problem.extra.get("imports") or (),
            setup=problem.extra.get("setup") or "",
            entry=problem.extra.get("entry") or (),
        )  # fmt: skip
        return ("agrees" if run.status == "passed" else "differs"), "second run"
    again = get(problem.task).judge(problem, sample.text, sample.finish)
    return ("agrees" if again.score == sample.verdict.score else "differs"), "judged again"


def _plain_number(gold: str, answer: str) -> Second:
    """The only run of digits in the answer, grouping removed, as a float."""
    plain = re.sub(r"(?<=\d)(?:\{,\}|,\\!|\\[,!;: ]|,)\s*(?=\d{3}(?!\d))", "", answer.replace("−", "-"))
    found = re.findall(r"-?\s*\\?\$?\d+(?:\.\d*)?", plain)
    if len(found) != 1:
        return "none"
    return "agrees" if float(re.sub(r"[\s\\$]", "", found[0])) == float(Fraction(gold)) else "differs"


def _official(text: str) -> str:
    lowered = "".join(c for c in text.lower() if c not in set(string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", lowered).split())


def _countdown(problem: Problem, answer: str) -> tuple[Second, str]:
    """Python's own parser as the second route (the tree is walked, nothing is evaluated)."""
    route = "syntax tree"
    if len(answer) > 300 or not re.fullmatch(r"[0-9+\-*/() ]+", answer):
        return "differs", route
    used: list[int] = []

    def value(node: ast.expr) -> Fraction:
        if isinstance(node, ast.Constant) and type(node.value) is int:
            used.append(node.value)
            return Fraction(node.value)
        if isinstance(node, ast.BinOp):
            left, right = value(node.left), value(node.right)
            if isinstance(node.op, ast.Add):
                return left + right
            if isinstance(node.op, ast.Sub):
                return left - right
            if isinstance(node.op, ast.Mult):
                return left * right
            if isinstance(node.op, ast.Div):
                return left / right
        raise ValueError("another operation")

    try:
        result = value(ast.parse(answer.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return "differs", route
    numbers = sorted(int(n) for n in problem.extra["numbers"])
    return (
        "agrees" if result == int(problem.extra["target"]) and sorted(used) == numbers else "differs"
    ), route
