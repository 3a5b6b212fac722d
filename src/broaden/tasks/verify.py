"""`broaden tasks verify`: a file of answers with known verdicts against the verifiers.

A line: {"task", "gold", "response", "verdict"[, "choices", "gold_text", "contested", "lenient_verdict",
"id"]}; task is a built-in name or one of
math, gsm8k, mcq, openqa, countdown, mbpp. A contested case may disagree: its choice stands in docs/tasks. Not
here: real data
sets (`check`), stored samples (`audit`).
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from broaden.errors import DataError
from broaden.records import Problem, Verdict
from broaden.tasks import registry
from broaden.tasks.files import Row, read

MBPP_SECONDS = 3.0
"""Limit of a program in a case: many of the cases are there to run into it."""
ALIASES = {"mcq": "commonsenseqa", "openqa": "hotpotqa"}


@dataclass(frozen=True, slots=True)
class CaseResult:
    """One case: what was expected and what the verifier said."""

    id: str
    expected: bool
    verdict: Verdict
    contested: bool

    @property
    def agrees(self) -> bool:
        """Whether "right" and "not right" agree (unscored is not right)."""
        return (self.verdict.score == 1.0) == self.expected


@dataclass(frozen=True, slots=True)
class Verification:
    """All cases of a file."""

    results: tuple[CaseResult, ...]

    @property
    def passed(self) -> bool:
        """Every uncontested case agrees."""
        return all(r.agrees or r.contested for r in self.results)

    def to_json(self) -> dict[str, Any]:
        """{"cases", "agree", "disagree": ids, "timeouts"}, and which of the disagreeing ones are contested."""
        off = [r for r in self.results if not r.agrees]
        return {
            "cases": len(self.results),
            "agree": len(self.results) - len(off),
            "disagree": [r.id for r in off],
            "timeouts": sum(r.verdict.reason == "timeout" for r in self.results),
            "contested_disagree": [r.id for r in off if r.contested],
        }


def verify_file(path: Path, workers: int = 2) -> Verification:
    """Judges every case of a JSONL file; order as in the file."""
    rows = list(read(path))
    with ThreadPoolExecutor(max_workers=workers) as pool:
        return Verification(tuple(pool.map(lambda pair: verify_case(pair[1], pair[0], str(path)), rows)))


def verify_case(row: Row, at: int, where: str) -> CaseResult:
    """Judges one case. Raises DataError on a wrong shape, UsageError on an unknown task."""
    missing = [k for k in ("task", "gold", "response", "verdict") if k not in row]
    if missing or not isinstance(row["verdict"], bool):
        what = f"no key {missing[0]!r}" if missing else "verdict should be true or false"
        raise DataError(f"{where}, case {at}: {what}", 'a case is {"task", "gold", "response", "verdict"}')
    problem = problem_of(row, str(row.get("id", at)))
    verdict = registry.get(problem.task).judge(problem, str(row["response"]), row.get("finish", "stop"))
    return CaseResult(problem.id, row["verdict"], verdict, bool(row.get("contested", False)))


def problem_of(row: Row, id: str) -> Problem:
    """The problem of a case: gold as text, or numbers and target, or tests."""
    task = ALIASES.get(str(row["task"]), str(row["task"]))
    gold = row["gold"]
    extra: dict[str, Any] = {}
    if isinstance(gold, Mapping):
        extra = dict(gold)
        if "test_list" in gold:
            extra = {
                "tests": list(gold["test_list"]),
                "imports": gold.get("test_imports") or [],
                "setup": gold.get("test_setup_code") or "",
                "seconds": MBPP_SECONDS,
            }
        return Problem(id, task, (), str(gold.get("target", "")), extra)
    if "choices" in row:
        choices = [str(c) for c in row["choices"]]
        letters = [chr(ord("A") + i) for i in range(len(choices))]
        labels = choices == letters
        extra = {"letters": letters, "options": [] if labels else choices}
        if row.get("gold_text") is not None and not labels and str(row["gold_text"]) not in choices:
            gold = ""  # the right text is none of the options: never fall back to a letter
    elif task in ("commonsenseqa", "gpqa"):
        extra = {"letters": list("ABCDE"), "options": []}
    if isinstance(row.get("extra"), Mapping):
        extra |= row["extra"]
    return Problem(id, task, (), str(gold), extra)
