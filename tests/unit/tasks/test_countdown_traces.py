"""Traces of Countdown: literal texts, right arithmetic, the mixture and its keys."""

from __future__ import annotations

import collections
from fractions import Fraction

import pytest

from broaden.errors import ConfigError, DataError
from broaden.records import Problem
from broaden.tasks import get
from broaden.tasks.base import user
from broaden.tasks.countdown import PROMPT
from broaden.tasks.countdown_traces import (
    TraceMixture,
    TraceSettings,
    arrangement,
    expression,
    habit_steps,
    text_of,
    whole_solutions,
)


def problem(*numbers: int, target: int) -> Problem:
    text = PROMPT.format(numbers=", ".join(map(str, numbers)), target=target)
    extra = {"numbers": list(numbers), "target": target}
    return Problem(f"x/{numbers}->{target}", "countdown", user(text), str(target), extra)


PROBLEMS = [problem(3, 7, 2, target=19), problem(5, 4, 6, target=14), problem(8, 2, 3, target=7)]


def test_solutions_by_hand() -> None:
    # 22 from 1, 3, 7: 7 * 3 + 1 alone (21 + 1); every other pair of operators misses it
    assert whole_solutions([1, 3, 7], 22, 99) == (((7, "*", 3, 21), (21, "+", 1, 22)),)
    assert whole_solutions([1, 3, 7], 22, 20) == ()


def test_texts_by_hand() -> None:
    (steps,) = whole_solutions([3, 7, 1], 22, 99)
    assert text_of(steps, [3, 7, 1]) == "7 * 3 = 21\n21 + 1 = 22\n<answer>(7 * 3) + 1</answer>"
    assert text_of(habit_steps([3, 7, 2]), [3, 7, 2]) == (
        "3 + 7 = 10\n10 + 2 = 12\n<answer>(3 + 7) + 2</answer>"
    )


def test_an_operand_equal_to_a_result_is_the_result() -> None:
    assert expression(((2, "-", 1, 1), (2, "+", 1, 3)), [1, 2, 2]) == "2 + (2 - 1)"
    assert expression(((2, "*", 2, 4), (4, "/", 4, 1)), [2, 2, 4]) == "(2 * 2) / 4"


def test_four_numbers() -> None:
    ways = whole_solutions([1, 2, 3, 4], 24, 99)
    texts = {expression(steps, [1, 2, 3, 4]) for steps in ways}
    assert "((3 + 2) + 1) * 4" in texts
    assert "(4 * 3) * (2 * 1)" in texts
    assert expression(habit_steps([4, 3, 2, 1]), [4, 3, 2, 1]) == "((4 + 3) + 2) + 1"


@pytest.mark.parametrize("habit", [0.0, 1.0])
def test_the_task_judges_solutions_right_and_habits_wrong(habit: float) -> None:
    task = get("countdown")
    for trace, given in zip(TraceMixture(PROBLEMS, TraceSettings(habit), 0)(0), PROBLEMS, strict=True):
        verdict = task.judge(given, trace.completion, "stop")
        assert verdict.reason == ("wrong" if habit else "correct")
        assert verdict.reward == (0.1 if habit else 1.0)
        for line in trace.completion.split("\n")[:-1]:
            left, operator, right, _, result = line.split(" ")
            a, b = Fraction(left), Fraction(right)
            value = {"+": a + b, "-": a - b, "*": a * b, "/": a / b if b else None}[operator]
            assert value == int(result)


def test_mixture_share_and_keys() -> None:
    mixture = TraceMixture(PROBLEMS * 200, TraceSettings(0.3), run_seed=1)
    traces = mixture(0)
    share = sum(t.kind == "habit" for t in traces) / len(traces)
    assert abs(share - 0.3) < 0.08  # four standard errors at 600 draws
    assert traces == TraceMixture(PROBLEMS * 200, TraceSettings(0.3), run_seed=1)(0)
    assert traces != mixture(1)
    assert traces != TraceMixture(PROBLEMS * 200, TraceSettings(0.3), run_seed=2)(0)


def test_permuted_prompt_shows_the_order_that_the_habit_follows() -> None:
    for trace in TraceMixture(PROBLEMS * 20, TraceSettings(1.0), 3)(0):
        shown = trace.messages[0].content.split("[")[1].split("]")[0].split(", ")
        assert trace.completion.startswith(f"{shown[0]} + {shown[1]} = ")
    fixed = TraceMixture(PROBLEMS, TraceSettings(1.0, permute=False), 3)(0)
    assert [t.messages for t in fixed] == [p.messages for p in PROBLEMS]


def test_arrangements_are_equally_likely() -> None:
    counts = collections.Counter(tuple(arrangement([1, 2, 3], (i + 0.5) / 600)) for i in range(600))
    assert set(counts.values()) == {100}
    assert len(counts) == 6


def test_leaves_out_what_the_habit_solves_and_what_has_no_whole_solution() -> None:
    given = [problem(3, 7, 2, target=12), problem(3, 7, 2, target=19), problem(30, 40, 50, target=99)]
    assert TraceMixture(given, TraceSettings(), 0).problems == given[1:2]
    with pytest.raises(DataError, match="none of 1 problems"):
        TraceMixture(given[:1], TraceSettings(), 0)


def test_refuses_unknown_and_impossible_settings() -> None:
    assert TraceSettings.of({"habit": 0.25}) == TraceSettings(habit=0.25)
    with pytest.raises(ConfigError, match="habits"):
        TraceSettings.of({"habits": 0.25})
    with pytest.raises(ConfigError):
        TraceSettings(habit=1.5)
