"""Users' own rewards and tasks: TRL and verl signatures, JSONL with a family, a class; errors that name the fault."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from broaden.errors import DataError, MissingFileError, RewardError, UsageError
from broaden.records import Problem
from broaden.tasks import get, load_problems
from broaden.tasks.base import user
from broaden.tasks.custom import call_trl

SOURCE = '''
from broaden.records import Message, Problem, Verdict

def by_length(completions, target, **kwargs):
    """Text prompts: completions are strings; columns come as lists."""
    return [1.0 if len(c) == t else len(c) / 100 for c, t in zip(completions, target)]

def chat(prompts, completions, **kwargs):
    return [1.0 if c[0]["content"] == p[-1]["content"] else None for p, c in zip(prompts, completions)]

def abstains(completions, **kwargs): return [None for _ in completions]
def too_many(completions, **kwargs): return [1.0, 2.0]
def nan(completions, **kwargs): return [float("nan")]
def raises(completions, **kwargs): raise KeyError("gone")
def scalar(completions, **kwargs): return 1.0
def text(completions, **kwargs): return ["good"]

def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return {"score": 1.0 if ground_truth in solution_str else 0.0, "source": data_source}

def bare_score(data_source, solution_str, ground_truth, extra_info=None):
    return ground_truth in solution_str

class Parity:
    name = "parity"
    version = "3"

    def problems(self, split, data, limit, seed, **options):
        return [Problem(f"{split}/{i}", "parity", (Message("user", str(i)),), str(i % 2)) for i in range(limit or 4)]

    def judge(self, problem, completion, finish):
        right = completion.strip() == problem.gold
        return Verdict("correct" if right else "wrong", float(right), float(right), completion, completion, "parity/3")

class NoJudge:
    version = "1"
    def problems(self, *a): return []
'''


@pytest.fixture
def source(tmp_path: Path) -> Path:
    file = tmp_path / "rewards.py"
    file.write_text(SOURCE)
    return file


def write(tmp_path: Path, *rows: dict[str, object]) -> Path:
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    return file


def test_trl_with_text_prompts(source: Path, tmp_path: Path) -> None:
    name = f"trl:{source}:by_length"
    (problem,) = load_problems(
        name, data=write(tmp_path, {"prompt": "Say five letters", "target": 5})
    ).problems
    assert problem.task == name
    assert problem.messages[0].content == "Say five letters"
    right, wrong = (get(name).judge(problem, t, "stop") for t in ("abcde", "abc"))
    assert (right.score, right.reward) == (1.0, 1.0)
    assert (wrong.score, wrong.reward) == (0.0, 0.03)


def test_trl_with_chat_prompts_abstains_by_none(source: Path, tmp_path: Path) -> None:
    name = f"trl:{source}:chat"
    file = write(
        tmp_path, {"prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "echo"}]}
    )
    (problem,) = load_problems(name, data=file).problems
    assert get(name).judge(problem, "echo", "stop").score == 1.0
    said = get(name).judge(problem, "other", "stop")
    assert (said.score, said.reward, said.note) == (None, None, "the reward function abstained")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("too_many", "2 rewards for 1"),
        ("nan", "nan"),
        ("raises", "KeyError"),
        ("scalar", "a list of rewards"),
        ("text", "a number or None"),
    ],
)
def test_faulty_rewards_are_named(source: Path, function: str, message: str) -> None:
    name = f"trl:{source}:{function}"
    with pytest.raises(RewardError, match=message):
        get(name).judge(Problem("p", name, user("q"), "", {"columns": {}, "chat": False}), "x", "stop")


def test_call_trl_in_a_batch() -> None:
    def reward(prompts: list[str], completions: list[str], **columns: list[object]) -> list[float]:
        return [float(len(c)) for c in completions]

    assert call_trl("r", reward, ["a", "b"], ["x", "yy"], {}) == [1.0, 2.0]


def test_verl(source: Path, tmp_path: Path) -> None:
    row = {
        "data_source": "d",
        "prompt": [{"role": "user", "content": "q"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "42"},
        "extra_info": {"i": 1},
    }
    for function in ("compute_score", "bare_score"):
        name = f"verl:{source}:{function}"
        (problem,) = load_problems(name, data=write(tmp_path, row)).problems
        assert [get(name).judge(problem, t, "stop").score for t in ("it is 42", "it is 43")] == [1.0, 0.0]
    with pytest.raises(DataError, match="reward_model"):
        load_problems(name, data=write(tmp_path, {"prompt": "q"}))


def test_a_class(source: Path) -> None:
    name = f"file:{source}:Parity"
    found = load_problems(name, "train", limit=3)
    assert [(p.task, p.gold) for p in found.problems] == [(name, "0"), (name, "1"), (name, "0")]
    assert get(name).version == "3"
    assert get(name).judge(found.problems[1], "1", "stop").score == 1.0
    with pytest.raises(UsageError, match="judge"):
        get(f"file:{source}:NoJudge")


@pytest.mark.parametrize(
    ("family", "row", "good", "bad"),
    [
        ("math", {"prompt": "q", "answer": r"\frac12"}, r"\boxed{0.5}", r"\boxed{5}"),
        ("gsm8k", {"prompt": "q", "answer": "18"}, r"\boxed{18}", r"\boxed{19}"),
        ("gsm8k", {"question": "q", "answer": "so\n#### 1,800"}, r"\boxed{1800}", r"\boxed{18}"),
        ("hotpotqa", {"prompt": "q", "answer": "The Who"}, "<answer>who</answer>", "<answer>what</answer>"),
        ("commonsenseqa", {"prompt": "q", "answer": "B"}, r"\boxed{B}", r"\boxed{C}"),
        (
            "countdown",
            {"prompt": "q", "numbers": [1, 2], "target": 3},
            "<answer>1+2</answer>",
            "<answer>2-1</answer>",
        ),
        (
            "mbpp",
            {"prompt": "q", "tests": ["assert f() == 1"]},
            "```python\ndef f(): return 1\n```",
            "```python\ndef f(): return 2\n```",
        ),
    ],
)
def test_jsonl_with_a_family(
    tmp_path: Path, family: str, row: dict[str, object], good: str, bad: str
) -> None:
    name = f"jsonl:{family}"
    (problem,) = load_problems(name, data=write(tmp_path, row)).problems
    assert [get(name).judge(problem, t, "stop").score for t in (good, bad)] == [1.0, 0.0]
    assert len(problem.messages) == 1
    asked = load_problems(name, data=tmp_path / "rows.jsonl", contract="yes").problems[0]
    assert sum(len(m.content) for m in asked.messages) > 20


def test_jsonl_bad_rows(tmp_path: Path) -> None:
    found = load_problems(
        "jsonl:math", data=write(tmp_path, {"prompt": "q", "answer": "1"}, {"prompt": "q", "answer": ""})
    )
    assert [b.id for b in found.bad] == ["rows/1"]


def test_wrong_names(tmp_path: Path, source: Path) -> None:
    for name in ("jsonl:nothing", f"trl:{source}", f"trl:{source}:nothing", "nothing", "trl:x"):
        with pytest.raises(UsageError):
            get(name)
    with pytest.raises(MissingFileError):
        get(f"trl:{tmp_path}/none.py:f")
    broken = tmp_path / "broken.py"
    broken.write_text("1/0")
    with pytest.raises(RewardError, match="ZeroDivisionError"):
        get(f"trl:{broken}:f")
    with pytest.raises(UsageError, match="no data"):
        load_problems("jsonl:math")
    with pytest.raises(DataError, match="role"):
        load_problems(
            "jsonl:math", data=write(tmp_path, {"prompt": [{"role": "robot", "content": "x"}], "answer": "1"})
        )
