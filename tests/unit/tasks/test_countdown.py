"""Countdown: the generator, the split by hash, the prompt, the verdicts, the published files."""

from __future__ import annotations

import json
from fractions import Fraction
from hashlib import blake2b
from pathlib import Path

import pytest
from tests.helpers.data import data_path

from broaden.errors import DataError, UsageError
from broaden.records import Problem
from broaden.tasks import get, load_problems
from broaden.tasks.countdown_data import (
    BUCKETS,
    DEFAULT,
    Key,
    Ranges,
    bucket,
    generate,
    numbers_in_prompt,
    reachable,
    solutions,
    solvable,
    split_of,
)
from broaden.tasks.expression import parse


def judge(answer: str, numbers: list[int], target: int, finish: str = "stop") -> object:
    problem = Problem("p", "countdown", (), str(target), {"numbers": numbers, "target": target})
    return get("countdown").judge(problem, answer, finish)  # type: ignore[arg-type]


def test_prompt_wording_is_pinned() -> None:
    """The bundled model is trained on exactly this text."""
    problem = next(
        p for p in load_problems("countdown", "test", limit=20).problems if len(p.extra["numbers"]) == 3
    )
    numbers = ", ".join(map(str, problem.extra["numbers"]))
    assert [m.role for m in problem.messages] == ["user"]
    assert problem.messages[0].content == (
        f"Using the numbers [{numbers}], write an expression that equals {problem.gold}. "
        "Use + - * / and each number exactly once. Show your steps, then give the expression in <answer></answer>."
    )


def test_bucket_is_the_stated_hash() -> None:
    raw = blake2b(b"3,7,12->22", digest_size=8).digest()
    assert bucket("3,7,12->22") == int.from_bytes(raw, "big") % 100
    assert bucket(Key((3, 7, 12), 22)) == bucket("3,7,12->22")
    assert [len(BUCKETS[s]) for s in ("warmup", "train", "probe", "test")] == [50, 30, 5, 15]


def test_splits_are_disjoint_without_duplicates_and_solvable() -> None:
    seen: set[str] = set()
    for split in ("warmup", "train", "probe", "test"):
        for p in load_problems("countdown", split, limit=300).problems:
            key = Key(tuple(sorted(p.extra["numbers"])), p.extra["target"])
            assert str(key) not in seen
            seen.add(str(key))
            assert split_of(key) == split
            assert solvable(key.numbers, key.target)
            assert all(DEFAULT.low <= n <= DEFAULT.high for n in key.numbers)
            assert DEFAULT.target_low <= key.target <= DEFAULT.target_high


def test_limit_is_a_prefix_and_order_is_keyed() -> None:
    ten = [p.id for p in load_problems("countdown", "test", limit=10).problems]
    assert [p.id for p in load_problems("countdown", "test", limit=4).problems] == ten[:4]
    assert [p.id for p in load_problems("countdown", "test", limit=10, seed=1).problems] != ten
    assert (
        load_problems("countdown", "test", limit=10).problems
        == load_problems("countdown", "test", limit=10).problems
    )


def test_a_small_space_is_listed_whole() -> None:
    ranges = Ranges(2, 1, 6, 1, 12, sums=True)
    keys = [str(k) for s in ("warmup", "train", "probe", "test") for k in generate(s, ranges, None, 0)]
    wanted = [
        f"{a},{b}->{t}"
        for a in range(1, 7)
        for b in range(a, 7)
        for t in range(1, 13)
        if t in {a + b, a - b, b - a, a * b, Fraction(a, b), Fraction(b, a)}
    ]
    assert sorted(keys) == sorted(wanted)


def test_hard_split_has_four_numbers() -> None:
    assert all(len(p.extra["numbers"]) == 4 for p in load_problems("countdown", "hard", limit=20).problems)


def test_options_change_the_ranges() -> None:
    found = load_problems(
        "countdown", "train", limit=3, count=2, low=5, high=9, target_low=20, target_high=90
    )
    assert all(len(p.extra["numbers"]) == 2 for p in found.problems)
    assert all(5 <= n <= 9 for p in found.problems for n in p.extra["numbers"])
    assert all(20 <= p.extra["target"] <= 90 for p in found.problems)


