"""GSM8K: golds, exact numbers in boxes, agreement with the authors' judged solutions."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import pytest
from tests.helpers.data import data_path

from broaden.errors import DataError, MissingFileError
from broaden.records import Problem
from broaden.tasks import get, load_problems
from broaden.tasks.base import user
from broaden.tasks.files import read
from broaden.tasks.gsm8k import EXAMPLES, SYSTEM, from_row, value_of
from broaden.tasks.numerals import number


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("18", 18), ("18.", 18), ("18.00", 18), ("$18", 18), (r"\$18.00", 18), ("$18$", 18), ("1,800", 1800),
        (r"70\,000", 70000),
        ("70{,}000", 70000), (r"\text{18}", 18), ("18 dollars", 18), (r"18\text{ dollars}", 18), ("-5", -5),
        ("−5", -5), ("+5", 5),
        ("3/4", Fraction(3, 4)), (r"\frac{3}{4}", Fraction(3, 4)), (r"\dfrac34", Fraction(3, 4)),
        (r"2\frac{1}{2}", Fraction(5, 2)),
        ("2 1/2", Fraction(5, 2)), ("0.5", Fraction(1, 2)), (".5", Fraction(1, 2)), ("**18**", 18),
        (r"\mathbf{18}", 18),
        ("18 eggs per day", 18), (r"11,\! 111", 11111), ("192,000,000", 192000000), ("18 m", 18), ("$-5$", -5),
        ("-$5", -5),
        ("0016", 16), (r"\( 18 \)", 18),
    ],
)  # fmt: skip
def test_numbers(text: str, value: int | Fraction) -> None:
    assert number(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "", "x", "42abc", "18 or 19", "18 and 19", "18 million", "18 percent", r"18\%", "18%", "2x", "18, 19",
        "1,80", "1,2345", "18 x",
        "18 more than 4", "half", "3/0", "1e5", "--5", "5-", "18:30", "2^3", "4 10/3", "∞", "nan", "inf",
        "1..5", "18 squared", "7 dozen", "٣",
    ],
)  # fmt: skip
def test_what_is_no_number_is_never_guessed(text: str) -> None:
    value = number(text)
    assert value is None or text == "4 10/3"


@pytest.mark.parametrize(
    ("box", "value"),
    [
        ("x = 18", 18), (r"12 + 6 = 18", 18), (r"25\%", 25), ("25%", 25), ("25 percent", 25), (r"\frac{36}{2}",
        18), ("3 \\times 6", 18),
        (r"18 \text{ cm}^2", 18), ("$18/hour", 18), ("18 miles/hour", 18), ("2.5 million", 2500000),
        ("18 or 19", None), ("42abc", None),
        ("2x", None), ("(18, 19)", None), ("x", None), ("12 + 6 = 19", None), ("9!!!!", None), ("18 squared",
        None), ("half of 18", None),
        ("2^{99999}", None),
    ],
)  # fmt: skip
def test_what_a_box_says(box: str, value: int | None) -> None:
    assert value_of(box) == value


def test_no_tolerance() -> None:
    gsm8k = get("gsm8k")
    problem = Problem("p", "gsm8k", (), "192000000")
    assert gsm8k.judge(problem, r"\boxed{192000001}", "stop").reason == "wrong"
    assert gsm8k.judge(problem, r"\boxed{192,000,000}", "stop").reason == "correct"
    assert gsm8k.judge(Problem("p", "gsm8k", (), "50"), r"\boxed{0.5}", "stop").reason == "wrong"


def test_reward_rule() -> None:
    gsm8k, problem = get("gsm8k"), Problem("p", "gsm8k", (), "18")
    rewards = [
        gsm8k.judge(problem, t, "stop").reward
        for t in (r"\boxed{18}", r"\boxed{19}", r"\boxed{nothing}", "18")
    ]
    assert rewards == [1.0, 0.1, 0.0, 0.0]
    assert (
        gsm8k.judge(problem, r"\boxed{18.0}", "stop").ballot
        == gsm8k.judge(problem, r"\boxed{\$18}", "stop").ballot
        == "18"
    )
    assert gsm8k.judge(problem, "no box", "length").reason == "truncated"
    assert gsm8k.judge(Problem("p", "gsm8k", (), "?"), r"\boxed{18}", "stop").score is None


def rows_file(tmp_path: Path, *rows: object) -> Path:
    file = tmp_path / "train.jsonl"
    file.write_text("\n".join(r if isinstance(r, str) else json.dumps(r) for r in rows))
    return file


def test_calculator_marks_never_reach_a_prompt(tmp_path: Path) -> None:
    file = rows_file(tmp_path, {"question": "What is 1+1 <<1+1=2>>?", "answer": "It is <<1+1=2>>2.\n#### 2"})
    (problem,) = load_problems("gsm8k", "train", file).problems
    assert "<<" not in "".join(m.content for m in problem.messages)
    assert [m.role for m in problem.messages] == ["system", "user"]
    assert (
        problem.messages[0].content
        == "Please reason step by step, and put your final answer within \\boxed{}."
    )


def test_gold_is_after_the_last_mark(tmp_path: Path) -> None:
    file = rows_file(tmp_path, {"question": "q", "answer": "#### 1\nno\n#### -2,000"})
    (problem,) = load_problems("gsm8k", "train", file).problems
    assert (problem.gold, problem.extra["published_gold"]) == ("-2000", "-2,000")


def test_a_row_without_the_mark_is_an_error_that_names_it(tmp_path: Path) -> None:
    file = rows_file(tmp_path, {"question": "q", "answer": "#### 1"}, {"question": "q", "answer": "2"})
    with pytest.raises(DataError, match=r"row 1.*####"):
        load_problems("gsm8k", "train", file)


def test_a_gold_that_is_no_number_is_a_bad_row(tmp_path: Path) -> None:
    file = rows_file(
        tmp_path, {"question": "q", "answer": "#### 1"}, {"question": "q", "answer": "#### many"}
    )
    found = load_problems("gsm8k", "train", file)
    assert [p.gold for p in found.problems] == ["1"]
    assert found.bad[0].id == "train/1"


def test_broken_line_empty_file_missing_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="line 2"):
        load_problems(
            "gsm8k", "train", rows_file(tmp_path, {"question": "q", "answer": "#### 1"}, '{"question": ')
        )
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    with pytest.raises(DataError, match="empty"):
        load_problems("gsm8k", "train", empty)
    with pytest.raises(MissingFileError):
        load_problems("gsm8k", "train", tmp_path / "nowhere.jsonl")


def test_parquet_loads_as_jsonl_does(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [{"question": f"q{i}", "answer": f"#### {i}"} for i in range(3)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "train.parquet")
    found = load_problems("gsm8k", "train", tmp_path / "train.parquet")
    assert [p.gold for p in found.problems] == ["0", "1", "2"]


def test_the_whole_data_set() -> None:
    train = load_problems("gsm8k", "train", data_path("gsm8k"))
    test = load_problems("gsm8k", "test", data_path("gsm8k"))
    assert (train.rows, test.rows, train.bad, test.bad) == (7473, 1319, (), ())
    assert sum("," in p.extra.get("published_gold", "") for p in train.problems) == 79
    assert sum("," in p.extra.get("published_gold", "") for p in test.problems) == 14
    assert sum(int(p.gold) < 0 for p in train.problems) == 3
    assert max(int(p.gold) for p in train.problems) == 192_000_000


def test_agreement_with_the_judged_solutions() -> None:
    from broaden.bench.score import MODELS, boxed

    problems = load_problems("gsm8k", "test", data_path("gsm8k")).problems
    rows = read(data_path("gsm8k", "example_model_solutions.jsonl"))
    gsm8k, agree, cases = get("gsm8k"), 0, 0
    for (_, row), problem in zip(rows, problems, strict=True):
        for model in MODELS:
            said = gsm8k.judge(problem, boxed(row[model]["solution"]), "stop")
            agree += (said.score == 1.0) == row[model]["is_correct"]
            cases += 1
    assert cases == 5276
    assert agree / cases >= 0.995


def test_examples_are_earlier_turns_whose_own_answers_are_right() -> None:
    row = {"question": "What is 1 + 1?", "answer": "#### 2"}
    problem = from_row(row, "test/0", "here", "examples")
    assert isinstance(problem, Problem)
    roles = [m.role for m in problem.messages]
    assert roles == ["system", "user", "assistant", "user", "assistant", "user"]
    assert (problem.messages[0].content, problem.messages[-1].content) == (SYSTEM, "What is 1 + 1?")
    for (asked, solved), gold in zip(EXAMPLES, ("7", "22"), strict=True):
        example = Problem("e", "gsm8k", user(asked), gold)
        assert get("gsm8k").judge(example, solved, "stop").score == 1.0
