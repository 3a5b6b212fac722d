"""One suite over every built-in family: the contract that trainers and evaluation rely on."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from broaden.records import Problem, Verdict
from broaden.tasks import get, names

# A problem of each family, with a right answer and one of the required form that is wrong.
KINDS: dict[str, tuple[Problem, str, str]] = {
    "countdown": (
        Problem("p", "countdown", (), "22", {"numbers": [3, 7, 12], "target": 22}),
        "<answer>3 + 7 + 12</answer>",
        "<answer>3 * 7 + 12</answer>",
    ),
    "gsm8k": (Problem("p", "gsm8k", (), "18"), r"\boxed{18}", r"\boxed{19}"),
    "commonsenseqa": (
        Problem("p", "commonsenseqa", (), "B", {"letters": ["A", "B"], "options": ["x", "y"]}),
        r"\boxed{B}",
        r"\boxed{A}",
    ),
    "hotpotqa": (Problem("p", "hotpotqa", (), "Paris"), "<answer>Paris</answer>", "<answer>Rome</answer>"),
    "mbpp": (
        Problem("p", "mbpp", (), "", {"tests": ["assert f(2) == 4"]}),
        "```python\ndef f(x): return x * x\n```",
        "```python\ndef f(x): return x\n```",
    ),
}
KINDS["gpqa"] = KINDS["commonsenseqa"]
for _name in ("math", "math500", "aime24", "aime25", "amc23", "deepscaler"):
    KINDS[_name] = (Problem("p", _name, (), "42"), r"\boxed{42}", r"\boxed{43}")


@pytest.fixture(params=names())
def case(request: pytest.FixtureRequest) -> tuple[str, Problem, str, str]:
    name = str(request.param)
    if name not in KINDS:
        pytest.skip(f"{name} is a task that another test registered")
    return (name, *KINDS[name])


Case = tuple[str, Problem, str, str]


def test_every_built_in_family_is_here() -> None:
    assert set(KINDS) <= set(names())


def test_right_wrong_and_silent(case: Case) -> None:
    name, problem, right, wrong = case
    task = get(name)
    said = [task.judge(problem, text, "stop") for text in (right, wrong, "I do not know.", "")]
    assert [v.reason for v in said] == ["correct", "wrong", "no_answer", "no_answer"]
    assert [(v.score, v.reward) for v in said] == [(1.0, 1.0), (0.0, 0.1), (0.0, 0.0), (0.0, 0.0)]
    assert [v.ballot is None for v in said] == [False, False, True, True]
    assert said[0].ballot != said[1].ballot
    assert all(v.verifier == f"{name}/{task.version}" for v in said)


def test_truncation_and_thinking(case: Case) -> None:
    name, problem, right, _ = case
    task = get(name)
    assert task.judge(problem, "still going", "length").reason == "truncated"
    assert task.judge(problem, f"<think>{right}", "stop").reason == "truncated"
    opened = Problem(
        problem.id, problem.task, problem.messages, problem.gold, {**problem.extra, "thinking": True}
    )
    assert task.judge(opened, right, "stop").reason == "truncated"
    assert task.judge(opened, f"hm</think>{right}", "stop").reason == "correct"


def test_the_prompt_is_not_scored(case: Case) -> None:
    """What stands in the problem's messages never counts as an answer."""
    name, problem, right, _ = case
    from broaden.tasks.base import user

    told = Problem(problem.id, problem.task, user(right), problem.gold, problem.extra)
    assert get(name).judge(told, "hm", "stop").reason == "no_answer"


def test_pure_and_safe_from_threads(case: Case) -> None:
    name, problem, right, wrong = case
    with ThreadPoolExecutor(4) as pool:
        said = list(pool.map(lambda text: get(name).judge(problem, text, "stop"), [right, wrong] * 4))
    assert len(set(said)) == 2
    assert Verdict.from_json(said[0].to_json()) == said[0]
