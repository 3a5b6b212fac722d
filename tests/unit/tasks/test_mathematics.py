"""The mathematics verifier from completion to verdict, and the data sets that use it."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.helpers.data import data_path

from broaden.errors import DataError, UsageError
from broaden.records import Problem, Verdict
from broaden.tasks import get, load_problems


def judge(gold: str, response: str, finish: str = "stop", **extra: object) -> Verdict:
    return get("math").judge(Problem("p", "math", (), gold, dict(extra)), response, finish)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("gold", "response", "reason", "reward"),
    [
        ("42", r"Thus \[ \boxed{42} \]", "correct", 1.0),
        ("42", r"\fbox{42}", "correct", 1.0),
        ("70", r"\(\boxed{70}\).</answer>", "correct", 1.0),
        ("7", r"<think>\boxed{5}</think> $\boxed{7}$", "correct", 1.0),
        ("2", r"\boxed{2}. Wait, \boxed{3}", "wrong", 0.1),
        ("840", r"\boxed{840}, let me explain. **Final** \boxed{840}", "correct", 1.0),
        ("3, 5, 7", r"The solutions are \boxed{3}, \boxed{5}, \boxed{7}.", "correct", 1.0),
        ("7", r"The solutions are \boxed{3}, \boxed{5}, \boxed{7}.", "wrong", 0.1),
        ("7", r"First \boxed{3}, then after some work \boxed{7}", "correct", 1.0),
        ("42", "The total is 42", "no_answer", 0.0),
        ("5", r"Mark it with \boxed and stop", "no_answer", 0.0),
        ("7", r"\boxed{7", "no_answer", 0.0),
        (
            "3",
            r"\boxed{\dfrac{5^{\left(5^{\left(5^{\left(5^5\right)}\right)} - 4\right)} - 5}{16}}",
            "limit",
            0.0,
        ),
        ("1", r"\boxed{(10^{9})!}", "limit", 0.0),
        ("1", r"\boxed{" + "1" * 5000 + "}", "limit", 0.0),
        ("73", r"\boxed{**73**}", "correct", 1.0),
        (r"\frac{1}{3}", r"\boxed{\approx 0.333333}", "correct", 1.0),
        (r"\text{Yes}", r"\boxed{yes}", "correct", 1.0),
        (r"\text{Yes}", r"\boxed{no}", "wrong", 0.1),
        (r"\text{DNE}", r"\boxed{DNE}", "correct", 1.0),
        (r"\text{red}", r"\boxed{red}", "correct", 1.0),
        (r"\emptyset", r"\boxed{\pi}", "wrong", 0.1),
        (r"\text{no real solutions}", r"\boxed{7}", "wrong", 0.1),
        (r"\text{no real solutions}", r"\boxed{\text{No real solutions.}}", "correct", 1.0),
    ],
)
def test_verdicts(gold: str, response: str, reason: str, reward: float) -> None:
    said = judge(gold, response)
    assert (said.reason, said.reward) == (reason, reward)


def test_thinking_and_truncation() -> None:
    assert judge("9", r"<think> \boxed{9}").reason == "truncated"
    assert judge("9", r"\boxed{9}", thinking=True).reason == "truncated"
    assert judge("9", r"hm</think>\boxed{9}", thinking=True).reason == "correct"
    assert judge("9", "no end", "length").reason == "truncated"


def test_an_empty_gold_is_never_right() -> None:
    for gold in ("", r"\div", "???"):
        said = judge(gold, rf"\boxed{{{gold or '0'}}}")
        assert (said.reason, said.score, said.reward) == ("gold_unparseable", None, None)
        assert judge(gold, "nothing").reason == "gold_unparseable"


def test_lenient_matches_are_borderline() -> None:
    assert not judge("5", r"\boxed{5}").borderline
    assert judge(r"10\%", r"\boxed{0.1}").borderline
    assert judge("2516_8", r"\boxed{2516}").borderline
    assert judge("43", r"\boxed{43}, or rather \boxed{4", "length").borderline


def test_math_verify_is_the_last_resort_and_named() -> None:
    said = judge(r"\tan^2(y)+1", r"\boxed{\sec^2(y)}")
    assert (said.reason, said.note, said.borderline) == ("correct", "numeric probe", True)
    assert judge(r"\cot x", r"\boxed{\tan x}").reason == "wrong"
    recurrence = r"F_n = \sum_{k=0}^{n-1} F_k F_{n-k-1}"
    assert judge(recurrence, rf"\boxed{{{recurrence}}}").note == "equal as text"
    assert judge(recurrence, r"\boxed{F_n = \sum_{k=0}^{n-2} F_k F_{n-k-2}}").reason == "wrong"


def test_numeric_probe_finds_what_simplification_misses() -> None:
    assert judge(r"2\ln 2 + \ln x", r"\boxed{\ln(4x)}").reason == "correct"


def test_threads_and_asyncio() -> None:
    cases = [(r"\sin x", r"\boxed{\cos x}", 0.0), (r"\ln 4", r"\boxed{2 \ln 2}", 1.0)] * 6
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda c: judge(c[0], c[1]).score, cases)) == [c[2] for c in cases]

    async def all_at_once() -> list[float | None]:
        said = await asyncio.gather(*(asyncio.to_thread(judge, g, r) for g, r, _ in cases))
        return [v.score for v in said]

    assert asyncio.run(all_at_once()) == [c[2] for c in cases]


def write(tmp_path: Path, *rows: dict[str, object]) -> Path:
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    return file


def test_published_shapes(tmp_path: Path) -> None:
    suffix = " Let's think step by step and output the final answer within \\boxed{}."
    file = write(
        tmp_path,
        {"problem": "p1", "answer": "5"},
        {"question": "p2", "answer": 7.0},
        {
            "prompt": [{"role": "user", "content": "p3" + suffix}],
            "reward_model": {"ground_truth": "9"},
            "data_source": "x",
        },
        {"prompt": "p4", "solution": r"\boxed{11}"},
        {"problem": "p5", "answer": ""},
        {"problem": "", "answer": "5"},
    )
    found = load_problems("math", "test", file)
    assert [(p.messages[-1].content, p.gold) for p in found.problems] == [
        ("p1", "5"),
        ("p2", "7"),
        ("p3", "9"),
        ("p4", "11"),
    ]
    assert [b.id for b in found.bad] == ["rows/4", "rows/5"]
    assert found.problems[1].extra["published_gold"] == "7.0"


def test_prompt_presets(tmp_path: Path) -> None:
    file = write(tmp_path, {"problem": "p1", "answer": "5"})
    (paper,) = load_problems("math", "test", file).problems
    (plain,) = load_problems("math", "test", file, prompt="plain").problems
    assert [m.role for m in paper.messages] == ["system", "user"]
    assert [m.role for m in plain.messages] == ["user"]
    with pytest.raises(UsageError):
        load_problems("math", "test", file, prompt="other")


def test_wrong_columns_and_doubled_ids(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="it has a"):
        load_problems("math", "test", write(tmp_path, {"a": 1}))
    with pytest.raises(DataError, match="two rows have the id"):
        load_problems(
            "math",
            "test",
            write(
                tmp_path, {"problem": "p", "answer": "1", "id": 1}, {"problem": "q", "answer": "2", "id": 1}
            ),
        )


@pytest.mark.parametrize(
    ("name", "folder", "rows"),
    [("math500", "math500", 500), ("aime24", "aime24", 30), ("aime25", "aime25", 30), ("amc23", "amc23", 40)],
)
def test_test_sets_load_whole(name: str, folder: str, rows: int) -> None:
    found = load_problems(name, data=data_path(folder))
    assert (found.rows, len(found.problems), found.bad) == (rows, rows, ())


def test_known_mended_golds() -> None:
    aime = [
        p for p in load_problems("aime25", data=data_path("aime25")).problems if "published_gold" in p.extra
    ]
    assert [(p.gold, p.extra["published_gold"]) for p in aime] == [("336", r"336^\circ")]
    amc = load_problems("amc23", data=data_path("amc23")).problems
    assert all(p.extra["published_gold"] == f"{p.gold}.0" for p in amc)


def test_known_bad_rows_of_deepscaler() -> None:
    found = load_problems("deepscaler", data=data_path("deepscaler", "deepscaler_subset.jsonl"))
    assert found.rows == 3208
    assert {b.id.split("/")[1]: b.reason for b in found.bad}["265"] == "the gold is empty"
    assert len(found.bad) == 5
    verl = load_problems("deepscaler", data=data_path("deepscaler", "dsr_sub.parquet"), limit=3)
    assert not any("step by step and output" in m.content for p in verl.problems for m in p.messages)
