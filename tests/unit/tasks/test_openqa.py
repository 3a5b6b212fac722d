"""HotpotQA: normalisation with its three repairs, verdicts, rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.helpers.data import data_path

from broaden.errors import DataError, UsageError
from broaden.records import Problem, Verdict
from broaden.tasks import get, load_problems
from broaden.tasks.openqa import f1, normalise


def judge(gold: str, answer: str) -> Verdict:
    return get("hotpotqa").judge(Problem("p", "hotpotqa", (), gold), f"<answer>{answer}</answer>", "stop")


@pytest.mark.parametrize(
    ("gold", "answer"),
    [("yes", "Yes"), ("yes", "yes."), ("A", "A"), ("The The", "the the"), ("3.14", "(3.14)"), ("3.14", "3.14."),
    ("1,000", "1000"), ("Animorphs", " the Animorphs "),
     ("Chief of Protocol", "chief of protocol"), ("U.S.", "US"), ("Beyoncé", "beyoncé"), ("-5", "-5"),
     ("“Help!”", "Help!"), ("The Who", "Who"), ("ﬁlm", "film")],
)  # fmt: skip
def test_right(gold: str, answer: str) -> None:
    assert judge(gold, answer).reason == "correct"


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("yes", "no"),
        ("yes", "yes it is"),
        ("3.14", "314"),
        ("3.14", "3 14"),
        ("5", "-5"),
        ("Animorphs", "Goosebumps"),
        ("A", "An"),
        ("1,000", "1"),
    ],
)
def test_wrong(gold: str, answer: str) -> None:
    assert (judge(gold, answer).reason, judge(gold, answer).reward) == ("wrong", 0.1)


def test_contract() -> None:
    hotpot, problem = get("hotpotqa"), Problem("p", "hotpotqa", (), "Animorphs")
    assert hotpot.judge(problem, "It is the Animorphs series.", "stop").reason == "no_answer"
    assert (
        hotpot.judge(problem, "<answer>Goosebumps</answer> no, <answer>Animorphs</answer>", "stop").reason
        == "correct"
    )
    assert hotpot.judge(problem, "<answer>...</answer>", "stop").reason == "unparseable"
    assert hotpot.judge(problem, "<answer>" + "x" * 3000 + "</answer>", "stop").reason == "limit"


def test_f1_by_hand() -> None:
    assert f1("chief of protocol", "protocol chief") == pytest.approx(2 * 2 / 5)
    assert f1("yes", "yes indeed") == 0.0
    assert f1("b", "c") == 0.0
    near = judge("Chief of Protocol of the State", "Chief of Protocol of State house")
    assert near.borderline
    assert near.note.startswith("F1 0.")


def test_ballots() -> None:
    assert judge("x", "The Animorphs!").ballot == judge("x", "animorphs").ballot == "animorphs"
    assert normalise("the") == "the"
    assert normalise("...") == ""


def test_rows(tmp_path: Path) -> None:
    row = {
        "_id": "q1",
        "question": "Who?",
        "answer": "A",
        "context": [["T1", ["One. ", "Two."]], ["T2", ["Three."]]],
    }
    hub = {
        "id": "q2",
        "question": "Who?",
        "answer": "B",
        "context": {"title": ["T1"], "sentences": [["One."]]},
    }
    file = tmp_path / "dev.jsonl"
    file.write_text(
        "\n".join(
            map(json.dumps, (row, hub, {"_id": "q3", "question": "Who?", "answer": "?!", "context": []}))
        )
    )
    found = load_problems("hotpotqa", data=file)
    assert "T1\nOne. Two.\n\nT2\nThree.\n\nQuestion: Who?" in found.problems[0].messages[0].content
    assert [p.id for p in found.problems] == ["q1", "q2"]
    assert [b.id for b in found.bad] == ["q3"]
    closed = load_problems("hotpotqa", data=file, context="none")
    assert "One." not in closed.problems[0].messages[0].content
    with pytest.raises(UsageError):
        load_problems("hotpotqa", data=file, context="some")
    file.write_text(json.dumps({"_id": "q1", "question": "Who?", "answer": "A"}))
    with pytest.raises(DataError, match="context"):
        load_problems("hotpotqa", data=file)


def test_every_gold_equals_itself() -> None:
    found = load_problems("hotpotqa", data=data_path("hotpotqa"))
    assert found.rows == len(found.problems) == 500
    assert all(judge(p.gold, p.gold).reason == "correct" for p in found.problems)
