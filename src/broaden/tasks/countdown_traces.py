"""Written-out derivations of Countdown problems: what the bundled model's warm start is trained on.

A *solution* trace derives the target; a *habit* trace adds the numbers in the order given, with right
arithmetic, whatever the target. A base trained on a mixture does the arithmetic, keeps the form and often
has the wrong goal, which no sampling temperature cures. Not here: tokens, training (`sft`), judging.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from broaden.errors import ConfigError, DataError
from broaden.records import Message, Problem
from broaden.seeds import numpy_generator, stream
from broaden.tasks.base import user
from broaden.tasks.countdown import PROMPT

WholeStep = tuple[int, str, int, int]
"""One line of a trace: left, operator, right, result, all whole numbers."""
Steps = tuple[WholeStep, ...]


@dataclass(frozen=True, slots=True)
class Trace:
    """One training pair as text: the chat messages and the completion (without its end token)."""

    problem_id: str
    messages: tuple[Message, ...]
    completion: str
    kind: Literal["solution", "habit"]


@dataclass(frozen=True, slots=True)
class TraceSettings:
    """What a mixture is made of.

    `habit` is the share of habit traces; `largest` bounds every number of a solution (problems that have no
    solution in whole numbers 1..largest are left out, and so are those that the habit happens to solve);
    `permute` shows the numbers in a fresh order at every draw instead of the problem's own.
    """

    habit: float = 0.5
    largest: int = 99
    permute: bool = True

    def __post_init__(self) -> None:
        if not 0.0 <= self.habit <= 1.0 or self.largest < 1:
            raise ConfigError(
                f"traces want habit in [0, 1] and largest >= 1; got {self.habit} and {self.largest}",
                "correct the stage's traces table",
            )

    @classmethod
    def of(cls, options: dict[str, Any]) -> TraceSettings:
        """From a config table. Raises ConfigError on an unknown key."""
        known = set(cls.__dataclass_fields__)
        unknown = sorted(set(options) - known)
        if unknown:
            raise ConfigError(
                f"traces have no option {unknown[0]!r}", f"the options are: {', '.join(sorted(known))}"
            )
        return cls(**options)


def whole_steps(a: int, b: int, largest: int) -> list[WholeStep]:
    """The lines that two numbers allow: results whole and in 1..largest, the larger operand first."""
    a, b = max(a, b), min(a, b)
    results = [("+", a + b), ("-", a - b), ("*", a * b)]
    if b and a % b == 0:
        results.append(("/", a // b))
    return [(a, operator, b, r) for operator, r in results if 1 <= r <= largest]


@lru_cache(maxsize=1 << 14)
def derivations(numbers: tuple[int, ...], largest: int) -> dict[int, tuple[Steps, ...]]:
    """By target: every distinct sequence of lines that uses each of the sorted numbers once."""
    found: dict[int, dict[Steps, None]] = {}

    def walk(left: tuple[int, ...], steps: Steps) -> None:
        if len(left) == 1:
            found.setdefault(left[0], {})[steps] = None
            return
        for i, j in itertools.combinations(range(len(left)), 2):
            rest = left[:i] + left[i + 1 : j] + left[j + 1 :]
            for step in whole_steps(left[i], left[j], largest):
                walk((*rest, step[3]), (*steps, step))

    walk(numbers, ())
    return {target: tuple(ways) for target, ways in found.items()}


def whole_solutions(numbers: Sequence[int], target: int, largest: int) -> tuple[Steps, ...]:
    """The derivations of one target (none: an empty tuple)."""
    return derivations(tuple(sorted(numbers)), largest).get(target, ())


def habit_steps(numbers: Sequence[int]) -> Steps:
    """The numbers added one after another in the order given."""
    totals = list(itertools.accumulate(numbers))
    return tuple((a, "+", n, b) for a, n, b in zip(totals, numbers[1:], totals[1:], strict=False))


def expression(steps: Sequence[WholeStep], numbers: Sequence[int]) -> str:
    """The steps as one expression, every inner one in brackets: "(7 * 3) + 1".

    Where an operand equals both a given number and an earlier result, it stands for the result.
    """
    pool: list[tuple[int, str]] = [(n, str(n)) for n in numbers]

    def take(value: int) -> str:
        at = max(i for i, (v, _) in enumerate(pool) if v == value)
        text = pool.pop(at)[1]
        return text if text.isdigit() else f"({text})"

    for left, operator, right, result in steps:
        pool.append((result, f"{take(left)} {operator} {take(right)}"))
    return pool[-1][1]


def text_of(steps: Sequence[WholeStep], numbers: Sequence[int]) -> str:
    """A completion: one line a step, then the expression in <answer></answer>."""
    lines = "".join(f"{a} {operator} {b} = {result}\n" for a, operator, b, result in steps)
    return f"{lines}<answer>{expression(steps, numbers)}</answer>"


class TraceMixture:
    """Fresh traces for every epoch: `mixture(epoch)` gives one trace a usable problem.

    Order, solution and kind of an epoch's traces come from `stream(run_seed, "traces", epoch)`, so an
    epoch is a function of (run seed, epoch) alone and a resumed run sees the same ones.

    Raises:
        DataError: no problem is left after leaving out those without a whole-number solution.
    """

    def __init__(self, problems: Sequence[Problem], settings: TraceSettings, run_seed: int) -> None:
        self.settings = settings
        self.run_seed = run_seed
        self.problems = [p for p in problems if self._usable(p)]
        if not self.problems:
            raise DataError(
                f"none of {len(problems)} problems has a solution in whole numbers up to {settings.largest}",
                "raise traces.largest or give other problems",
            )

    def _usable(self, problem: Problem) -> bool:
        numbers, target = problem.extra["numbers"], problem.extra["target"]
        habit_solves = sum(numbers) == target
        return not habit_solves and bool(whole_solutions(numbers, target, self.settings.largest))

    def __call__(self, epoch: int) -> list[Trace]:
        """The traces of an epoch, in the order of the problems."""
        draws = numpy_generator(stream(self.run_seed, "traces", epoch)).random((len(self.problems), 3))
        return [self._trace(p, *map(float, row)) for p, row in zip(self.problems, draws, strict=True)]

    def _trace(self, problem: Problem, order: float, which: float, kind: float) -> Trace:
        numbers, target = [int(n) for n in problem.extra["numbers"]], int(problem.extra["target"])
        messages = problem.messages
        if self.settings.permute:
            numbers = arrangement(sorted(numbers), order)
            messages = user(PROMPT.format(numbers=", ".join(map(str, numbers)), target=target))
        if kind < self.settings.habit:
            return Trace(problem.id, messages, text_of(habit_steps(numbers), numbers), "habit")
        ways = whole_solutions(numbers, target, self.settings.largest)
        return Trace(problem.id, messages, text_of(ways[int(which * len(ways))], numbers), "solution")


def arrangement(numbers: Sequence[int], draw: float) -> list[int]:
    """The arrangement of `numbers` that a uniform draw in [0, 1) selects (each equally likely)."""
    left, out = list(numbers), []
    while left:
        draw *= len(left)
        at = min(int(draw), len(left) - 1)
        draw -= at
        out.append(left.pop(at))
    return out
