"""reasoning-gym as tasks, against a small stand-in of the package (the real one is an extra)."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from broaden.errors import UsageError
from broaden.tasks import get, load_problems, mathpool

STAND_IN = """
import time
class Dataset:
    def __init__(self, name, size, seed): self.name, self.size, self.seed = name, size, seed
    def __getitem__(self, i): return {"question": f"{self.name}: {self.seed % 100} + {i}?", "answer":
    str(self.seed % 100 + i), "metadata": {"i": i}}
    def score_answer(self, answer, entry):
        if answer == "hang": time.sleep(1000)
        if answer.startswith("eval "): eval(answer[5:], {})  # as some of the real scorers do
        if answer == "crash": raise ValueError("no")
        return 1.0 if answer == entry["answer"] else 0.01
def create_dataset(name, size=10, seed=0):
    if name == "nothing": raise ValueError("no such dataset")
    return Dataset(name, size, seed)
"""


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    package = tmp_path / "reasoning_gym"
    package.mkdir()
    (package / "__init__.py").write_text(STAND_IN)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(mathpool, "_shared", mathpool.Pool(size=1))
    monkeypatch.setattr("broaden.tasks.gym.SECONDS", 3.0)
    yield
    mathpool.shared().close()
    sys.modules.pop("reasoning_gym", None)


@pytest.mark.usefixtures("stand_in")
def test_generated_and_scored_in_workers() -> None:
    found = load_problems("gym:sums", "test", limit=3, size=5)
    assert [p.id for p in found.problems] == ["test/0", "test/1", "test/2"]
    assert load_problems("gym:sums", "train", limit=3, size=5).problems[0].gold != found.problems[0].gold
    task, problem = get("gym:sums"), found.problems[2]
    right = task.judge(problem, f"<answer>{problem.gold}</answer>", "stop")
    assert (right.reason, right.score, right.reward) == ("correct", 1.0, 1.0)
    wrong = task.judge(problem, "<answer>x</answer>", "stop")
    assert (wrong.score, wrong.reward) == (0.0, 0.01)
    assert task.judge(problem, "no tag", "stop").reason == "no_answer"
    broken = task.judge(problem, "<answer>crash</answer>", "stop")
    assert (broken.score, broken.reward, broken.note) == (0.0, 0.0, "the scorer raised ValueError")
    hang = task.judge(problem, "<answer>hang</answer>", "stop")
    assert (hang.reason, hang.score) == ("timeout", None)
    assert task.judge(problem, f"<answer>{problem.gold}</answer>", "stop").score == 1.0


@pytest.mark.usefixtures("stand_in")
def test_a_scorer_that_evaluates_text_is_fenced(tmp_path: Path) -> None:
    task, problem = get("gym:sums"), load_problems("gym:sums", limit=1, size=5).problems[0]
    mark = tmp_path / "mark"
    attacks = [
        f"exec(\"import os; os.system('touch {mark}')\")",
        f"open('{mark}', 'w').write('x')",
        f"exec(\"import subprocess; subprocess.run(['touch', '{mark}'])\")",
        f"exec(\"import os; os.open('{mark}', os.O_CREAT | os.O_WRONLY)\")",
        f"exec(\"import ctypes; ctypes.CDLL(None).system(b'touch {mark}')\")",
        'exec("import os; os.fork()")',
        'exec("import socket; socket.socket()")',
    ]
    for attack in attacks:
        assert (
            task.judge(problem, f"<answer>eval {attack}</answer>", "stop").note
            == "the scorer raised PermissionError"
        )
    assert task.judge(problem, "<answer>__import__('os')</answer>", "stop").reason == "unparseable"
    assert not mark.exists()
    assert task.judge(problem, f"<answer>{problem.gold}</answer>", "stop").score == 1.0


@pytest.mark.usefixtures("stand_in")
def test_unknown_generator_and_data() -> None:
    with pytest.raises(UsageError, match="no such dataset"):
        load_problems("gym:nothing")
    with pytest.raises(UsageError, match="generates"):
        load_problems("gym:sums", data=".")


def test_without_the_extra() -> None:
    if importlib.util.find_spec("reasoning_gym") is not None:
        pytest.skip("reasoning-gym is installed")
    with pytest.raises(UsageError, match=r"pip install 'broaden\[gym\]'"):
        load_problems("gym:sums")
