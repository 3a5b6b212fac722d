"""What a task family is, and how its rows become problems.

A family reads rows (a file, the hub, a generator), renders each as chat messages, and judges
completions. Bad rows are data errors: they are listed by id with the reason, never given a reward.
Not here: sampling, metrics, anything that needs torch.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol, final

from broaden.errors import DataError, UsageError
from broaden.records import FinishReason, Message, Problem, Verdict, VerdictReason

FORM_REWARD = 0.1
"""Reward of an answer that has the required form and is wrong (the paper's rule: 1 / 0.1 / 0)."""


class Task(Protocol):
    """A data set with its prompt and its verifier. `version` changes whenever a verdict could."""

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> str: ...
    def problems(
        self, split: str, data: Path | None, limit: int | None, seed: int, **options: Any
    ) -> list[Problem]: ...
    def judge(self, problem: Problem, completion: str, finish: FinishReason) -> Verdict: ...


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that cannot be scored: its id (as in its file) and why."""

    id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a load gave: the problems in file order, the bad rows, and how many rows were read."""

    problems: tuple[Problem, ...]
    bad: tuple[BadRow, ...] = ()
    rows: int = 0
    facts: Mapping[str, Any] = field(default_factory=dict)

    def describe(self) -> str:
        """One line for people: rows, usable ones, and the first bad ids."""
        text = f"{len(self.problems)} problems from {self.rows} rows"
        if self.bad:
            first = "; ".join(f"{b.id}: {b.reason}" for b in self.bad[:5])
            text += f", {len(self.bad)} bad ({first}{'; ...' if len(self.bad) > 5 else ''})"
        return text


MOST_THREADS = 4


def judge_threads(task: Task) -> int:
    """Threads that judge at a time: 1 where judging is this process's own work."""
    return max(2, min(MOST_THREADS, os.cpu_count() or 1)) if isinstance(task, Family) and task.apart else 1


class Family(ABC):
    """The shared half of every built-in task: option checking, bad rows, unique ids, `limit` as a prefix."""

    name: ClassVar[str]
    version: ClassVar[str]
    title: ClassVar[str]
    hub: ClassVar[str] = ""
    default_split: ClassVar[str] = "test"
    options: ClassVar[Mapping[str, Any]] = {}
    """Accepted options with their defaults; anything else is an error."""
    apart: ClassVar[bool] = False
    """Whether `judge` mostly waits for processes of its own: then several completions are judged at a time."""

    @abstractmethod
    def rows(
        self, split: str, data: Path | None, limit: int | None, seed: int, options: Mapping[str, Any]
    ) -> Iterator[Problem | BadRow]:
        """Problems and bad rows in order. `limit` is a hint for generators; `read` cuts in any case."""

    @abstractmethod
    def judge(self, problem: Problem, completion: str, finish: FinishReason) -> Verdict:
        """The verdict on one completion: pure, deterministic, bounded in time, safe from any thread."""

    @final
    def read(
        self, split: str, data: Path | None = None, limit: int | None = None, seed: int = 0, **options: Any
    ) -> Loaded:
        """Problems with the bad rows beside them.

        Args:
            split: the data set's own split name ("train", "test", ...).
            data: a file, or a folder that holds one named after the split; None: the hub or the generator.
            limit: at most this many usable problems, a prefix of the whole.
            seed: the data seed (which generated problems come first, how options are shuffled); not a run seed.

        Raises:
            UsageError: an unknown option. DataError: no usable row, two rows with one id, a broken file.
        """
        unknown = sorted(set(options) - set(self.options))
        if unknown:
            known = ", ".join(sorted(self.options)) or "none"
            raise UsageError(f"task {self.name} has no option {unknown[0]!r}", f"its options are: {known}")
        if limit is not None and limit < 1:
            raise UsageError(f"limit must be at least 1, got {limit}", "leave it out for all problems")
        problems: list[Problem] = []
        bad: list[BadRow] = []
        seen: set[str] = set()
        for row in self.rows(split, data, limit, seed, {**self.options, **options}):
            if isinstance(row, BadRow):
                bad.append(row)
                continue
            if row.id in seen:
                raise DataError(
                    f"task {self.name}: two rows have the id {row.id!r}", "give each row its own id"
                )
            seen.add(row.id)
            problems.append(row)
            if limit is not None and len(problems) == limit:
                break
        if not problems:
            detail = f"; all {len(bad)} rows are bad, the first ({bad[0].id}): {bad[0].reason}" if bad else ""
            raise DataError(
                f"task {self.name}, split {split!r}: no usable problem{detail}",
                f"look at the data with: broaden tasks check {self.name}",
            )
        return Loaded(tuple(problems), tuple(bad), len(problems) + len(bad))

    @final
    def problems(
        self, split: str, data: Path | None = None, limit: int | None = None, seed: int = 0, **options: Any
    ) -> list[Problem]:
        """The usable problems alone; see `read`."""
        return list(self.read(split, data, limit, seed, **options).problems)

    def verdict(
        self,
        reason: VerdictReason,
        *,
        answer: str | None = None,
        ballot: str | None = None,
        well_formed: bool = False,
        borderline: bool = False,
        note: str = "",
    ) -> Verdict:
        """A verdict under this family's name and version and the 1 / 0.1 / 0 reward rule."""
        return make_verdict(
            f"{self.name}/{self.version}", reason,
            answer=answer, ballot=ballot, well_formed=well_formed, borderline=borderline, note=note,
        )  # fmt: skip


def make_verdict(
    verifier: str,
    reason: VerdictReason,
    *,
    answer: str | None = None,
    ballot: str | None = None,
    well_formed: bool = False,
    borderline: bool = False,
    note: str = "",
) -> Verdict:
    """Score and reward from the reason: correct 1 / 1; unscored None / None; else 0 / (0.1 or 0)."""
    if reason == "correct":
        score, reward = 1.0, 1.0
    elif reason in ("gold_unparseable", "timeout", "crashed"):
        return Verdict(reason, None, None, answer, ballot, verifier, borderline, note)
    else:
        score, reward = 0.0, FORM_REWARD if well_formed else 0.0
    return Verdict(reason, score, reward, answer, ballot, verifier, borderline, note)


def user(text: str) -> tuple[Message, ...]:
    """One user message."""
    return (Message("user", text),)


def system_user(system: str, text: str) -> tuple[Message, ...]:
    """A system message and a user message."""
    return (Message("system", system), Message("user", text))
