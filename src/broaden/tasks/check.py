"""`broaden tasks check`: what a data file holds before anything is computed with it.

Rows, bad rows by id and reason, golds that were mended, duplicates, the distribution of golds, overlap with
another file,
the longest prompt. Not here: whether verdicts are right (`verify`, `audit`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from broaden.records import Problem
from broaden.tasks import registry
from broaden.tasks.base import BadRow

LISTED = 50


@dataclass(frozen=True, slots=True)
class Check:
    """The findings on one file."""

    task: str
    version: str
    split: str
    rows: int
    problems: int
    bad: tuple[BadRow, ...]
    mended: tuple[tuple[str, str, str], ...]
    duplicates: tuple[tuple[str, str], ...]
    golds: tuple[tuple[str, int], ...]
    distinct_golds: int
    overlap: tuple[tuple[str, str], ...] | None
    longest: tuple[str, int, str]

    def to_json(self) -> dict[str, Any]:
        """One JSON object; long lists are cut at 50 with their true count beside them."""
        return {
            "task": self.task, "version": self.version, "split": self.split, "rows": self.rows,
            "problems": self.problems,
            "bad": [{"id": b.id, "reason": b.reason} for b in self.bad],
            "mended_count": len(self.mended),
            "mended": [{"id": i, "published": p, "read_as": g} for i, p, g in self.mended[:LISTED]],
            "duplicates_count": len(self.duplicates), "duplicates": [list(d) for d in self.duplicates[:LISTED]],
            "golds": dict(self.golds), "distinct_golds": self.distinct_golds,
            "overlap_count": None if self.overlap is None else len(self.overlap),
            "overlap": None if self.overlap is None else [list(o) for o in self.overlap[:LISTED]],
            "longest_prompt": {"id": self.longest[0], "length": self.longest[1], "unit": self.longest[2]},
        }  # fmt: skip

    def text(self) -> str:
        """The findings for people."""
        lines = [
            f"{self.task} (verifier {self.version}), split {self.split}: {self.rows} rows, {self.problems} usable"
        ]
        lines += [f"  bad row {b.id}: {b.reason}" for b in self.bad[:LISTED]]
        if len(self.bad) > LISTED:
            lines.append(f"  ... and {len(self.bad) - LISTED} more bad rows (--json lists all)")
        if self.mended:
            shown = "; ".join(f"{i}: {p!r} read as {g!r}" for i, p, g in self.mended[:5])
            lines.append(
                f"  {len(self.mended)} golds in another spelling: {shown}{' ...' if len(self.mended) > 5 else ''}"
            )
        if self.duplicates:
            shown = "; ".join(f"{a} = {b}" for a, b in self.duplicates[:5])
            lines.append(
                f"  {len(self.duplicates)} problems stand twice: {shown}{' ...' if len(self.duplicates) > 5 else ''}"
            )
        lines.append(
            f"  golds ({self.distinct_golds} distinct): "
            + ", ".join(f"{g[:40]} x{n}" for g, n in self.golds[:12])
        )
        if self.overlap is not None:
            shown = "; ".join(f"{a} = {b}" for a, b in self.overlap[:5])
            lines.append(
                f"  overlap with the other file: {len(self.overlap)} problems"
                + (f" ({shown})" if shown else "")
            )
        lines.append(f"  longest prompt: {self.longest[0]} with {self.longest[1]} {self.longest[2]}")
        return "\n".join(lines)


def check(
    name: str,
    split: str | None = None,
    data: Path | None = None,
    limit: int | None = None,
    seed: int = 0,
    against: Path | None = None,
    against_task: str | None = None,
    tokens: Callable[[Problem], int] | None = None,
    **options: Any,
) -> Check:
    """Loads a data set and looks at it.

    Args:
        against: another file (same task unless `against_task`): which problems stand in both.
        tokens: the length of a problem's rendered prompt in a model's tokens; characters where it is None.
    """
    task = registry.get(name)
    wanted = split or task.default_split
    loaded = task.read(wanted, data, limit, seed, **options)
    duplicates: list[tuple[str, str]] = []
    first: dict[str, str] = {}
    for p in loaded.problems:
        key = fingerprint(p)
        if key in first:
            duplicates.append((first[key], p.id))
        first.setdefault(key, p.id)
    overlap = None
    if against is not None:
        other = registry.get(against_task or name).read(wanted, against, None, seed).problems
        there = {fingerprint(p): p.id for p in other}
        overlap = tuple((p.id, there[k]) for p in loaded.problems if (k := fingerprint(p)) in there)
    private = any(p.extra.get("private") for p in loaded.problems)
    golds = Counter(p.gold for p in loaded.problems if p.gold)
    measure = tokens or (lambda p: sum(len(m.content) for m in p.messages))
    longest = max(((measure(p), p.id) for p in loaded.problems), default=(0, ""))
    mended = tuple(
        (p.id, str(p.extra["published_gold"]), p.gold) for p in loaded.problems if "published_gold" in p.extra
    )
    return Check(
        name, task.version, wanted, loaded.rows, len(loaded.problems), loaded.bad, () if private else mended,
        tuple(duplicates),
        tuple(golds.most_common(20)), len(golds), overlap, (longest[1], longest[0],
        "tokens" if tokens else "characters"),
    )  # fmt: skip


def fingerprint(problem: Problem) -> str:
    """What makes two problems the same: numbers and target, else the question's letters and digits."""
    if "numbers" in problem.extra and "target" in problem.extra:
        return f"{sorted(problem.extra['numbers'])}->{problem.extra['target']}"
    text = next((m.content for m in reversed(problem.messages) if m.role == "user"), "")
    return re.sub(r"[^a-z0-9]+", "", text.casefold())
