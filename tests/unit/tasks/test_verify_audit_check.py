"""Known verdicts from a file, second opinions on samples, a look at a data file."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tests.helpers.data import data_path

from broaden.errors import DataError, UsageError
from broaden.records import Problem, Sample, SampleSet
from broaden.tasks import get
from broaden.tasks.audit import audit, second_opinion
from broaden.tasks.check import check
from broaden.tasks.verify import verify_file


def write(tmp_path: Path, *rows: object) -> Path:
    file = tmp_path / "cases.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    return file


def test_published_cases() -> None:
    cases = data_path().parent / "cases" / "answer_cases.jsonl"
    if not cases.exists():
        pytest.skip(f"no {cases}")
    found = verify_file(cases)
    said = found.to_json()
    assert found.passed
    assert said["cases"] == 98
    assert said["timeouts"] == 0
    assert (
        said["disagree"] == said["contested_disagree"] == ["ac-071"]
    )  # renamed constants: see docs/tasks/mathematics.md


def test_disagreement_is_reported(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        {"task": "math", "gold": "1", "response": r"\boxed{1}", "verdict": True, "id": "a"},
        {"task": "math", "gold": "1", "response": r"\boxed{2}", "verdict": True, "id": "b"},
        {
            "task": "mcq",
            "gold": "A",
            "choices": ["w", "x"],
            "gold_text": "y",
            "response": r"\boxed{A}",
            "verdict": False,
            "id": "c",
        },
        {
            "task": "mcq",
            "gold": "A",
            "choices": ["w", "x"],
            "response": r"\boxed{x}",
            "verdict": True,
            "contested": True,
            "id": "d",
        },
    )
    found = verify_file(file)
    assert not found.passed
    assert found.to_json() == {
        "cases": 4,
        "agree": 2,
        "disagree": ["b", "d"],
        "timeouts": 0,
        "contested_disagree": ["d"],
    }


def test_wrong_shapes(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no key 'gold'"):
        verify_file(write(tmp_path, {"task": "math", "response": "x", "verdict": True}))
    with pytest.raises(DataError, match="true or false"):
        verify_file(write(tmp_path, {"task": "math", "gold": "1", "response": "x", "verdict": "yes"}))
    with pytest.raises(UsageError, match="no task"):
        verify_file(write(tmp_path, {"task": "poetry", "gold": "1", "response": "x", "verdict": True}))


def sample_set(task: str, problem: Problem, texts: list[str]) -> SampleSet:
    judged = [get(task).judge(problem, t, "stop") for t in texts]
    samples = tuple(
        Sample(problem.id, i, i, 1, (1,), "stop", t, v)
        for i, (t, v) in enumerate(zip(texts, judged, strict=True))
    )
    return SampleSet(task, (problem,), samples)


@pytest.mark.parametrize(
    ("task", "problem", "right", "wrong"),
    [
        ("math", Problem("p", "math", (), r"\frac12"), r"\boxed{0.5}", r"\boxed{2}"),
        ("gsm8k", Problem("p", "gsm8k", (), "18"), r"\boxed{18 dollars}", r"\boxed{2}"),
        (
            "countdown",
            Problem("p", "countdown", (), "22", {"numbers": [3, 7, 12], "target": 22}),
            "<answer>(3+7)+12</answer>",
            "<answer>3*7</answer>",
        ),
        (
            "hotpotqa",
            Problem("p", "hotpotqa", (), "The Who"),
            "<answer>who</answer>",
            "<answer>what</answer>",
        ),
        (
            "commonsenseqa",
            Problem("p", "commonsenseqa", (), "B", {"letters": ["A", "B"], "options": ["x", "y"]}),
            r"\boxed{\text{B}}",
            r"\boxed{A}",
        ),
        (
            "mbpp",
            Problem("p", "mbpp", (), "", {"tests": ["assert f() == 1"]}),
            "```python\ndef f(): return 1\n```",
            "```python\nf = 1\n```",
        ),
    ],
)
def test_deciding_verdicts_get_a_second_opinion(task: str, problem: Problem, right: str, wrong: str) -> None:
    found = audit(sample_set(task, problem, [wrong, right, wrong]))
    assert (found.deciding, found.differs) == (1, 0)
    assert [(f.sample, f.second, f.decides) for f in found.findings if f.decides] == [(1, "agrees", True)]
    assert audit(sample_set(task, problem, [right, right])).deciding == 0


def test_a_false_positive_is_contradicted() -> None:
    problem = Problem("p", "countdown", (), "22", {"numbers": [3, 7, 12], "target": 22})
    (sample,) = sample_set("countdown", problem, ["<answer>3+7+12</answer>"]).samples
    assert (
        second_opinion(Problem("p", "countdown", (), "23", {"numbers": [3, 7, 12], "target": 23}), sample)[0]
        == "differs"
    )
    assert second_opinion(Problem("p", "math", (), "23"), sample)[0] != "agrees"


def test_borderline_and_mixed_ballots_are_listed() -> None:
    problem = Problem("p", "math", (), r"10\%")
    found = audit(sample_set("math", problem, [r"\boxed{0.1}", r"\boxed{10}", r"\boxed{3}"]))
    assert [f.sample for f in found.findings if f.borderline] == [0, 1]
    assert "borderline" in found.text()
    assert json.loads(json.dumps(found.to_json()))["samples"] == 3


def test_check_lists_what_is_odd(tmp_path: Path) -> None:
    rows = [
        {"problem": "One?", "answer": "1"}, {"problem": "one!", "answer": "1"}, {"problem": "Two",
        "answer": 2.0}, {"problem": "Three", "answer": ""},
    ]  # fmt: skip
    file = write(tmp_path, *rows)
    other = tmp_path / "other.jsonl"
    other.write_text(json.dumps({"problem": "TWO.", "answer": "2"}))
    found = check("math", data=file, against=other)
    said = found.to_json()
    assert (said["rows"], said["problems"]) == (4, 3)
    assert said["bad"] == [{"id": "cases/3", "reason": "the gold is empty"}]
    assert said["duplicates"] == [["cases/0", "cases/1"]]
    assert said["mended"] == [{"id": "cases/2", "published": "2.0", "read_as": "2"}]
    assert said["overlap"] == [["cases/2", "other/0"]]
    assert said["golds"] == {"1": 2, "2": 1}
    assert "bad row cases/3" in found.text()
    assert check("math", data=file, tokens=lambda p: 7).longest[1:] == (7, "tokens")


def test_every_shipped_data_set_passes_check() -> None:
    root = data_path()
    usable = {
        ("gsm8k", "train"): 7473, ("gsm8k", "test"): 1319, ("math500", "test"): 500, ("aime24", "test"): 30,
        ("aime25", "test"): 30,
        ("amc23", "test"): 40, ("deepscaler", "train"): 3203, ("commonsenseqa", "train"): 9741,
        ("commonsenseqa", "dev"): 1221,
        ("hotpotqa", "dev"): 500, ("countdown", "test"): 256, ("mbpp", "all"): 427,
    }  # fmt: skip
    for (name, split), wanted in usable.items():
        assert check(name, split, root / name).problems == wanted


def test_train_and_test_do_not_overlap() -> None:
    root = data_path("gsm8k")
    assert check("gsm8k", "test", root / "test.jsonl", against=root / "train.jsonl").overlap == ()
    found = check(
        "deepscaler",
        data=data_path("deepscaler", "deepscaler_subset.jsonl"),
        against=data_path("math500", "test.jsonl"),
    )
    assert found.overlap == ()
    assert os.environ["BROADEN_DATA"]
