"""Verdicts of a rollout: the same with several threads, each distinct answer judged once, in the order asked."""

from __future__ import annotations

import threading

import pytest

from broaden import tasks
from broaden.perturb import NoiseSpec
from broaden.population import Member, Prompt, RolloutJob
from broaden.population.local import Judge
from broaden.records import Completion, FinishReason, Message, Problem, Sampling, Verdict
from broaden.tasks import Family, judge_threads
from broaden.tasks.base import MOST_THREADS

JOB = RolloutJob(NoiseSpec(0, 0, 0.1, ("w",)), (Member(0),), (0, 1), 3, Sampling(1.0, 4))
PROMPTS = [Prompt(Problem(f"p{i}", "fake", (Message("user", "?"),), "1"), (1, 2)) for i in range(2)]


class Letters:
    def decode(self, ids: tuple[int, ...]) -> str:
        return "".join(map(str, ids))


class Apart(Family):
    """Two judge at a time, or the test fails: each waits for another."""

    name, version, title, apart = "fake", "1", "fake", True

    def __init__(self) -> None:
        self.meeting = threading.Barrier(2, timeout=10)
        self.asked: list[str] = []

    def rows(self, *_: object) -> object:  # type: ignore[override]
        raise NotImplementedError

    def judge(self, problem: Problem, completion: str, finish: FinishReason) -> Verdict:
        if self.apart:
            self.meeting.wait()
        self.asked.append(f"{problem.id} {completion}")
        reward = float(int(completion) % 7)
        return Verdict("correct", reward, reward, completion)


class Alone(Apart):
    apart = False


def judge(task: Apart) -> Judge:
    return Judge(Letters(), task, PROMPTS, JOB)  # type: ignore[arg-type]


def test_several_threads_give_the_verdicts_of_one() -> None:
    order = [0, 0, 0, 1, 1, 1]
    completions = [Completion((i,), "stop") for i in (5, 3, 5, 5, 8, 9)]
    apart, alone = Apart(), Alone()
    expected = judge(alone).verdicts(order, completions)
    assert [v.answer for v in expected] == ["5", "3", "5", "5", "8", "9"]
    assert alone.asked == ["p0 5", "p0 3", "p1 5", "p1 8", "p1 9"]
    apart.meeting = threading.Barrier(1)  # five distinct answers: an odd one would wait for ever
    assert judge(apart).verdicts(order, completions) == expected
    assert sorted(apart.asked) == sorted(alone.asked)
    apart.meeting = threading.Barrier(2, timeout=10)
    assert judge(apart).verdicts(order[:2], completions[:2]) == expected[:2]


def test_a_judge_that_fails_is_heard() -> None:
    class Broken(Apart):
        def judge(self, problem: Problem, completion: str, finish: FinishReason) -> Verdict:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        judge(Broken()).verdicts([0, 1], [Completion((1,), "stop")] * 2)


@pytest.mark.parametrize(
    ("name", "several"), [("countdown", False), ("gsm8k", False), ("math500", True), ("mbpp", True)]
)
def test_only_tasks_with_processes_of_their_own_get_threads(name: str, several: bool) -> None:
    assert (2 <= judge_threads(tasks.get(name)) <= MOST_THREADS) is several
