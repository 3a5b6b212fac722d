"""A task that any model can score on: the share of letters in what it wrote. For runs with fresh weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from broaden import tasks
from broaden.records import FinishReason, Problem, Verdict
from broaden.tasks.base import BadRow, Family, user


class Letters(Family):
    """Reward: letters / characters."""

    name: ClassVar[str] = "letters"
    version: ClassVar[str] = "1"
    title: ClassVar[str] = "letters"

    def rows(
        self, split: str, data: Path | None, limit: int | None, seed: int, options: Mapping[str, Any]
    ) -> Iterator[Problem | BadRow]:
        for i in range(limit or 32):
            yield Problem(f"{split}/{i}", self.name, user(f"{split} {seed + i}"), "")

    def judge(self, problem: Problem, completion: str, finish: FinishReason) -> Verdict:
        share = sum(c.isalpha() for c in completion) / max(1, len(completion))
        right = share > 0.6
        return Verdict(
            "correct" if right else "wrong", float(right), share, completion[:1], completion[:1] or None,
            verifier="letters/1",
        )  # fmt: skip


def letters() -> str:
    """Register the task once and return its name."""
    if Letters.name not in tasks.names():
        tasks.register(Letters())
    return Letters.name