@pytest.mark.parametrize(
    ("split", "options"),
    [("nope", {}), ("train", {"count": 9}), ("train", {"colour": 1}), ("train", {"low": 9, "high": 2}),
    ("train", {"prompt": "x"}),
     ("train", {"prompt": "paper"})],
)  # fmt: skip
def test_wrong_options_are_usage_errors(split: str, options: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        load_problems("countdown", split, limit=3, **options)


def test_solver_against_all_expressions() -> None:
    """Every value that solutions() writes is reachable, and its text evaluates to the target."""
    for numbers in ((3, 7, 12), (2, 2, 5), (1, 10, 10)):
        for n, d in reachable(numbers):
            if d == 1 and 0 < n < 60:
                found = solutions(numbers, n)
                assert found
                for text, steps in found:
                    said = parse(text)
                    assert said.value == n
                    assert tuple(sorted(said.numbers)) == numbers
                    assert steps[-1][-1] == n
    assert not solvable((1, 1, 1), 9)
    assert solutions((1, 1, 1), 9) == []


@pytest.mark.parametrize(
    ("answer", "numbers", "target", "reason", "reward"),
    [
        ("<answer>(44 + 19) + 35</answer>", [44, 19, 35], 98, "correct", 1.0),
        ("<answer>5 + 5 + 1</answer>", [5, 5, 1], 11, "correct", 1.0),
        ("<answer>1 + 1</answer> or <answer>5 + 5 + 1</answer>", [5, 5, 1], 11, "correct", 1.0),
        ("<answer>5 + 5 - 1</answer>", [5, 5, 1], 11, "wrong", 0.1),
        ("<answer>10</answer>", [5, 5, 10], 10, "wrong", 0.0),
        ("<answer>5+5</answer>", [5, 3], 10, "wrong", 0.0),
        ("<answer>8/(4-4)</answer>", [8, 4, 4], 0, "wrong", 0.0),
        ("<answer>2**3</answer>", [2, 3], 8, "unparseable", 0.0),
        ("<answer>7//2</answer>", [7, 2], 3, "unparseable", 0.0),
        ("<answer>44 + 19 + 35 = 98</answer>", [44, 19, 35], 98, "unparseable", 0.0),
        ("<answer>6 × 7</answer>", [6, 7], 42, "wrong", 0.0),
        ("<answer></answer>", [6, 7], 42, "unparseable", 0.0),
        ("6*7", [6, 7], 42, "no_answer", 0.0),
        ("<think>6*7", [6, 7], 42, "truncated", 0.0),
        ("<answer>" + "(" * 900 + "6*7" + ")" * 900 + "</answer>", [6, 7], 42, "limit", 0.0),
    ],
)
def test_verdicts(answer: str, numbers: list[int], target: int, reason: str, reward: float) -> None:
    said = judge(answer, numbers, target)
    assert (said.reason, said.reward) == (reason, reward)  # type: ignore[attr-defined]
    assert said.score == (1.0 if reason == "correct" else 0.0)  # type: ignore[attr-defined]


def test_contested_forms_are_borderline() -> None:
    assert judge("<answer>44 + 19 + 35 = 98</answer>", [44, 19, 35], 98).borderline  # type: ignore[attr-defined]
    assert judge("<answer>6 × 7</answer>", [6, 7], 42).borderline  # type: ignore[attr-defined]
    assert not judge("<answer>44 + 19 = 98</answer>", [44, 19, 35], 98).borderline  # type: ignore[attr-defined]


def test_ballot_is_value_and_numbers() -> None:
    assert judge("<answer>7 + 12 + 3</answer>", [3, 7, 12], 22).ballot == "22|3,7,12"  # type: ignore[attr-defined]
    assert judge("<answer>12+7+3</answer>", [3, 7, 12], 99).ballot == "22|3,7,12"  # type: ignore[attr-defined]
    assert judge("<answer>1/(3-3)</answer>", [1, 3, 3], 22).ballot is None  # type: ignore[attr-defined]


def test_a_problem_without_numbers_is_a_data_error() -> None:
    said = get("countdown").judge(Problem("p", "countdown", (), "5"), "<answer>5</answer>", "stop")
    assert (said.reason, said.score, said.reward) == ("gold_unparseable", None, None)


def test_published_shapes(tmp_path: Path) -> None:
    rows = [
        {"input": "3,7,12", "output": "22"},
        {"numbers": [3, 7, 12], "target": "22"},
        {"nums": [3, 7, 12], "target": 22},
        {
            "messages": [
                {
                    "role": "user",
                    "content": "Using the numbers [3, 7, 12], create an equation that equals 22.",
                },
                {"role": "assistant", "content": "<answer>3+7+12</answer>"},
            ]
        },
        {"input": "1,1", "output": "9"},
    ]
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    found = load_problems("countdown", "test", file)
    assert [(p.extra["numbers"], p.extra["target"]) for p in found.problems] == [([3, 7, 12], 22)] * 4
    assert found.problems[3].messages[0].content.startswith("Using the numbers [3, 7, 12], create")
    assert len(found.problems[3].messages) == 1  # the assistant's turn holds the solution
    assert [(b.id, "cannot reach 9" in b.reason) for b in found.bad] == [("rows/4", True)]


def test_unknown_columns_are_named(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"a": 1}\n')
    with pytest.raises(DataError, match="it has a"):
        load_problems("countdown", "test", file)


def test_numbers_in_prompt() -> None:
    assert numbers_in_prompt("Using the numbers [19, 36, 55, 7], create an equation that equals 65.") == (
        (19, 36, 55, 7),
        65,
    )
    assert numbers_in_prompt("nothing here") is None


def test_the_published_test_file() -> None:
    found = load_problems("countdown", "test", data_path("countdown"))
    assert (found.rows, len(found.problems), found.bad) == (256, 256, ())
